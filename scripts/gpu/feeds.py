"""The feeds: each opens a loader with a number of workers, and yields microbatches on the device without end."""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import workloads
from contestants import PREFETCHED, ours, torchs

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
    with torchs(workloads.Stream(workload), num_workers=num_workers, pin_memory=True) as loader:
        yield (_moved(microbatch) for microbatch in loader)


@contextmanager
def _ours(workload: str, num_workers: int) -> Generator[Iterator[Any]]:
    shards = [str(index) for index in range(4096)]
    options = {"num_shard_prefetches": num_workers, "num_microbatch_prefetches": PREFETCHED, "device": "cuda"}
    with ours(workloads.Factory(workload, _SHARD), shards, **options) as loader:
        yield (microbatch for _ in itertools.count() for microbatch in loader)


def _moved(microbatch: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.cuda(non_blocking=True) for tensor in microbatch]


FEEDS: dict[str, Feed] = {"on the device": _on_device, "torch, pinned": _torch, "ours": _ours}


@contextmanager
def opened(names: list[str], workload: str, num_workers: int) -> Generator[dict[str, Iterator[Any]]]:
    """Open several feeds at once, so that they can take turns."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(FEEDS[name](workload, num_workers)) for name in names}
