"""fkat's ``ShardedDataLoader``, the system that this one follows. Its state needs a process group."""

import tempfile
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from fkat.data.sharded import DataLoaderFactory, ShardedDataLoader, ShardSampler, ShuffledShardSampler
from torch.utils.data import RandomSampler

from robustness.contestants.indexed import ShardOf
from robustness.source import BATCH_SIZE, NUM_SHARDS, NUM_WORKERS, Source

PACKAGE = "fkat"
SETTINGS: dict[str, dict[str, Any]] = {}


class Shards(ShardSampler):
    def __init__(self) -> None:
        super().__init__()
        self.shards = [str(number) for number in range(NUM_SHARDS)]


def loader(source: Source, data: str, **setting: Any) -> Any:
    del data
    factory = DataLoaderFactory(ShardOf(source), sampler_generator=RandomSampler, batch_size=BATCH_SIZE)
    return ShardedDataLoader(
        seed=0,
        shard_sampler=ShuffledShardSampler(Shards()),
        dataloader_factory=factory,
        num_shard_prefetches=NUM_WORKERS,
        **setting,
    )


def save(loader: Any, iterator: Any) -> Any:
    del iterator
    _join_group()
    return loader.state_dict()


def resumed(loader: Any, state: Any) -> Iterator[Any]:
    _join_group()
    loader.load_state_dict(state)
    return iter(loader)


def _join_group() -> None:
    if not dist.is_initialized():
        file = tempfile.mkstemp()[1]
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
