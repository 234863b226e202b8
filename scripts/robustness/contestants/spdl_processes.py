"""SPDL's loader for datasets of torch, which works in processes, as in its reference; it has no state."""

from typing import Any

from spdl.dataloader import get_pytorch_dataloader

from robustness.contestants.indexed import Indexed
from robustness.source import BATCH_SIZE, NUM_WORKERS, Source

PACKAGE = "spdl-core"
SETTINGS = {"sample-hangs-setting": {"timeout": 10}}


def loader(source: Source, data: str, **setting: Any) -> Any:
    del data
    return get_pytorch_dataloader(
        Indexed(source), batch_size=BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS, **setting
    )
