"""What the caller's thread makes while a loader's first workers start.

A microbatch is a function of its number, so it does not matter who makes it. The caller makes it of a copy: of what the
workers are sent, opened as a worker opens it. So the program's dataset stays as it is, whatever its items keep or open.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch

from fkat_data.engine.settings import WorkerPoolSettings
from fkat_data.engine.worker_group import WorkerGroup
from fkat_data.errors import StaleIteratorError
from fkat_data.errors.wording import shard_name
from fkat_data.observe.sink import EventSink
from fkat_data.observe.stages import StageClock, StageTimes
from fkat_data.plan.position import ShardFingerprint, Task
from fkat_data.runtime.interruption import genuine
from fkat_data.transport.codec import refuse_graph
from fkat_data.worker.collate import FreshCollate
from fkat_data.worker.inline import bytes_of, failure_of, item_of, made_as_in_worker
from fkat_data.worker.messages import (
    End,
    Failure,
    Item,
    pack_failure,
    remember_fingerprint,
    reportable,
    unpack_failure,
)
from fkat_data.worker.microbatch_source import MicrobatchSource, RandomAccessSource, SequentialSource
from fkat_data.worker.produce import OpenShard, Producer
from fkat_data.worker.settings import WorkerSettings, stand_in_for_worker, worker_info
from fkat_data.worker.worker import PipedWorker, Worker

_logger = logging.getLogger(__name__)


class _InOrderError(Exception):
    """A shard's microbatches are not made by their numbers."""


def _refuse_in_order(source: MicrobatchSource, kind: str) -> None:
    """Raise where a source makes no microbatch without those before it, or others in each process."""
    if isinstance(source, SequentialSource) or not cast("RandomAccessSource", source).draws_alike:
        raise _InOrderError(f"microbatches of {kind} are made in order")


class _Collate(FreshCollate):
    """Collates as in no worker: torch's own function takes shared memory in one, since it goes to another process."""

    def __call__(self, batch: Any) -> Any:
        with ExitStack() as contexts:
            stand_in_for_worker(contexts, None)
            return super().__call__(batch)


class _OpenedSettings:
    """What workers are sent, opened in the caller's process.

    Args:
        settings: What they are sent.
        clock: Measures what is made.
        report: As of a ``Producer``.
    """

    def __init__(
        self, settings: WorkerSettings, clock: StageClock, report: Callable[[int, ShardFingerprint], None]
    ) -> None:
        self._enter_stage = clock.enter_stage
        self._is_digested = settings.is_digested
        self._collate = _Collate()
        self._producer = Producer(
            settings.factory, settings.seed, settings.dp_rank, clock.enter_stage, collate=self._collate, report=report
        )
        self._shard: tuple[int, OpenShard] | None = None

    def leave_shard(self) -> None:
        """Open the shard again for the next microbatch: an interruption may have left it in any state."""
        self._shard = None

    def open_shard(self, task: Task, index: int) -> OpenShard:
        """Return the shard of a task, opened at a microbatch unless it is open.

        Raises:
            Exception: What opening it raises, or that its microbatches are not made by their numbers.
        """
        if self._shard is None or self._shard[0] != task.task_id:
            self._shard = None
            begun = task._replace(first_microbatch=index, digest=None)
            self._shard = task.task_id, OpenShard(begun, self._producer, is_shared=True, check=_refuse_in_order)
        return self._shard[1]

    def make(self, shard: OpenShard, task: Task, index: int) -> Item | End:
        """Make a microbatch of an open shard.

        Raises:
            Exception: What making it raises.
        """
        produced = shard.make(index)
        if produced is None:
            return End(task.task_id, index)
        item = item_of(task, *produced, self._collate, self._enter_stage, bytes_of, self._is_digested)
        _refuse_graphs(item.microbatch)
        return item


def _forget_tracebacks(error: BaseException) -> None:
    """Drop an error's frames: a dataset may keep what it has raised, and with the frames the loader."""
    errors, seen = [error], {id(error)}
    while errors:
        found = errors.pop()
        found.__traceback__ = None
        behind = [each for each in (found.__cause__, found.__context__) if each is not None and id(each) not in seen]
        seen.update(map(id, behind))
        errors += behind


def _refuse_graphs(value: Any) -> None:
    """Raise what a worker raises of a microbatch that has a graph."""
    if isinstance(value, torch.Tensor):
        refuse_graph(value)
    elif isinstance(value, (list, tuple, dict)):
        parts = cast("Any", value)
        for part in parts.values() if isinstance(value, dict) else parts:
            _refuse_graphs(part)


class StartupMaker:
    """Makes what the main thread would wait for, one microbatch after the other, until the first of the workers has begun.

    What the caller's process cannot make, the workers make, and what they raise comes in its place.

    Args:
        workers: The loader's, always the same list.
        open_settings: Opens what they are sent; None: that would take long.
        sink: Gets the time that it takes the caller.
        settings: The workers'.
        is_wanted: Whether the caller makes anything.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        open_settings: Callable[[], WorkerSettings | None],
        sink: EventSink,
        settings: WorkerPoolSettings,
        *,
        is_wanted: bool,
    ) -> None:
        self._workers = workers
        self._open_settings = open_settings
        self._sink = sink
        self._settings = settings
        self._is_wanted = is_wanted
        self.is_over: bool = True
        """Whether the caller makes nothing."""
        self.newest_task_id: int = -1
        """The newest task that the caller has made something of."""
        self.num_made: int = 0
        """Microbatches that the caller has made."""
        self._clock: StageClock | None = None
        self._dtype = torch.get_default_dtype()
        self._opened: _OpenedSettings | None = None
        self._info: Any = None
        self._fingerprints: dict[int, ShardFingerprint] = {}
        self._has_made = False
        # What no worker makes that begins from here on; the last call was interrupted if it is still there.
        self._claim: tuple[WorkerGroup, int, int] | None = None
        self._num_left = 0
        self._is_making = False

    def begin(self) -> None:
        """Make what the caller would wait for: the workers start."""
        self._dtype = torch.get_default_dtype()
        self._has_made = False
        self.is_over = not self._is_wanted

    def end(self) -> None:
        """Make nothing any more, and drop what was opened."""
        self.is_over = True
        self.leave()
        self._opened = self._info = None

    def leave(self) -> None:
        """Leave what is under way to others."""
        self._claim = None
        self._num_left += 1
        self._is_making = False
        if self._opened is not None:
            self._opened.leave_shard()

    def end_making(self) -> bool:
        """Record that an interrupted call is over; return whether it was one of ``make``, and has changed nothing.

        Its microbatch is anyone's again. Where a worker has begun behind it, none would make it, and the caller may be
        interrupted each time: then something has changed, and the caller makes nothing any more.
        """
        if not self._is_making:
            return False
        if self._claim is not None:
            group, task_id, index = self._claim
            group.leave_to_caller(task_id, index)
            if self._has_any_started():
                self._is_making = False  # first, as this call may be interrupted, too
                self.end()
                return False
        self.leave()
        return True

    def times(self) -> list[StageTimes]:
        """Return how the time was spent, if it was."""
        return [] if self._clock is None else [self._clock.times()]

    def fingerprint(self, task_id: int) -> ShardFingerprint | None:
        """Return what was found out of a task's payload; None: nothing."""
        return self._fingerprints.get(task_id)

    def make(self, group: WorkerGroup, task: Task, index: int) -> Item | End | Failure | None:
        """Make the next microbatch of a task; return None, and make nothing any more, where workers make it.

        Raises:
            StaleIteratorError: Another thread, or a signal's handler, closed the loader meanwhile.
        """
        if not self._workers:
            return None
        # In any other thread, the main one would draw from the generators meanwhile: the global ones are one for all.
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or self._has_any_started():
            self.end()
            return None
        num_left, began_s = self._num_left, time.perf_counter()
        self._is_making = True
        try:
            message = self._made(group, task, index)
        finally:
            self._sink.waited(began_s, time.perf_counter())
        if self._num_left != num_left:
            raise StaleIteratorError("the loader was closed while this iterator made a microbatch")
        self._is_making = False
        self._claim = None
        if message is None or isinstance(message, Failure):
            self.end()
        if message is None:
            return None
        if isinstance(message, Item):
            self._count(group, message)
        return group.take_made(message)

    def _count(self, group: WorkerGroup, item: Item) -> None:
        group.leave_to_caller(item.task_id, item.microbatch_index + 1)
        self._has_made = True
        self.newest_task_id = item.task_id
        self.num_made += 1
        if self._clock is not None:
            self._clock.count()

    def _has_any_started(self) -> bool:
        return any(isinstance(worker, PipedWorker) and worker.has_started for worker in self._workers)

    def _made(self, group: WorkerGroup, task: Task, index: int) -> Item | End | Failure | None:
        clock = self._clock_here()

        def enter(contexts: ExitStack) -> None:
            stand_in_for_worker(contexts, self._info)

        def make() -> Item | End | None:
            try:
                opened = self._opened
                if opened is None:
                    settings = self._open_settings()
                    if settings is None:
                        return None
                    opened = self._opened = _OpenedSettings(settings, clock, self._report)
                shard = opened.open_shard(task, index)
                if self._has_made:
                    # Workers that begin meanwhile go on behind it. Not with the first one: it may be what only another
                    # process can make.
                    self._claim = group, task.task_id, index
                    group.leave_to_caller(task.task_id, index + 1)
                return opened.make(shard, task, index)
            finally:
                self._info = worker_info()
                clock.enter_stage("")

        try:
            return made_as_in_worker(make, None, self._dtype, clock, enter)
        except genuine(Exception, SystemExit) as error:
            return self._given_up(group, task, index, reportable(error, "the dataset"))

    def _given_up(self, group: WorkerGroup, task: Task, index: int, error: Exception) -> Failure | None:
        """Leave a microbatch to the workers, unless one of them may have begun behind it."""
        failure: Failure | None = None
        if self._claim is not None:
            group.leave_to_caller(task.task_id, index)
            if self._has_any_started():
                failure = failure_of(task, error, index)
                # As of a worker: another object.
                failure = failure._replace(error=unpack_failure(pack_failure(failure.error)))
        if failure is None:
            _logger.debug(
                "workers make microbatch %d of %s, as the caller's thread does not: %s",
                index,
                shard_name(task.payload),
                error,
            )
        _forget_tracebacks(error)
        return failure

    def _report(self, task_id: int, fingerprint: ShardFingerprint) -> None:
        remember_fingerprint(self._fingerprints, task_id, fingerprint)

    def _clock_here(self) -> StageClock:
        if self._clock is None:
            self._clock = self._settings.production_clock("production, while workers start")
        return self._clock
