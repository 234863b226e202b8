"""The arguments of a ``fkat_data.DataLoader``, as its session and its sample source read them."""

import os
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch

from fkat_data.types import Profiler
from fkat_data.worker.settings import StartMethod, WorkerKind
from fkat_data.worker.windows import WindowFunction


class LoaderArguments(Protocol):
    """A DataLoader's arguments, which a program may set between two epochs; see ``fkat_data.DataLoader``."""

    dataset: Any
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Any
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    seed: int | None
    device: torch.device | str | None
    dp_rank: int | None
    share_workers: bool
    snapshot_every_n_steps: int
    memory_limit_bytes: int | None
    zero_copy: bool
    max_worker_restarts: int
    stall_warning_s: float
    start_method: StartMethod | None
    profiler: Profiler | None
    trace: str | os.PathLike[str] | None
    window_fn: WindowFunction | Sequence[WindowFunction] | None
    window_size: int
    on_sample_error: Literal["raise", "skip"]
    max_skipped_samples: int
    workers: WorkerKind

    @property
    def multiprocessing_context(self) -> Any:
        """What torch makes of the argument: a context, or None."""
        ...

    @property
    def has_windows(self) -> bool:
        """Whether microbatches are cut from the rows of windows."""
        ...

    @property
    def window_functions(self) -> Sequence[WindowFunction]:
        """The window functions, in the order of their calls."""
        ...


def samplers_of(loader: LoaderArguments) -> list[Any]:
    """Return the samplers of a DataLoader: its sampler, its batch sampler, and the sampler below that."""
    found = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    return [sampler for sampler in found if sampler is not None]


def outermost_sampler(loader: LoaderArguments) -> Any:
    """Return what a DataLoader takes indices, or lists of them, from."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler
