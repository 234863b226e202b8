"""Tasks in work, and their microbatches in order.

A group of workers does its tasks in the order of their tickets. Where one task follows the other, ticket *t* belongs to
group *t mod number of groups*; where tasks take turns, each has a group of its own. So the next microbatch is the next
one of the group whose turn it is: nothing has to be sorted here.
"""

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from fkat_data.errors import ReplayMismatchError, StaleIteratorError, WorkerDiedError, WorkerError, WorkerStalledError
from fkat_data.interruption import genuine
from fkat_data.loader.look_ahead import LookAhead
from fkat_data.loader.recovery import Recovery, Remedy, Restarts, SampleSkips, ShardSkips, WaitClock
from fkat_data.loader.shard_lengths import ShardLengths
from fkat_data.loader.shortages import Shortages
from fkat_data.loader.startup import StartupMaker
from fkat_data.loader.worker_group import WorkerGroup, left_out_before
from fkat_data.plan.position import START, Position, ShardFingerprint, Task, TaskOrigin
from fkat_data.plan.shard_plan import Plan
from fkat_data.sample_errors import early_end
from fkat_data.wording import add_note
from fkat_data.worker.messages import (
    NO_LIMIT,
    NUM_TASKS,
    End,
    Failure,
    Item,
    MemoryShortage,
    Message,
    MicrobatchRun,
    ShardTrailer,
    WithPlanUpdate,
    WorkerGone,
)
from fkat_data.worker.worker import Worker


class HungStartError(Exception):
    """All workers hang at their start, and are to be replaced."""


class Arrival(NamedTuple):
    """The next microbatch.

    Attributes:
        microbatch: What the user's DataLoader yielded.
        after: The position after it.
        size_bytes: Bytes of its tensors and arrays that were copied.
        digest: Of its content; 0 if the loader needs none.
    """

    microbatch: Any
    after: Position
    size_bytes: int
    digest: int


class TaskEnd(NamedTuple):
    """The current task had nothing (more) to give.

    Attributes:
        after: The position after it.
    """

    after: Position


class Raised(NamedTuple):
    """An error where the next microbatch would be; it stays there.

    Attributes:
        error: The user's, or the loader's.
    """

    error: BaseException


logger: logging.Logger = logging.getLogger(__name__)

# Allowances count on from here, and travel in 64 bits: `sys.maxsize` for "all" must not overflow them.
_MOST_AHEAD = 1 << 40


class InFlightTask:
    """A task that is assigned to workers, with its messages that have arrived and were not handed out.

    Args:
        task: The task.
        group: Makes its microbatches.
        allowance: The first microbatch that may not be made yet.
    """

    __slots__ = (
        *("allowance", "arrived", "leftover_rows", "delivered", "inbox", "group"),
        *("last_digest", "learn_at", "left_out", "rest", "task"),
    )

    def __init__(self, task: Task, group: WorkerGroup, allowance: int) -> None:
        self.task: Task = task
        self.group: WorkerGroup = group
        self.inbox: Worker | WorkerGroup = group.inbox
        """What gives the next message and takes allowances."""
        self.allowance: int = allowance
        """The first microbatch that may not be made yet."""
        self.arrived: deque[Item | End | Failure] = deque()
        """Messages that were not handed out, in order."""
        self.delivered: int = task.first_microbatch
        """The next microbatch to hand out."""
        self.last_digest: int | None = None
        """Of the microbatch before it, if it is known."""
        self.learn_at: int = 0
        """The delivery from which the look-ahead learns next."""
        self.rest: MicrobatchRun | None = None
        """What has come together with the first message in ``arrived``, or the one that was just handed out."""
        self.leftover_rows: bytes | None = None
        """What the task has left for the one behind it, once it is known."""
        self.left_out: tuple[int, ...] = task.left_out
        """Samples that were left out before the next microbatch to hand out."""

    @property
    def num_arrived(self) -> int:
        """Microbatches that have arrived and were not handed out."""
        # Another thread may ask while the trainer's thread changes them: each is read in one step.
        rest, arrived = self.rest, list(self.arrived)
        num_together = 0 if rest is None else len(rest.microbatches) - 1
        return num_together + sum(isinstance(message, Item) and not _is_end(message) for message in arrived)

    def begin_turn(self) -> None:
        """Hear the group from here on as it is now."""
        self.inbox = self.group.inbox

    def allow(self, allowance: int, *, is_ahead: bool = False, is_new: bool = False) -> None:
        """Let the task be made up to a microbatch, unless it may go as far.

        Args:
            allowance: The first microbatch that may not be made yet.
            is_ahead: Whether the task comes after the one whose microbatches are next.
            is_new: Whether to say it in any case.
        """
        if allowance > self.allowance or is_new:
            self.allowance = allowance
            if is_ahead:
                self.group.allow(self.task.ticket, allowance, is_ahead=True)
            else:
                self.inbox.allow(self.task.ticket, allowance)

    def keep(self, message: Item | End | Failure | MicrobatchRun) -> Item | End | Failure:
        """Keep what has arrived behind all else; return the first of it."""
        if isinstance(message, MicrobatchRun):
            if message.microbatches:
                self.rest = message
            message = message.first()
        self.arrived.append(message)
        return message

    def spread(self) -> None:
        """Keep what has come together as the messages that it stands for."""
        rest, self.rest = self.rest, None
        if rest is not None:
            self.arrived.extend(rest.behind_first())

    def take_run(self) -> list[Any]:
        """Return the microbatches that have come together with the one just handed out, as handed out as well."""
        rest, self.rest = self.rest, None
        if rest is None:
            return []
        self.arrived.append(rest.behind)
        self.delivered += len(rest.microbatches) - 1
        self.last_digest = rest.digests[-1]
        return rest.microbatches[1:]

    def learn_after(self, count: int) -> None:
        """Have the look-ahead learn from the delivery after ``count`` of them."""
        self.learn_at = self.delivered + count


class Prefetcher:
    """Keeps tasks in work ahead of the caller, and hands out their microbatches in order.

    Args:
        plan: The ordered work.
        groups: The groups of workers that do it.
        replace: Replaces the dead workers of a group.
        release: Releases what only copies to a device still hold: the caller is not to blame for that.
        recovery: What may be done about faults.
        num_tasks_ahead: Tasks in work ahead of the current one.
        num_microbatches_ahead: Microbatches produced and not delivered, for each task; -1: as many as help.
        lengths: Gets the lengths of shards that end; None: nothing asks for them.
        startup: Makes what the caller would wait for while workers start.
        leave_hung_workers: Returns whether all workers hang at their start, and are to be replaced.
    """

    def __init__(
        self,
        plan: Plan,
        groups: Sequence[WorkerGroup],
        replace: Callable[[WorkerGroup], None],
        release: Callable[[], None],
        recovery: Recovery,
        num_tasks_ahead: int,
        num_microbatches_ahead: int,
        lengths: ShardLengths | None,
        startup: StartupMaker,
        leave_hung_workers: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._groups = groups
        self._startup = startup
        self._leave_hung_workers = leave_hung_workers
        self._replace = replace
        self._recovery = recovery
        self._first_interval_s = recovery.wait_clock().interval_s
        self.restarts: Restarts = Restarts(recovery.max_worker_restarts)
        """How often a dead worker was replaced."""
        self.skips: ShardSkips = ShardSkips(recovery.max_skipped_shards, skips=recovery.skips_shards)
        """Which failing shards were skipped."""
        self.sample_skips: SampleSkips = SampleSkips()
        """Which samples of shards were left out."""
        self._recorder = plan if plan.takes_updates else self.sample_skips
        self._num_tasks_ahead = num_tasks_ahead
        self._num_microbatches_ahead = min(num_microbatches_ahead, _MOST_AHEAD)
        self._window: LookAhead | None = None
        if num_microbatches_ahead == NO_LIMIT:
            self._window = LookAhead(max(group.size for group in groups))
            self._num_microbatches_ahead = self._window.size
        self._ticket = 0
        self.has_run: bool = False
        """Whether ``take_run`` may have something to return."""
        self._has_leftover_rows = plan.has_leftover_rows
        # What the next task to be assigned begins with; None: it comes later.
        self._leftover_rows: bytes | None = b""
        self._position: Position = START
        self._next_task_index: int = 0
        self._num_extra = 0
        self._is_exhausted = False
        # All tasks in work, the one whose turn it is first.
        self._work: deque[InFlightTask] = deque()
        self._is_interleaved = False
        self._has_delivered = False
        self._shortages = Shortages(release, sum(group.size for group in groups))
        self._sampler_error: Exception | None = None
        self._lengths = lengths
        # Of the task begun last, by epoch and index; and of those that other ranks had begun before a reshard.
        self._fingerprint: tuple[tuple[int, int], ShardFingerprint | None] = ((-1, -1), None)
        self._fingerprint_of_origins: ShardFingerprint | None = None
        self._is_stale = False  # the tasks are those of before a load

    @property
    def num_skipped_samples(self) -> int:
        """Samples that were left out."""
        return self._recorder.num_skipped_samples

    @property
    def num_arrived(self) -> int:
        """Microbatches that have arrived and were not handed out."""
        num_arrived = sum(work.num_arrived for work in list(self._work))
        return num_arrived + sum(group.num_early for group in self._groups)

    def start(self, position: Position) -> None:
        """Begin at a position; what was in work before is dropped."""
        self._keep_fingerprint()
        self._is_stale = False
        self._work.clear()
        self._sampler_error = None
        self._shortages.forget()
        self._is_exhausted = False
        self._startup.leave()
        for group in self._groups:
            group.cancel(self._ticket)
        position = self._plan.begin_at(position)
        self._leftover_rows = b""
        self._position, self._next_task_index, self._num_extra = position, position.task_index, 0
        self._has_delivered = position.step > 0
        interleaved = self._plan.interleaved(position)
        self._is_interleaved = interleaved is not None
        if interleaved is None:
            self._assign_next(position.microbatch)
            self._fill()
        else:
            self._is_exhausted = True
            for index, first_microbatch in interleaved:
                payload, origin = self._plan.payload(position.epoch, index), self._plan.origin(position.epoch, index)
                self._assign(payload, index, first_microbatch, self._groups[index], origin)
        self._begin_turn()

    def drop(self) -> None:
        """Drop what has arrived: it will not be handed out."""
        self._keep_fingerprint()
        for work in self._work:
            work.arrived.clear()
            work.rest = None

    def fingerprint(self, position: Position) -> ShardFingerprint | None:
        """Return what a begun task's worker has reported of its payload; None: nothing."""
        self._keep_fingerprint()
        return self._fingerprint[1] if position.microbatch and self._fingerprint[0] == position[:2] else None

    def load_fingerprint(self, position: Position, fingerprint: ShardFingerprint | None) -> None:
        """Remember what was reported of the task at a loaded position, or of all that other ranks had begun."""
        self._is_stale = True
        self._fingerprint = position[:2], fingerprint
        self._fingerprint_of_origins = None if position.microbatch else fingerprint

    def _keep_fingerprint(self) -> None:
        if self._work and not self._is_stale and not self._is_interleaved:
            task = self._work[0].task
            fingerprint = self._work[0].group.fingerprint(task.ticket) or self._startup.fingerprint(task.ticket)
            if fingerprint is not None:
                self._fingerprint = (task.epoch, task.task_index), fingerprint

    def leave(self, position: Position) -> None:
        """Leave an epoch at a position; to be called before another one is started."""
        self._plan.leave(position)

    def receive_ready(self) -> None:
        """Receive what workers have ready for the tasks in work."""
        unfinished: list[WorkerGroup] = []  # what they send next is of a task before
        for work in self._work:
            if work.group in unfinished or not work.group.works_ahead:
                continue
            last = work.arrived[-1] if work.arrived else None
            while last is None or (isinstance(last, Item) and not last.is_last):
                message = self._receive(work, block=False)
                if message is None or isinstance(message, Raised):
                    unfinished.append(work.group)
                    break
                last = message

    def extend(self, count: int) -> None:
        """Put ``count`` more tasks in work; the surplus shrinks again as tasks are delivered."""
        self._num_extra += count
        self._fill()

    def end_wait(self) -> bool:
        """Record that an interrupted call is over; return whether ``take`` waited then, or made a microbatch.

        So nothing had changed, and the next call goes on.
        """
        if self._startup.end_making():
            return True
        if not any(work.group.is_waiting for work in self._work):
            return False
        for group in self._groups:
            group.end_wait()
        return True

    def reset(self) -> None:
        """Forget what an interrupted call has left of the groups; their workers are replaced after this."""
        self._keep_fingerprint()
        self._ticket += NUM_TASKS  # what was under way has a ticket below that
        self._work.clear()
        self._startup.leave()
        for group in self._groups:
            group.reset()

    def take(self, *, block: bool) -> Arrival | TaskEnd | Raised | None:
        """Return what comes next, or None if it has not arrived and ``block`` is false, or the epoch is over.

        An error comes in its place in the order: the user's, a ``WorkerDiedError`` or ``WorkerStalledError`` if the
        worker is not replaced, or a ``MemoryLimitError`` if the caller holds all the memory that the limit allows.

        Raises:
            StaleIteratorError: Another thread closed the loader meanwhile.
        """
        while self._work:
            work = self._work[0]
            if work.rest is not None:
                work.spread()
            arrived = work.arrived
            message = arrived[0] if arrived else self._receive(work, block=block)
            if self._has_leftover_rows:
                self._pass_on(work)
                message = arrived[0] if arrived else message
            if isinstance(message, Item):
                # The message behind the only one that has arrived may say that it is the last, which decides on the
                # position after it. Where the limit has no room for another, the caller gets this one, and has to
                # release some.
                is_alone = message.is_last is None and len(arrived) == 1
                if (is_alone and self._receive(work, block=block) is None) or (
                    self._is_interleaved and not self._is_settled(work, message, block=block)
                ):
                    return None
                arrived.popleft()
                return self._hand_out(work, message)
            if message is None or isinstance(message, Raised):
                return message
            if isinstance(message, Failure) and not self._may_skip(work, message.error):
                return Raised(message.error)  # and again with the next call: it stays
            arrived.popleft()
            is_whole = isinstance(message, End)
            found = message.num_microbatches if isinstance(message, End) else work.delivered
            return TaskEnd(self._end(work, found, is_whole=is_whole))
        return None if self._sampler_error is None else Raised(self._sampler_error)

    def take_run(self) -> list[Any]:
        """Return the microbatches that have come together with the one that ``take`` has returned, and count them.

        Nothing is to be decided between them, and no size is counted: the caller numbers them on from that one, and
        gets each for less than a call of ``take``.
        """
        self.has_run = False
        run = self._work[0].take_run() if self._work else []
        position = self._position
        self._position = position._replace(microbatch=position.microbatch + len(run), step=position.step + len(run))
        return run

    def _is_settled(self, work: InFlightTask, item: Item, *, block: bool) -> bool:
        """Return whether it is known what ends with the next microbatch of a task that takes turns."""
        arrived = work.arrived
        is_last = item.is_last if item.is_last is not None else len(arrived) > 1 and _is_end(arrived[1])
        return not is_last or self._settle_others(block=block)

    def _settle_others(self, *, block: bool) -> bool:
        """Find out whether a task that has its turn later has anything left; return False if that is not known.

        Those that have nothing end here. If all have, the epoch ends with the microbatch that is next.
        """
        for work in list(self._work)[1:]:
            message = work.arrived[0] if work.arrived else self._receive(work, block=block)
            if message is None:
                return False
            if not _is_end(message):
                return True
            self._take_end(work)
            self._work.remove(work)
            self._position = self._position.after_interleaved_task(work.task.task_index, work.delivered)
        return True

    def _hand_out(self, work: InFlightTask, item: Item) -> Arrival | TaskEnd:
        if item.is_last and isinstance(item.microbatch, ShardTrailer):
            self._recorder.end_task(work.task, item.microbatch.value)
            return TaskEnd(self._end(work, item.microbatch_index))
        work.last_digest = item.digest
        work.delivered = delivered = item.microbatch_index + 1
        self._has_delivered = True
        is_last = item.is_last
        if is_last is None and work.arrived:
            is_last = self._take_end(work)
        microbatch = item.microbatch
        if type(microbatch) is WithPlanUpdate:
            self._recorder.record(work.task, delivered, microbatch.update)
            work.left_out += microbatch.left_out
            self._position = self._position._replace(left_out=self._position.left_out + microbatch.left_out)
            microbatch = microbatch.microbatch
        # skips NamedTuple's Python `__new__`: twice as fast
        epoch, task_index, number, step, ended, left_out = self._position
        self._position = tuple.__new__(Position, (epoch, task_index, number + 1, step + 1, ended, left_out))
        if is_last:
            self._end(work, delivered)
        else:
            if self._window is not None and delivered >= work.learn_at:
                self._learn(work, self._window, item)
            work.allow(delivered + self._num_microbatches_ahead)
            if self._is_interleaved:
                self._work.rotate(-1)
        return tuple.__new__(Arrival, (microbatch, self._position, item.size_bytes, item.digest))

    def _take_end(self, work: InFlightTask) -> bool:
        """Return whether the next message says no more than that the task has ended; take it then."""
        behind = work.arrived[0]
        if isinstance(behind, Item) and behind.is_last and isinstance(behind.microbatch, ShardTrailer):
            self._recorder.end_task(work.task, behind.microbatch.value)
        elif not isinstance(behind, End):
            return False
        work.arrived.popleft()
        return True

    def _pass_on(self, work: InFlightTask) -> None:
        """Give what the current task has left to the one behind it.

        Its worker says it before the first microbatch, so that the next one's worker goes on while those are delivered.
        """
        task = work.task
        leftover_rows = work.group.take_leftover_rows(task.ticket)
        if leftover_rows is None:
            return
        if work.leftover_rows is not None:
            if leftover_rows != work.leftover_rows:  # the successor of a dead worker says it again
                error = ReplayMismatchError(task.payload, task.epoch, work.delivered)
                work.arrived.clear()
                work.arrived.append(Failure(task.ticket, error, work.delivered))
            return
        work.leftover_rows = leftover_rows
        if len(self._work) == 1:
            self._leftover_rows = leftover_rows
            return
        behind = self._work[1]
        behind.task = behind.task._replace(leftover_rows=leftover_rows)
        behind.group.give_leftover_rows(behind.task.ticket, leftover_rows)

    def _end(self, work: InFlightTask, num_microbatches: int, *, is_whole: bool = True) -> Position:
        """Go on to the next task; return the position behind the one that ended."""
        self._work.remove(work)
        ended = work.task
        self._num_extra = max(0, self._num_extra - 1)
        # An endless sampler's shards are too many to remember.
        if self._lengths is not None and self._plan.num_tasks(ended.epoch) is not None:
            self._lengths.end(ended.payload, num_microbatches, is_whole=is_whole)
        is_over = not self._work and (self._is_exhausted or self._plan_payload(ended.task_index + 1) is None)
        if is_over and self._sampler_error is None:
            self._position = self._position.after_epoch()
        elif self._is_interleaved:
            self._position = self._position.after_interleaved_task(ended.task_index, num_microbatches)
        else:
            self._position = self._position.after_task()
        if not is_over:
            self._fill()
            self._begin_turn()
        return self._position

    def _begin_turn(self) -> None:
        if self._work and not self._is_interleaved:
            work = self._work[0]
            work.begin_turn()
            if self._window is not None:  # it may have been smaller when the task was assigned
                work.allow(self._initial_allowance(work.delivered), is_new=True)

    def _fill(self) -> None:
        wanted = min(1 + self._num_tasks_ahead + self._num_extra, NUM_TASKS - 1)
        while len(self._work) < wanted and not self._is_exhausted:
            self._assign_next(0)

    def _assign_next(self, first_microbatch: int) -> None:
        epoch, index = self._position.epoch, self._next_task_index
        payload = self._plan_payload(index)
        if payload is None:
            return
        origin = self._plan.origin(epoch, index)
        fingerprint = self._fingerprint[1] if first_microbatch and self._fingerprint[0] == (epoch, index) else None
        left_out = self._position.left_out if first_microbatch else ()
        if origin is not None:
            first_microbatch += origin.first_microbatch
            fingerprint = fingerprint or (self._fingerprint_of_origins if origin.first_microbatch else None)
            left_out = origin.left_out + left_out
        group = self._groups[self._ticket % len(self._groups)]
        self._assign(payload, index, first_microbatch, group, origin, fingerprint, left_out)
        self._next_task_index += 1

    def _assign(
        self,
        payload: Any,
        index: int,
        first_microbatch: int,
        group: WorkerGroup,
        origin: TaskOrigin | None = None,
        fingerprint: ShardFingerprint | None = None,
        left_out: tuple[int, ...] = (),
    ) -> None:
        leftover_rows = self._leftover_rows
        if self._has_leftover_rows:
            self._leftover_rows = None
        numbers = self._ticket, self._position.epoch, index
        task = Task(
            *numbers,
            payload,
            first_microbatch,
            origin,
            fingerprint=fingerprint,
            leftover_rows=leftover_rows,
            left_out=left_out,
        )
        allowance = self._initial_allowance(first_microbatch)
        group.assign(task, allowance)
        self._work.append(InFlightTask(task, group, allowance))
        self._ticket += 1

    def _plan_payload(self, index: int) -> Any:
        """Return the payload at an index of this epoch, or None if that is past its end, or the sampler has failed."""
        try:
            payload = self._plan.payload(self._position.epoch, index)
        except genuine(Exception) as error:
            # The user's sampler's; it comes when the tasks before it are through.
            self._sampler_error, payload = error, None
            if isinstance(error, StopIteration):
                self._sampler_error = early_end("the sampler", "epoch")
                self._sampler_error.__cause__ = error
        if payload is None:
            self._is_exhausted = True
        return payload

    def _initial_allowance(self, first_microbatch: int) -> int:
        return first_microbatch + self._num_microbatches_ahead

    def _learn(self, work: InFlightTask, window: LookAhead, item: Item) -> None:
        """Let the look-ahead learn from a delivery."""
        work.learn_after(window.stride)
        window.deliver(1 + len(work.arrived) + work.inbox.num_ready, item.size_bytes)
        self._adopt(window)

    def _look_further(self, work: InFlightTask, window: LookAhead) -> None:
        """Let the look-ahead learn from a wait that begins."""
        work.learn_after(2)  # the next delivery comes after a wait
        # Tasks that take turns stand still while they wait for theirs.
        ahead = () if self._is_interleaved else tuple(self._work)
        window.wait(is_idle_ahead=any(each.group is not work.group and each.group.is_blocked for each in ahead))
        self._adopt(window)

    def _adopt(self, window: LookAhead) -> None:
        before, self._num_microbatches_ahead = self._num_microbatches_ahead, window.size
        if window.size > before:
            for index, work in enumerate(self._work):
                work.allow(work.delivered + window.size, is_ahead=index > 0 and not self._is_interleaved)

    def _receive(self, work: InFlightTask, *, block: bool) -> Item | End | Failure | Raised | None:
        """Return a task's next message, and keep it as the last that has arrived."""
        ticket = work.task.ticket
        num_expected = work.delivered + len(work.arrived)
        if block and num_expected >= work.allowance:
            # The worker must make what the trainer waits for, even beyond the bound.
            work.allow(num_expected + 1)
        while True:
            try:
                message = self._next_message(work, num_expected, block=block)
            except (WorkerGone, WorkerStalledError) as error:
                lost = error
            else:
                if message is None or isinstance(message, Raised):
                    return message
                if self._startup.newest_ticket >= ticket and _comes_again(message, num_expected):
                    continue
                if self._shortages.newest is not None:
                    self._shortages.forget()
                self.has_run = isinstance(message, MicrobatchRun) and len(message.microbatches) > 1
                return work.keep(message)
            self._lose(work, num_expected, lost)
            work.begin_turn()

    def _next_message(
        self, work: InFlightTask, num_expected: int, *, block: bool
    ) -> Item | End | Failure | MicrobatchRun | Raised | None:
        if self._startup.is_over:
            message = cast("Message | None", work.inbox.receive(timeout_s=0))
        else:
            message = self._received_or_made(work, num_expected, block=block)
        if isinstance(message, MemoryShortage):
            self._shortages.record(message)
        elif message is not None and message.ticket >= work.task.ticket:
            return message
        elif block and self._window is not None:
            self._look_further(work, self._window)
        return self._wait(work, num_expected, block=block)

    def _received_or_made(self, work: InFlightTask, num_expected: int, *, block: bool) -> Message | None:
        """Return the task's next message, if it has come, or if the caller is to make it."""
        message = cast("Message | None", work.inbox.receive(timeout_s=0))
        if isinstance(message, MemoryShortage) or (message is not None and message.ticket >= work.task.ticket):
            return message
        return self._startup.make(work.group, work.task, num_expected) if block else None

    def _wait(
        self, work: InFlightTask, num_expected: int, *, block: bool
    ) -> Item | End | Failure | MicrobatchRun | Raised | None:
        """Return the task's next message: the last one was none, a shortage, or of a cancelled task."""
        group, task = work.group, work.task
        clock: WaitClock | None = None  # costs more than a short wait
        interval_s = self._first_interval_s
        began_s = time.monotonic()
        try:
            while True:
                message = group.receive(timeout_s=interval_s if block and self._shortages.newest is None else 0)
                if isinstance(message, MemoryShortage):
                    self._shortages.record(message)
                elif message is not None:
                    if message.ticket >= task.ticket:  # a smaller one was cancelled after the worker had sent it
                        return message
                elif not block:
                    return None
                elif self._shortages.newest is not None:
                    worker = group.maker(task.ticket, num_expected)
                    waited_s = time.monotonic() - began_s
                    error = self._shortages.error(worker, waited_s, has_arrived=bool(work.arrived))
                    if error is not None:
                        return Raised(error)
                    self._shortages.forget()
                else:
                    clock = clock or self._recovery.wait_clock()
                    clock.advance(group.maker(task.ticket, num_expected), task, num_expected, len(self._work))
                    if self._leave_hung_workers():
                        raise HungStartError
                    interval_s = clock.interval_s
        finally:
            if clock is not None:
                clock.end()

    def _lose(self, work: InFlightTask, num_expected: int, lost: WorkerGone | WorkerStalledError) -> None:
        """Act on the end of a worker of a task's group: another one goes on, or its error comes in its place."""
        group, task = work.group, work.task
        members = list(group.members)
        if isinstance(lost, WorkerStalledError):
            group.kill(lost.pid)
        elif all(worker.pid != lost.pid for worker in members):
            raise StaleIteratorError("the loader was closed while this iterator waited")
        loss = group.loss(lost.pid, task, num_expected)
        error: WorkerError = (
            lost
            if isinstance(lost, WorkerStalledError)
            else WorkerDiedError(
                lost.pid,
                lost.exit_code,
                loss.task.payload,
                loss.task.epoch,
                loss.microbatch_index,
                lost.last_words,
                lost.host or socket.gethostname(),
                self.restarts.in_epoch,
            )
        )
        remedy = self.restarts.remedy(loss.task, loss.microbatch_index, has_begun=loss.has_begun)
        if remedy is Remedy.GIVE_UP or (remedy is Remedy.GIVE_UP_SHARD and not self.skips.is_active):
            group.fail(loss, error)
            return
        logger.warning("%s; another worker replaces it", error)
        if remedy is Remedy.GIVE_UP_SHARD:
            group.fail(loss, error)
        try:
            self._replace(group)
        except WorkerError as refused:  # what workers are forked from is gone
            add_note(error, str(refused))
            raise error from refused
        self._shortages.forget()
        last = work.arrived[-1] if work.arrived else None
        digest = last.digest if isinstance(last, Item) else work.last_digest
        given_up = loss if remedy is Remedy.GIVE_UP_SHARD else None
        resumed = [
            (each.task, each.allowance, sum(map(left_out_before, each.arrived), each.left_out))
            for each in self._work
            if each.group is group
        ]
        group.resume(resumed, task, num_expected, digest, members, given_up)

    def _may_skip(self, work: InFlightTask, error: BaseException) -> bool:
        task = work.task
        if isinstance(error, (WorkerDiedError, WorkerStalledError)) and not work.group.is_alive:
            return False  # no worker could make the next task
        is_last = len(self._work) == 1 and self._plan_payload(task.task_index + 1) is None
        return self.skips.may_skip(task, error, is_whole_epoch_lost=is_last and not self._has_delivered)


def _comes_again(message: Message, num_expected: int) -> bool:
    """Return whether a worker had begun a microbatch when the caller made it."""
    return isinstance(message, Item) and message.microbatch_index < num_expected


def _is_end(message: Item | End | Failure | Raised) -> bool:
    """Return whether a message says no more than that its task has ended."""
    if isinstance(message, Item):
        return bool(message.is_last) and isinstance(message.microbatch, ShardTrailer)
    return isinstance(message, End)
