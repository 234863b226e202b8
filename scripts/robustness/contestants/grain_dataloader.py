"""grain's ``DataLoader``, as in its tutorial. The state is the iterator's."""

from collections.abc import Iterator
from typing import Any

import grain

from robustness.contestants.indexed import Indexed
from robustness.source import BATCH_SIZE, NUM_SAMPLES, NUM_WORKERS, Source

PACKAGE = "grain"
SETTINGS: dict[str, dict[str, Any]] = {}


class Samples(Indexed):
    def __repr__(self) -> str:  # grain compares it when it resumes
        return "Samples"


def loader(source: Source, data: str, **setting: Any) -> Any:
    del data
    sampler = grain.samplers.IndexSampler(NUM_SAMPLES, shuffle=True, seed=0, num_epochs=1)
    return grain.DataLoader(
        data_source=Samples(source),
        sampler=sampler,
        operations=[grain.transforms.Batch(BATCH_SIZE)],
        worker_count=NUM_WORKERS,
        shard_options=grain.sharding.NoSharding(),
        **setting,
    )


def save(loader: Any, iterator: Any) -> Any:
    del loader
    return iterator.get_state()


def resumed(loader: Any, state: Any) -> Iterator[Any]:
    iterator = iter(loader)
    iterator.set_state(state)
    return iterator
