"""The settings of an engine and its workers, checked by the loader whose arguments they are."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fkat_data.engine.recovery import Recovery
from fkat_data.observe.events import PRODUCTION_THREAD
from fkat_data.observe.profile import WorkerProfile
from fkat_data.observe.stages import StageClock, new_page
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.observe.timeline import Timeline
from fkat_data.types import Profiler
from fkat_data.worker.settings import WorkerKind

if TYPE_CHECKING:  # Windows has no worker processes
    from fkat_data.worker.process.shared_worker import ProducerLink
    from fkat_data.worker.process.shared_workers import SharedWorkers


class WorkerPoolSettings(NamedTuple):
    """The settings of a loader's workers.

    Attributes:
        factory: Makes the iterable of a shard's microbatches.
        seed: The loader's seed.
        dp_rank: The loader's data-parallel rank.
        num_groups: Groups of workers; each makes one shard at a time.
        group_size: Workers of a group.
        limit_bytes: Shared memory of all of them, or what may lie ready of threads; None for the default.
        profiler: The user's; each worker gets a copy.
        kind: Where they are; None: there is one, in the caller's thread.
        is_zero_copy: Whether microbatches are views of shared memory.
        is_digested: Whether workers digest each microbatch.
        timeline: Where events of the workers go; None: they send none.
        start_method: How worker processes are started; None: as this system allows.
        user_objects: The user's objects in the factory, by the names of their arguments: for errors that name the one
            which cannot be pickled.
        in_process_argument: Name and value of the loader's argument by which it works without processes: for errors.
        has_process_state: Whether worker processes have state that the program cannot make again: they are not ended to
            make room for other loaders.
        loader_name: The loader's class, for the names of ranges and the titles of processes.
        is_startup_shared: Whether the caller's thread makes microbatches until the first worker process has begun.
        shared: This rank's end of the connections to those that share the workers; None: they are this rank's alone.
    """

    factory: Any
    seed: int
    dp_rank: int
    num_groups: int
    group_size: int
    limit_bytes: int | None
    profiler: Profiler | None
    kind: WorkerKind | None
    is_zero_copy: bool
    is_digested: bool
    timeline: Timeline | None = None
    start_method: str | None = None
    user_objects: Mapping[str, Any] = MappingProxyType({})
    in_process_argument: tuple[str, object] = ("multiprocessing", False)
    has_process_state: bool = False
    loader_name: str = "ShardedDataLoader"
    is_startup_shared: bool = False
    shared: "SharedWorkers | ProducerLink | None" = None

    @property
    def num_workers(self) -> int:
        """Workers, when all of them run; at least 1."""
        return 1 if self.kind is None else self.num_groups * self.group_size

    @property
    def shared_by_first(self) -> "SharedWorkers | None":
        """What passes microbatches on to the ranks that share the workers; None: no other rank gets them from this one."""
        return self.shared if self.shared is not None and self.shared.is_first is True else None

    def production_clock(self, track: str) -> StageClock:
        """Return what measures production in the caller's thread, which has a track of this name in the timeline."""
        recorder = None if self.timeline is None else self.timeline.recorder_of(PRODUCTION_THREAD, track)
        return StageClock(new_page(), WorkerProfile(self.profiler, None, self.loader_name), recorder)


class EngineSettings(NamedTuple):
    """How an engine works.

    Attributes:
        workers: The workers' settings.
        num_tasks_ahead: Tasks in work ahead of the current one.
        num_microbatches_ahead: Microbatches made and not delivered, for each task; -1: as many as help.
        recovery: What may be done about faults.
        device: Where microbatches are delivered; None: as views on the CPU.
        statistics_type: Says what limits the loop in the terms of the loader's class.
    """

    workers: WorkerPoolSettings
    num_tasks_ahead: int
    num_microbatches_ahead: int
    recovery: Recovery
    device: torch.device | str | None = None
    statistics_type: type[LoaderStatistics] = LoaderStatistics
