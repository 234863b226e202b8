"""The contestants whose plainest code needs no class of its own. Each imports its library when it makes its loader."""

from importlib import import_module
from typing import Any

from torch.utils.data import DataLoader, Dataset, RandomSampler, default_collate

from robustness.source import BATCH_SIZE, NUM_SAMPLES, NUM_SHARDS, NUM_WORKERS, Source

_SAMPLES_PER_SHARD = NUM_SAMPLES // NUM_SHARDS
_OF_TORCH = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": NUM_WORKERS}


class Indexed(Dataset[dict[str, Any]]):
    """All samples, or those of one shard."""

    def __init__(self, source: Source, start: int = 0, count: int = NUM_SAMPLES) -> None:
        self.source = source
        self.start = start
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.source.sample(self.start + index)

    def __repr__(self) -> str:  # grain compares it when it resumes
        return "Samples"


class ShardOf:
    """Opens a shard, whose name is its number."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __call__(self, shard: Any) -> Indexed:
        return Indexed(self.source, int(shard) * _SAMPLES_PER_SHARD, _SAMPLES_PER_SHARD)


def ours(source: Source, **setting: Any) -> Any:
    """``ShardedDataLoader``, as in the README."""
    library = import_module("fkat_data")
    return library.ShardedDataLoader(
        seed=0,
        shard_sampler=library.ShuffledShardSampler([str(number) for number in range(NUM_SHARDS)], seed=0),
        dataloader_factory=library.DataLoaderFactory(
            ShardOf(source), sampler_generator=RandomSampler, batch_size=BATCH_SIZE
        ),
        num_shard_prefetches=NUM_WORKERS,
        **setting,
    )


def fkat(source: Source, **setting: Any) -> Any:
    """fkat's ``ShardedDataLoader``, the system that this one follows. Its state needs a process group."""
    library = import_module("fkat.data.sharded")
    sampler = library.ShardSampler()
    sampler.shards = [str(number) for number in range(NUM_SHARDS)]
    return library.ShardedDataLoader(
        seed=0,
        shard_sampler=library.ShuffledShardSampler(sampler),
        dataloader_factory=library.DataLoaderFactory(
            ShardOf(source), sampler_generator=RandomSampler, batch_size=BATCH_SIZE
        ),
        num_shard_prefetches=NUM_WORKERS,
        **setting,
    )


def torch(source: Source, **setting: Any) -> Any:
    """torch's ``DataLoader``."""
    return DataLoader(Indexed(source), **_OF_TORCH, **setting)


def torchdata(source: Source, **setting: Any) -> Any:
    """torchdata's ``StatefulDataLoader``, as in its tutorial."""
    return import_module("torchdata.stateful_dataloader").StatefulDataLoader(Indexed(source), **_OF_TORCH, **setting)


def grain(source: Source, **setting: Any) -> Any:
    """grain's ``DataLoader``, as in its tutorial. The state is the iterator's."""
    library = import_module("grain")
    return library.DataLoader(
        data_source=Indexed(source),
        sampler=library.samplers.IndexSampler(NUM_SAMPLES, shuffle=True, seed=0, num_epochs=1),
        operations=[library.transforms.Batch(BATCH_SIZE)],
        worker_count=NUM_WORKERS,
        shard_options=library.sharding.NoSharding(),
        **setting,
    )


def spdl_threads(source: Source, **setting: Any) -> Any:
    """SPDL's ``DataLoader``, which works in threads, as in its reference."""
    return import_module("spdl.dataloader").DataLoader(
        RandomSampler(range(NUM_SAMPLES)),
        preprocessor=source.sample,
        batch_size=BATCH_SIZE,
        aggregator=default_collate,
        num_threads=NUM_WORKERS,
        **setting,
    )


def spdl_processes(source: Source, **setting: Any) -> Any:
    """SPDL's loader for datasets of torch, which works in processes, as in its reference."""
    return import_module("spdl.dataloader").get_pytorch_dataloader(Indexed(source), **_OF_TORCH, **setting)
