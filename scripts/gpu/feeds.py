"""The feeds: each opens a loader with a number of workers, and yields microbatches on the device without end."""

import contextlib
import importlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import workloads
from torch.utils.data import DataLoader

_PREFETCHED = 8
#: Microbatches of a shard: workers take shards in turn.
_SHARD = 64
Feed = Callable[[str, int], AbstractContextManager[Iterator[Any]]]


@contextmanager
def _on_device(workload: str, num_workers: int) -> Generator[Iterator[Any]]:
    """(a): no loading; the microbatch is on the device already."""
    del num_workers
    yield itertools.repeat(_moved(next(workloads.WORKLOADS[workload]())))


@contextmanager
def _torch(workload: str, num_workers: int) -> Generator[Iterator[Any]]:
    """(b): torch's DataLoader with page-locked memory."""
    loader = DataLoader(
        workloads.Stream(workload),
        batch_size=None,
        num_workers=num_workers,
        prefetch_factor=_PREFETCHED,
        pin_memory=True,
        multiprocessing_context="spawn",
    )
    yield (_moved(microbatch) for microbatch in loader)


@contextmanager
def _ours(workload: str, num_workers: int) -> Generator[Iterator[Any]]:
    loader_type = importlib.import_module("fkat_data").ShardedDataLoader
    with loader_type(
        0,
        [str(index) for index in range(4096)],
        workloads.Factory(workload, _SHARD),
        num_shard_prefetches=num_workers,
        num_microbatch_prefetches=_PREFETCHED,
        device="cuda",
    ) as loader:
        yield (microbatch for _ in itertools.count() for microbatch in loader)


def _moved(microbatch: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.cuda(non_blocking=True) for tensor in microbatch]


FEEDS: dict[str, Feed] = {"on the device": _on_device, "torch, pinned": _torch, "ours": _ours}


@contextmanager
def opened(names: list[str], workload: str, num_workers: int) -> Generator[dict[str, Iterator[Any]]]:
    """Open several feeds at once, so that they can take turns."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(FEEDS[name](workload, num_workers)) for name in names}
