"""Endless streams of new microbatches. Every worker process imports this module."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

_MEBIBYTE = 1 << 20


def tokens(index: int) -> dict[str, torch.Tensor]:
    return {"tokens": torch.full((8, 2048), index), "labels": torch.full((8, 2048), index + 1)}


def images(index: int) -> dict[str, torch.Tensor]:
    return {"images": torch.full((32, 3, 224, 224), float(index)), "labels": torch.full((32,), index)}


def blocks(index: int) -> dict[str, torch.Tensor]:
    return {"block": torch.full((16 * _MEBIBYTE,), index % 251, dtype=torch.uint8)}


WORKLOADS: dict[str, Callable[[int], dict[str, torch.Tensor]]] = {"tokens": tokens, "images": images, "blocks": blocks}

_SHARD = 64


def num_bytes(workload: str) -> int:
    """Return the size of a microbatch."""
    return sum(tensor.nbytes for tensor in WORKLOADS[workload](0).values())


class Shards:
    """A factory for ShardedDataLoader, with 64 microbatches for each shard."""

    def __init__(self, workload: str) -> None:
        self._workload = workload

    def __call__(self, shard: Any) -> Iterator[dict[str, torch.Tensor]]:
        del shard
        return (WORKLOADS[self._workload](index) for index in range(_SHARD))


class Stream(IterableDataset[Any]):
    """A dataset with the same microbatches for torch's DataLoader."""

    def __init__(self, workload: str) -> None:
        self._workload = workload

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while True:
            for index in range(_SHARD):
                yield WORKLOADS[self._workload](index)
