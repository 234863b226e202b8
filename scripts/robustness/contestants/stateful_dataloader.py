"""torchdata's ``StatefulDataLoader``, as in its tutorial."""

from collections.abc import Iterator
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from robustness.contestants.indexed import Indexed
from robustness.source import BATCH_SIZE, NUM_WORKERS, Source

PACKAGE = "torchdata"
SETTINGS = {"sample-hangs-setting": {"timeout": 10}}


def loader(source: Source, data: str, **setting: Any) -> Any:
    del data
    return StatefulDataLoader(Indexed(source), batch_size=BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS, **setting)


def save(loader: Any, iterator: Any) -> Any:
    del iterator
    return loader.state_dict()


def resumed(loader: Any, state: Any) -> Iterator[Any]:
    loader.load_state_dict(state)
    return iter(loader)
