"""Streams of microbatches, and the datasets and factories that yield them.

They are a separate module so that spawned workers can import it without the benchmarks. Streams are endless so that no
measurement contains the end of an epoch.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

_IMAGES = (32, 3, 224, 224)


def tiny() -> Iterator[torch.Tensor]:
    while True:
        yield torch.ones(64, dtype=torch.int64)


def tokens() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for count in itertools.count():
        yield torch.full((8, 2048), count), torch.full((8, 2048), count + 1)


def images() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for count in itertools.count():
        yield torch.full(_IMAGES, float(count)), torch.full((32,), count)


def same_images() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    microbatch = torch.ones(_IMAGES), torch.zeros(32, dtype=torch.int64)
    while True:
        yield microbatch


def blocks() -> Iterator[tuple[torch.Tensor]]:
    for count in itertools.count():
        yield (torch.full((16 << 20,), count % 251, dtype=torch.uint8),)


WORKLOADS: dict[str, Callable[[], Iterator[Any]]] = {
    "tiny": tiny,
    "tokens": tokens,
    "images": images,
    "same images": same_images,
    "blocks": blocks,
}


class Stream(IterableDataset[Any]):
    """A workload as a dataset for torch's DataLoader."""

    def __init__(self, workload: str) -> None:
        self._workload = workload

    def __iter__(self) -> Iterator[Any]:
        return WORKLOADS[self._workload]()


class Factory:
    """A workload as a factory for ShardedDataLoader, with a generator for each shard, which may end after a count."""

    def __init__(self, workload: str, count: int | None = None) -> None:
        self._workload = workload
        self._count = count

    def __call__(self, shard: Any) -> Iterator[Any]:
        del shard
        microbatches = WORKLOADS[self._workload]()
        return microbatches if self._count is None else itertools.islice(microbatches, self._count)


class ShardSamples(Dataset[Any]):
    """Microbatches by index, each a clone of a workload's first one."""

    def __init__(self, workload: str, count: int) -> None:
        self._microbatch = next(WORKLOADS[workload]())
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        if isinstance(self._microbatch, torch.Tensor):
            return self._microbatch.clone()
        return tuple(tensor.clone() for tensor in self._microbatch)


def shard_loader(workload: str, count: int, _shard: Any) -> DataLoader[Any]:
    """Return a torch DataLoader over a shard's samples; with a workload and a count, a factory for ShardedDataLoader."""
    return DataLoader(ShardSamples(workload, count), batch_size=None)
