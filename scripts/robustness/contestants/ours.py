"""``ShardedDataLoader``, as in the README."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import RandomSampler

from fkat_data import DataLoaderFactory, ShardedDataLoader, ShuffledShardSampler
from fkat_data.samplers import SequenceShardSampler
from robustness.contestants.indexed import ShardOf
from robustness.source import BATCH_SIZE, NUM_SHARDS, NUM_WORKERS, Source

PACKAGE = "fkat_data"
SETTINGS = {
    "worker-killed-setting": {"max_worker_restarts": 1},
    "sample-hangs-setting": {"stall_timeout_s": 10},
}


def loader(source: Source, data: str, **setting: Any) -> Any:
    del data
    shards = SequenceShardSampler([str(number) for number in range(NUM_SHARDS)])
    factory = DataLoaderFactory(ShardOf(source), sampler_generator=RandomSampler, batch_size=BATCH_SIZE)
    return ShardedDataLoader(
        seed=0,
        shard_sampler=ShuffledShardSampler(shards, seed=0),
        dataloader_factory=factory,
        num_shard_prefetches=NUM_WORKERS,
        **setting,
    )


def save(loader: Any, iterator: Any) -> Any:
    del iterator
    return loader.state_dict()


def resumed(loader: Any, state: Any) -> Iterator[Any]:
    loader.load_state_dict(state)
    return iter(loader)
