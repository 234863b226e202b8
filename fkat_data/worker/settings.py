"""What a worker needs to start, and which worker this process is."""

import multiprocessing
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast, get_args, runtime_checkable

import torch
from torch.utils import data as torch_data

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.registry import Registrations
from fkat_data.transport.memory_limit import WorkerMemory
from fkat_data.types import Profiler

StartMethod: TypeAlias = Literal["template", "spawn", "fork"]
"""How a worker process is started."""
START_METHODS: tuple[StartMethod, ...] = get_args(StartMethod)
FORK_OR_TEMPLATE: str = "fork or template"
"""By a fork of the program, unless it cannot be forked, or its forks hang at their start: then from the template."""


@runtime_checkable
class RemoteBackend(Protocol):
    """Starts workers elsewhere, such as ``fkat_data.ray.Actors``."""

    def ship(self, payload: bytes) -> Any:
        """Return what a worker gets the payload from, which is sent once; join what the workers run on.

        Raises:
            ConfigurationError: There is nothing that they can run on.
        """
        ...

    def start(self, shipment: Any, worker_index: int, name: str) -> Any:
        """Return a ``fkat_data.worker.remote.RemoteHandle``: a worker that starts, which is not waited for."""
        ...

    def living(self, handles: "list[Any | None]") -> "list[Any | None]":
        """Return what ``start`` has returned, with None for those that are known to be gone."""
        ...


CALLS_PER_ACTOR = 2
"""Threads that ask one worker elsewhere: it has the next call when it has answered one."""

LocalKind: TypeAlias = Literal["processes", "threads"]
WorkerKind: TypeAlias = LocalKind | RemoteBackend
"""Where microbatches are made: in processes of their own, in threads of the trainer's, or elsewhere."""


def worker_kind(value: object) -> WorkerKind:
    """Return the argument ``workers`` if it says where microbatches are made.

    Raises:
        ConfigurationError: It does not.
    """
    if isinstance(value, RemoteBackend):
        return value
    if value in get_args(LocalKind):
        return cast("WorkerKind", value)
    raise ConfigurationError("workers", value, "'processes', 'threads', or fkat_data.ray.Actors(...)")


class ProgramKey:
    """What processes of one program know each other by: the managers of ``multiprocessing`` ask for it.

    Where it is unpickled, it becomes the process's own.
    """

    def __reduce__(self) -> Any:
        return _take_over, (bytes(multiprocessing.current_process().authkey),)


def _take_over(key: bytes) -> ProgramKey:
    multiprocessing.current_process().authkey = key
    return ProgramKey()


class WorkerSettings(NamedTuple):
    """What a worker needs to start. What comes first is unpickled first.

    Attributes:
        key: The program's; None for a worker of another one.
        registrations: What users have registered in the trainer.
        factory: Makes the iterable of a shard's microbatches.
        seed: The loader's seed.
        dp_rank: The loader's data-parallel rank.
        memory: Shared memory that the worker may take.
        profiler: The user's; the worker has its own copy.
        default_dtype: torch's default, as the trainer has it.
        is_digested: Whether to digest each microbatch.
        is_traced: Whether the trainer wants events of a timeline.
        group: The trainer's rank and number of ranks in torch.distributed; None without a process group.
        loader_name: The loader's class, for the names of ranges.
    """

    key: ProgramKey | None
    registrations: Registrations
    factory: Any
    seed: int
    dp_rank: int
    memory: WorkerMemory
    profiler: Profiler | None
    default_dtype: torch.dtype
    is_digested: bool
    is_traced: bool
    group: tuple[int, int] | None = None
    loader_name: str = "ShardedDataLoader"


_WORKER: Any = getattr(getattr(torch_data, "_utils", None), "worker", None)
_entered: list[int] = []


def enter_worker(worker_index: int) -> None:
    """Record that this process is a worker.

    Args:
        worker_index: The worker's number among its loader's.
    """
    _entered[:] = [worker_index]
    # As torch's workers are called: programs tell them from "MainProcess" by it, and logs show it.
    multiprocessing.current_process().name = f"Process-{worker_index + 1}"


def stand_in_for_worker(contexts: ExitStack, info: Any) -> None:
    """Let this process be the first worker for what asks, until the contexts are left: the caller makes what it would.

    Args:
        contexts: Undo it.
        info: What ``torch.utils.data.get_worker_info`` returns; None: that is to be found out.
    """
    entered, before = list(_entered), worker_info()
    contexts.callback(_stand, entered, before)
    _stand([0], info)


def worker_info() -> Any:
    """Return what ``torch.utils.data.get_worker_info`` returns."""
    return getattr(_WORKER, "_worker_info", None)


def _stand(entered: list[int], info: Any) -> None:
    _entered[:] = entered
    if _WORKER is not None:
        _WORKER._worker_info = info  # noqa: SLF001 - where torch.utils.data.get_worker_info looks


def current_worker() -> int | None:
    """Return the number of this worker among its loader's; None in a process that is none."""
    return _entered[0] if _entered else None
