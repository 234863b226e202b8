"""What a worker needs to start, and which worker this process is."""

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch

from fkat_data.registry import Registrations
from fkat_data.types import Profiler

StartMethod: TypeAlias = Literal["template", "spawn"]
START_METHODS: tuple[StartMethod, ...] = get_args(StartMethod)
"""How a worker process is started."""

WorkerKind: TypeAlias = Literal["processes", "threads"]
WORKER_KINDS: tuple[WorkerKind, ...] = get_args(WorkerKind)
"""Where microbatches are made: in processes of their own, or in threads of the trainer's."""


class WorkerSettings(NamedTuple):
    """What a worker needs to start.

    Attributes:
        registrations: What users have registered in the trainer. It is unpickled first.
        factory: Makes the iterable of a shard's microbatches.
        seed: The loader's seed.
        dp_rank: The loader's data-parallel rank.
        limit_bytes: Shared memory that the worker may take.
        profiler: The user's; the worker has its own copy.
        default_dtype: torch's default, as the trainer has it.
        is_digested: Whether to digest each microbatch.
        is_traced: Whether the trainer wants events of a timeline.
        num_threads: Threads that make the items of a microbatch.
        group: The trainer's rank and number of ranks in torch.distributed; None without a process group.
    """

    registrations: Registrations
    factory: Any
    seed: int
    dp_rank: int
    limit_bytes: int
    profiler: Profiler | None
    default_dtype: torch.dtype
    is_digested: bool
    is_traced: bool
    num_threads: int = 1
    group: tuple[int, int] | None = None


_entered: list[int] = []


def enter_worker(worker_index: int) -> None:
    """Record that this process is a worker.

    Args:
        worker_index: The worker's number among its loader's.
    """
    _entered[:] = [worker_index]


def current_worker() -> int | None:
    """Return the number of this worker among its loader's; None in a process that is none."""
    return _entered[0] if _entered else None
