"""The workers of one loader: started together, ended together."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from fkat_data.engine.idle_workers import WorkerUse, room_for
from fkat_data.engine.remaker import Remaker
from fkat_data.engine.settings import WorkerPoolSettings
from fkat_data.engine.startup import StartupMaker
from fkat_data.engine.worker_group import WorkerGroup
from fkat_data.errors import ConfigurationError, WorkerError, arguments
from fkat_data.observe.durations import Durations, added_durations
from fkat_data.observe.events import COPY_THREAD, PRODUCTION_THREAD, EventRecorder
from fkat_data.observe.sink import EventSink
from fkat_data.observe.stages import StageClock, StageTimes, added_times, new_page
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.launch import current_group, ranks_on_this_node
from fkat_data.runtime.machine import refuse_workers
from fkat_data.runtime.registry import Registrations
from fkat_data.transport.memory_limit import SMALLEST_SHARE_BYTES, MemoryLimit, default_limit
from fkat_data.worker.inline import InlineWorker
from fkat_data.worker.produce import EpochAware, Producer
from fkat_data.worker.settings import CALLS_PER_ACTOR, ProgramKey, RemoteBackend, WorkerSettings
from fkat_data.worker.threads import ThreadWorker
from fkat_data.worker.worker import PipedWorker, Worker, WorkerReport

if TYPE_CHECKING:  # only where worker processes are wanted: Windows has none
    from fkat_data.engine.worker_starter import WorkerStarter
    from fkat_data.worker.process.claim_table import ClaimTable
    from fkat_data.worker.process.shared_worker import ProducerLink

_logger = logging.getLogger(__name__)

_GRACE_S = 1.0
_LAST_EVENTS_S = 0.2
_HUNG = "workers are forks of this program, and hang at their start, maybe by a lock that another of its threads held"


class WorkerPool:
    """Starts and ends a loader's workers.

    Args:
        settings: The workers' settings.
        sink: Gets the trainer's waits for them.

    Raises:
        ConfigurationError: The memory limit is too small, the factory cannot be sent to a worker, or this system has no
            worker processes.
    """

    def __init__(self, settings: WorkerPoolSettings, sink: EventSink) -> None:
        if settings.limit_bytes is not None:
            smallest = SMALLEST_SHARE_BYTES * settings.num_workers
            arguments.integer("memory_limit_bytes", settings.limit_bytes, minimum=smallest)
        self._settings = settings
        self._sink = sink
        self._owner_pid = os.getpid()
        self._starter = _starter(settings, sink) if settings.kind == "processes" else None
        self.workers: list[Worker] = []
        """The workers that run, in the order of their numbers; always the same list."""
        # Those that are to be ended: an interrupted call has left some for the next one.
        self._ending: list[Worker] = []
        # To the rank whose workers make for this one; None: it has its own.
        shared = settings.shared
        self._link: ProducerLink | None = None
        if shared is not None and shared.is_first is False and not shared.why_left:
            self._link = shared
        self.groups: list[WorkerGroup] = self._groups()
        """The groups that the workers form."""
        self.use: WorkerUse | None = self._own_use()
        """Whether the loader needs its worker processes now; None: it has none."""
        self.startup: StartupMaker = StartupMaker(
            self.workers,
            _nothing_opened if self._starter is None else self._starter.opened,
            sink,
            settings,
            is_wanted=settings.is_startup_shared and self._starter is not None and settings.shared is None,
        )
        """Makes microbatches in the caller's thread while worker processes start."""
        self._past: list[StageTimes] = []
        self._past_made_on: Mapping[str, Durations] = {}
        # What workers elsewhere get their settings from, and the definitions in them, which microbatches refer to.
        self._shipment: Any = None
        self._definitions: list[Any] = []

    def _groups(self) -> list[WorkerGroup]:
        settings = self._settings
        # The threads of a group are one worker, which gives their microbatches in order, and so does another rank.
        size = settings.group_size if settings.kind == "processes" and self._link is None else 1
        groups: list[WorkerGroup] = []
        for index in range(1 if settings.kind is None else settings.num_groups):
            # It does not know the pool, which is gone with the loader that is dropped.
            table = partial(self._starter.claim_table, index) if self._starter is not None else _no_claim_table
            groups.append(WorkerGroup(self.workers, index * size, size, table, self._sink))
        return groups

    def _own_use(self) -> WorkerUse | None:
        if self._starter is None or self._link is not None:
            return None
        return WorkerUse(self, has_process_state=self._settings.has_process_state)

    @property
    def num_workers(self) -> int:
        """Workers that make microbatches ahead, when all of them run; 0: the caller's thread makes them."""
        return 0 if self._settings.kind is None else self._settings.num_workers

    @cached_property
    def memory_limit(self) -> MemoryLimit:
        """Shared memory that the workers may take together."""
        # Not before it is needed: without processes, the first microbatch need not wait for a look at the memory.
        limit_bytes = self._settings.limit_bytes
        if limit_bytes is not None:
            return MemoryLimit(int(limit_bytes), int(limit_bytes))
        return default_limit(self._settings.num_workers, ranks_on_this_node())

    @property
    def group_size(self) -> int:
        """Workers that make a task together."""
        return self._settings.group_size

    def reports(self) -> list[WorkerReport]:
        """Return the reports of the workers that run."""
        return [worker.report() for worker in list(self.workers)]

    def times(self, reports: Iterable[WorkerReport]) -> StageTimes:
        """Return the times of all workers: of these, and of past ones."""
        return added_times([*self._past, *self.startup.times(), *(report.times for report in reports)])

    @property
    def opened_alone(self) -> str:
        """Why each worker has opened the dataset for itself; empty where they share what was opened once."""
        return "" if self._starter is None else self._starter.opened_alone

    def made_on(self, reports: Iterable[WorkerReport]) -> Mapping[str, Durations]:
        """Return how long microbatches took, by machine, of workers elsewhere: of these, and of past ones."""
        return added_durations(self._past_made_on, *(report.made_on for report in reports))

    def start(self) -> None:
        """Start the workers that do not run, those that died included; do not wait for them.

        Until ``rest``, other loaders leave them alone.

        Raises:
            ConfigurationError: The factory cannot be sent to a worker.
            OSError: No process could be started.
            RuntimeError: This process is a fork of the loader's.
        """
        if os.getpid() != self._owner_pid:
            raise RuntimeError(
                f"this loader belongs to process {self._owner_pid}; make one in process {os.getpid()}, "
                "which was forked from it"
            )
        if not self.workers:
            self.startup.begin()
        self._start_missing()

    def _start_missing(self) -> None:
        settings = self._settings
        if self.use is not None:
            self.use.begin()
        if self._link is not None:
            self._connect_missing(self._link)
        elif self._starter is not None:
            if self._starter.has_lost_program:
                _logger.warning("the process that workers were forked from has ended: this program is forked again")
                self.kill()
            missing = [index for index, worker in enumerate(self.workers) if not worker.is_alive]
            self._spawn([*missing, *range(len(self.workers), settings.num_workers)])
        elif settings.kind is None:
            if not self.workers:
                self.workers.append(self._inline_worker())
        else:
            for index in range(settings.num_groups):
                if index == len(self.workers):
                    self.workers.append(self._worker_of_threads(index, num_probes=int(index == 0)))
                elif not self.workers[index].is_alive:
                    self._succeed(index, self._worker_of_threads(index, num_probes=0, before=self.workers[index]))

    def _connect_missing(self, link: "ProducerLink") -> None:
        from fkat_data.worker.process.shared_worker import SharedWorker  # noqa: PLC0415 - most loaders have none

        for _ in self.groups[len(self.workers) :]:
            self.workers.append(SharedWorker(link, self._sink, is_zero_copy=self._settings.is_zero_copy))

    def replace(self, group: WorkerGroup) -> None:
        """Replace the workers of a group that are gone by new ones; do not wait for them."""
        if self._link is not None:
            raise WorkerError("another rank has the workers, which this one cannot replace")
        if self._starter is None:
            self.start()
            return
        dead = [self.workers.index(worker) for worker in group.gone]
        for index in dead:
            self.workers[index].close(0.0)
        self._spawn(dead)

    def leave_hung_fork(self) -> bool:
        """Return whether ``restart`` is to replace the workers.

        Those that are forks of this program seem to hang at their start, or another rank no longer makes for this one.
        """
        if self._link is not None:
            return bool(self._link.why_left)
        starter = self._starter
        if starter is None or not starter.may_hang or any(worker.has_started for worker in _piped(self.workers)):
            return False
        try:
            starter.leave_fork(*self._to_ship())
        except genuine(ConfigurationError) as error:
            _logger.warning("%s; they stay, because the template cannot start them: %s", _HUNG, error)
            return False
        _logger.warning(
            "%s; others start from the template, which has not what this program has set. start_method='fork' waits "
            "longer, and start_method='template' begins so",
            _HUNG,
        )
        return True

    def restart(self) -> None:
        """End all workers at once, and start others; do not wait for them."""
        self._end_workers()
        self._close_tables()
        if self._link is not None:
            # What has arrived is lost, and the first rank does not send it again.
            self._link.leave("a call was interrupted")
            self._link = None
            self.groups[:] = self._groups()
            self.use = self._own_use()
        if self._starter is None:
            self.start()
        else:
            self._start_missing()

    def rest(self) -> None:
        """Let other loaders have the workers' room until ``start``."""
        if self.use is not None:
            self.use.end()

    def close(self) -> None:
        """End the workers: kill those that do not leave within a second. Any number of calls."""
        self._leave(self._release)

    def give_up(self) -> None:
        """End the workers, as ``close`` does; those that ``start`` starts get the same settings."""
        if self._settings.timeline is not None:
            workers, deadline_s = _piped(self.workers), time.monotonic() + _LAST_EVENTS_S
            self.dismiss()
            for worker in workers:
                worker.take_events(deadline_s)
        self._leave(self._let_go)

    def dismiss(self) -> None:
        """Let worker processes leave as soon as they look at their pipes, and send their last events before."""
        for worker in _piped(self.workers):
            worker.dismiss()

    def _leave(self, at_end: Callable[[], None]) -> None:
        self.startup.end()
        self._dismiss_workers()
        deadline_s = time.monotonic() + _GRACE_S
        with contextlib.ExitStack() as stack:  # Ctrl-C during the wait for one must not spare the others
            stack.callback(at_end)
            stack.callback(self._end_workers)
            for worker in list(self._ending):
                stack.callback(_close_until, worker, deadline_s)
            for worker in list(self._ending):
                worker.hang_up()

    def kill(self) -> None:
        """End the workers at once."""
        self.startup.end()
        self._end_workers()
        self._release()

    def _dismiss_workers(self) -> None:
        workers = list(self.workers)
        self._ending.extend(workers)
        self.workers.clear()
        self._remember(workers)

    def _end_workers(self) -> None:
        self._dismiss_workers()
        while self._ending:
            self._ending[-1].close(0.0)
            with suppress(IndexError):  # a signal handler, or another thread, was quicker
                self._ending.pop()

    def _remember(self, workers: Sequence[Worker]) -> None:
        reports = [worker.report() for worker in workers]
        self._past_made_on = self.made_on(reports)
        self._past = [added_times([*self._past, *(report.times for report in reports)])]

    def _inline_worker(self) -> InlineWorker:
        settings = self._settings
        clock = settings.production_clock("production")
        producer = Producer(settings.factory, settings.seed, settings.dp_rank, clock.enter_stage)
        return InlineWorker(producer, self._sink, clock, is_digested=settings.is_digested)

    def remaker(self) -> Remaker:
        """Return what makes single microbatches in the caller's thread: of a copy of what workers get, where there is one."""
        settings = self._settings

        def open_factory() -> Any:
            opened = None if self._starter is None else self._starter.opened()
            factory = settings.factory if opened is None else opened.factory
            is_beside_threads = settings.kind is not None and opened is None and isinstance(factory, EpochAware)
            return factory.for_threads() if is_beside_threads else factory

        return Remaker(open_factory, settings, self._sink)

    def _worker_of_threads(self, index: int, num_probes: int, before: "Worker | None" = None) -> ThreadWorker:
        settings, size = self._settings, self._settings.group_size
        num_threads = size * (CALLS_PER_ACTOR if isinstance(settings.kind, RemoteBackend) else 1)
        names = [f"fkat_data worker {index * num_threads + number}" for number in range(num_threads)]
        recorders: list[EventRecorder | None] = [None] * (num_threads + 1)
        if settings.timeline is not None:
            first = COPY_THREAD + 1 + index * num_threads
            tracks = [(first + number, name) for number, name in enumerate(names)]
            recorders = [settings.timeline.recorder_of(*track) for track in (*tracks, (PRODUCTION_THREAD, "opening"))]
        clocks = [StageClock(new_page(), recorder=recorder) for recorder in recorders]
        limit_bytes = self.memory_limit.prefetch_bytes // settings.num_groups
        if isinstance(settings.kind, RemoteBackend):
            from fkat_data.worker.remote import RemoteWorker  # noqa: PLC0415 - most loaders have none

            shipment = self._sent(settings.kind)
            kept = before.hand_over() if isinstance(before, RemoteWorker) else [None] * size
            handles = [
                handle or settings.kind.start(shipment, number, f"rank {settings.dp_rank}, worker {number}")
                for number, handle in enumerate(settings.kind.living(kept), index * size)
            ]
            return RemoteWorker(handles, self._sink, clocks, limit_bytes, names)
        factory = settings.factory.for_threads() if isinstance(settings.factory, EpochAware) else settings.factory
        producer = Producer(factory, settings.seed, settings.dp_rank, enter_stage=_enter_nothing)
        return ThreadWorker(
            producer, self._sink, clocks, limit_bytes, names, num_probes, is_digested=settings.is_digested
        )

    def _sent(self, elsewhere: RemoteBackend) -> Any:
        """Return what workers elsewhere get their settings from."""
        if self._shipment is None:
            from fkat_data.worker.process.ship import shipped  # noqa: PLC0415 - it imports what Windows does not have

            settings, users, instead = self._to_ship()
            payload, self._definitions = shipped(settings, users, instead)
            self._shipment = elsewhere.ship(payload)
        return self._shipment

    def _succeed(self, index: int, worker: Worker) -> None:
        """Let a worker replace one that is gone."""
        before, self.workers[index] = self.workers[index], worker
        self._ending.append(before)
        before.close(0.0)
        self._remember([before])
        self._ending.remove(before)

    def _let_go(self) -> None:
        self._close_tables()
        if self._starter is not None:
            self._starter.end_spare_parent()

    def _close_tables(self) -> None:
        if self._starter is not None:
            self._starter.close_tables()

    def _release(self) -> None:
        self._shipment = None
        if self._starter is not None:
            self._starter.release()

    def _spawn(self, indices: Sequence[int]) -> None:
        """Start the workers at these indices, each after the last one or instead of a dead one."""
        starter = self._starter
        if starter is None or self.use is None or not indices:
            return
        with room_for(self.use, len(indices)):
            self._spawn_where_there_is_room(starter, indices)

    def _spawn_where_there_is_room(self, starter: "WorkerStarter", indices: Sequence[int]) -> None:
        prefetch_bytes = self.memory_limit.of_worker(self._settings.num_workers).prefetch_bytes
        if not starter.is_ready:
            starter.ship(*self._to_ship())
        try:
            server = starter.server()
            for index in indices:
                worker = starter.start(index, prefetch_bytes, server)
                if index < len(self.workers):
                    self._succeed(index, worker)
                else:
                    self.workers.append(worker)
        except BaseException:
            self.kill()
            raise

    def _to_ship(self) -> tuple[WorkerSettings, dict[str, Any], str]:
        """Return what workers start with, the user's objects in it, and what needs none of it."""
        settings = self._settings
        registrations = Registrations()
        sent = WorkerSettings(
            key=ProgramKey() if settings.kind == "processes" else None,
            registrations=registrations,
            factory=settings.factory,
            seed=settings.seed,
            dp_rank=settings.dp_rank,
            memory=self.memory_limit.of_worker(settings.num_workers),
            profiler=settings.profiler,
            default_dtype=torch.get_default_dtype(),
            is_digested=settings.is_digested,
            is_traced=settings.timeline is not None,
            group=current_group(),
            loader_name=settings.loader_name,
        )
        users = {**settings.user_objects, "profiler": settings.profiler, "registered": registrations.entries()}
        instead = "{}={}".format(*settings.in_process_argument)
        can_fork = settings.kind == "processes" and sys.platform == "linux"
        return sent, users, f"{instead}, or start_method='fork', which pickles nothing" if can_fork else instead


def prepare_template(start_method: str | None) -> None:
    """Start the process that worker processes are forked from, if none runs; do not wait for it.

    Args:
        start_method: The loader's; None: as this system allows.

    Raises:
        ConfigurationError: This system does not allow the start method.
    """
    # It imports what Windows does not have.
    from fkat_data.worker.process.forkserver import find_template, uses_template  # noqa: PLC0415 - see above

    if uses_template(start_method):
        find_template()


def _starter(settings: WorkerPoolSettings, sink: EventSink) -> "WorkerStarter":
    argument, value = settings.in_process_argument
    refuse_workers(argument, True if value is False else settings.num_workers, value)
    from fkat_data.engine.worker_starter import WorkerStarter  # noqa: PLC0415 - it imports what Windows does not have

    return WorkerStarter(settings, sink)


def _no_claim_table() -> "ClaimTable":
    raise RuntimeError("a worker in the caller's thread has no table")


def _nothing_opened() -> None:
    """Open nothing: no worker process is sent anything."""


def _enter_nothing(stage: str, index: int = -1, label: str = "") -> None:
    """Measure nothing: what has a clock marks there instead."""


def _piped(workers: Iterable[Worker]) -> list[PipedWorker]:
    return [worker for worker in list(workers) if isinstance(worker, PipedWorker)]


def _close_until(worker: Worker, deadline_s: float) -> None:
    worker.close(max(0.0, deadline_s - time.monotonic()))
