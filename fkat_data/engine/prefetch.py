"""Tasks in work, and their microbatches in order.

Workers form groups; all workers of a group make one task together, as the threads of a pool share one queue. A group does
its tasks in the order of their numbers. Where one task follows the other, task *t* belongs to group *t mod number of
groups*; where tasks are interleaved, each has a group of its own. So the next microbatch in order is always the next one
of a known group: nothing has to be sorted here.
"""

import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from fkat_data.engine.look_ahead import LookAhead
from fkat_data.engine.recovery import Remedy, Restarts, SampleSkips, ShardSkips, WaitClock
from fkat_data.engine.settings import EngineSettings
from fkat_data.engine.shard_lengths import ShardLengths
from fkat_data.engine.shortages import Shortages
from fkat_data.engine.worker_group import WorkerGroup, left_out_before
from fkat_data.engine.worker_pool import WorkerPool
from fkat_data.errors import ReplayMismatchError, StaleIteratorError, WorkerDiedError, WorkerError, WorkerStalledError
from fkat_data.errors.sample_errors import early_end
from fkat_data.errors.wording import add_note
from fkat_data.plan.position import START, Position, ShardFingerprint, Task, TaskOrigin
from fkat_data.plan.shard_plan import Plan
from fkat_data.runtime.interruption import genuine
from fkat_data.worker.messages import (
    NO_LIMIT,
    NUM_TASKS,
    End,
    Failure,
    Item,
    MemoryShortage,
    Message,
    MicrobatchChunk,
    ShardTrailer,
    WithPlanUpdate,
    WorkerGone,
)
from fkat_data.worker.worker import Worker

#: Tasks behind the caller's position: two moves to the device are under way, and one microbatch may be taken back.
_NUM_PASSED_TASKS = 3


class HungStartError(Exception):
    """All workers are to be replaced: they hang at their start, or another rank's make for this one no longer."""


class Arrival(NamedTuple):
    """The next microbatch.

    Attributes:
        microbatch: What the user's DataLoader yielded.
        after: The position after it.
        size_bytes: Bytes of its tensors and arrays that were copied.
        digest: Of its content; 0 if the loader needs none.
        task: The task that has made it.
    """

    microbatch: Any
    after: Position
    size_bytes: int
    digest: int
    task: Task


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

# Limits of microbatches count on from here, and travel in 64 bits: `sys.maxsize` for "all" must not overflow them.
_MOST_AHEAD = 1 << 40


class InFlightTask:
    """A task that is assigned to workers, with its messages that have arrived and were not handed out.

    Args:
        task: The task.
        group: Makes its microbatches.
        limit: The first microbatch that may not be made yet.
    """

    __slots__ = (
        *("limit", "arrived", "leftover_rows", "next_index", "message_source", "group"),
        *("last_digest", "learn_at", "left_out", "chunk", "task"),
    )

    def __init__(self, task: Task, group: WorkerGroup, limit: int) -> None:
        self.task: Task = task
        self.group: WorkerGroup = group
        self.message_source: Worker | WorkerGroup = group.message_source
        """What gives the next message: the worker itself, or a group of several."""
        self.limit: int = limit
        """The first microbatch that may not be made yet."""
        self.arrived: deque[Item | End | Failure] = deque()
        """Messages that were not handed out, in order."""
        self.next_index: int = task.first_microbatch
        """Index of the next microbatch to hand out, in the task."""
        self.last_digest: int | None = None
        """Of the microbatch before it, if it is known."""
        self.learn_at: int = 0
        """The delivery from which the look-ahead learns next."""
        self.chunk: MicrobatchChunk | None = None
        """Microbatches that came in one message with the first one in ``arrived``, or with the one just handed out."""
        self.leftover_rows: bytes | None = None
        """What the task has left for the one behind it, once it is known."""
        self.left_out: tuple[int, ...] = task.left_out
        """Samples that were left out before the next microbatch to hand out."""

    @property
    def num_arrived(self) -> int:
        """Microbatches that have arrived and were not handed out."""
        # Another thread may ask while the trainer's thread changes them: each is read in one step.
        chunk, arrived = self.chunk, list(self.arrived)
        num_in_chunk = 0 if chunk is None else len(chunk.microbatches) - 1
        return num_in_chunk + sum(isinstance(message, Item) and not _is_end(message) for message in arrived)

    def update_source(self) -> None:
        """Receive from the group as it is now."""
        self.message_source = self.group.message_source

    def allow(self, limit: int, *, is_ahead: bool = False, is_new: bool = False) -> None:
        """Let the task be made up to a microbatch, unless it may go as far.

        Args:
            limit: The first microbatch that may not be made yet.
            is_ahead: Whether the task comes after the one whose microbatches are next.
            is_new: Whether to say it in any case.
        """
        if limit > self.limit or is_new:
            self.limit = limit
            if is_ahead:
                self.group.allow(self.task.task_id, limit, is_ahead=True)
            else:
                self.message_source.allow(self.task.task_id, limit)

    def append(self, message: Item | End | Failure | MicrobatchChunk) -> Item | End | Failure:
        """Append what has arrived to what waits to be handed out; return the first message of it."""
        if isinstance(message, MicrobatchChunk):
            if message.microbatches:
                self.chunk = message
            message = message.first()
        self.arrived.append(message)
        return message

    def split_chunk(self) -> None:
        """Append the messages that a chunk stands for, one for each microbatch."""
        chunk, self.chunk = self.chunk, None
        if chunk is not None:
            self.arrived.extend(chunk.behind_first())

    def take_chunk(self) -> list[Any]:
        """Return the other microbatches of the chunk whose first one was just handed out, as handed out as well."""
        chunk, self.chunk = self.chunk, None
        if chunk is None:
            return []
        self.arrived.append(chunk.behind)
        self.next_index += len(chunk.microbatches) - 1
        self.last_digest = chunk.digests[-1]
        return chunk.microbatches[1:]

    def learn_after(self, count: int) -> None:
        """Have the look-ahead learn from the delivery after ``count`` of them."""
        self.learn_at = self.next_index + count


class Prefetcher:
    """Keeps tasks in work ahead of the caller, and hands out their microbatches in order.

    Args:
        plan: The ordered work.
        pool: The workers that do it.
        settings: How far ahead they work, and what may be done about faults.
        release: Releases what only copies to a device still hold: the caller is not to blame for that.
        lengths: Gets the lengths of shards that end; None: nothing asks for them.
    """

    def __init__(
        self,
        plan: Plan,
        pool: WorkerPool,
        settings: EngineSettings,
        release: Callable[[], None],
        lengths: ShardLengths | None,
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._shared = settings.workers.shared_by_first
        self._groups = pool.groups
        self._startup = pool.startup
        self._recovery = recovery = settings.recovery
        self._first_interval_s = recovery.wait_clock().interval_s
        self.restarts: Restarts = Restarts(recovery.max_worker_restarts)
        """How often a dead worker was replaced."""
        self.skips: ShardSkips = ShardSkips(recovery.max_skipped_shards, skips=recovery.skips_shards)
        """Which failing shards were skipped."""
        self.sample_skips: SampleSkips = SampleSkips()
        """Which samples of shards were left out."""
        self._recorder = plan if plan.takes_updates else self.sample_skips
        self._num_tasks_ahead = settings.num_tasks_ahead
        self._num_microbatches_ahead = min(settings.num_microbatches_ahead, _MOST_AHEAD)
        self._look_ahead: LookAhead | None = None
        if settings.num_microbatches_ahead == NO_LIMIT:
            self._look_ahead = LookAhead(max(group.size for group in pool.groups))
            self._num_microbatches_ahead = self._look_ahead.size
        self._task_id = 0
        self.has_chunk: bool = False
        """Whether ``take_chunk`` may have something to return."""
        self._has_leftover_rows = plan.has_leftover_rows
        # What the next task to be assigned begins with; None: it comes later.
        self._leftover_rows: bytes | None = b""
        self._position: Position = START
        self._next_task_index: int = 0
        self._num_extra = 0
        self._is_exhausted = False
        # All tasks in work, first the one whose microbatch is next.
        self._work: deque[InFlightTask] = deque()
        self._is_interleaved = False
        self._has_delivered = False
        self._shortages = Shortages(release, sum(group.size for group in pool.groups))
        self._sampler_error: Exception | None = None
        self._lengths = lengths
        # Of the tasks begun last, by epoch and index; and of those that other ranks had begun before a reshard.
        self._fingerprints: tuple[tuple[tuple[int, int], ShardFingerprint | None], ...] = ()
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
        return num_arrived + sum(group.num_buffered for group in self._groups)

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
            group.cancel(self._task_id)
        begun, position = position, self._plan.begin_at(position)
        if self._shared is not None:
            self._shared.start(self._task_id, is_renumbered=begun[:3] != position[:3])
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
            work.chunk = None

    def fingerprint(self, position: Position) -> ShardFingerprint | None:
        """Return what a begun task's worker has reported of its payload; None: nothing."""
        self._keep_fingerprint()
        return self._kept_fingerprint(position[:2]) if position.microbatch else None

    def load_fingerprint(self, position: Position, fingerprint: ShardFingerprint | None) -> None:
        """Remember what was reported of the task at a loaded position, or of all that other ranks had begun."""
        self._is_stale = True
        self._fingerprints = ((position[:2], fingerprint),)
        self._fingerprint_of_origins = None if position.microbatch else fingerprint

    def _keep_fingerprint(self) -> None:
        if self._work and self._work[0].next_index and not self._is_stale and not self._is_interleaved:
            task = self._work[0].task
            fingerprint = self._work[0].group.fingerprint(task.task_id) or self._startup.fingerprint(task.task_id)
            if fingerprint is not None:
                key = task.epoch, task.task_index
                others = [each for each in self._fingerprints if each[0] != key]
                self._fingerprints = (*others[-_NUM_PASSED_TASKS:], (key, fingerprint))

    def _kept_fingerprint(self, key: tuple[int, int]) -> ShardFingerprint | None:
        return next((fingerprint for kept, fingerprint in self._fingerprints if kept == key), None)

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
        self._task_id += NUM_TASKS  # what was under way has an id below that
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
            if work.chunk is not None:
                work.split_chunk()
            arrived = work.arrived
            message = arrived[0] if arrived else self._receive(work, block=block)
            if self._has_leftover_rows:
                self._pass_on(work)
                message = arrived[0] if arrived else message
            if isinstance(message, Item):
                # Whether this microbatch is its task's last may show only in the message behind it, and the position
                # after it depends on that: so wait for that message. If the worker has no memory for another
                # microbatch, the caller gets this one first, and has to release some.
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
            found = message.num_microbatches if isinstance(message, End) else work.next_index
            return TaskEnd(self._end(work, found, is_whole=is_whole))
        return None if self._sampler_error is None else Raised(self._sampler_error)

    def take_chunk(self) -> list[Any]:
        """Return the microbatches that arrived in one message with the one that ``take`` has returned, and count them.

        None of them ends the task or an epoch, so the caller numbers them itself, which costs less than a call of
        ``take`` for each.
        """
        self.has_chunk = False
        chunk = self._work[0].take_chunk() if self._work else []
        position = self._position
        self._position = position._replace(microbatch=position.microbatch + len(chunk), step=position.step + len(chunk))
        return chunk

    def _is_settled(self, work: InFlightTask, item: Item, *, block: bool) -> bool:
        """Return whether it is known what ends with the next microbatch of an interleaved task."""
        arrived = work.arrived
        is_last = item.is_last if item.is_last is not None else len(arrived) > 1 and _is_end(arrived[1])
        return not is_last or self._settle_others(block=block)

    def _settle_others(self, *, block: bool) -> bool:
        """Find out whether interleaved tasks whose turn comes later have anything left; return False if that is not known.

        Those that have nothing end here. If none has anything, the epoch ends with the next microbatch.
        """
        for work in list(self._work)[1:]:
            message = work.arrived[0] if work.arrived else self._receive(work, block=block)
            if message is None:
                return False
            if not _is_end(message):
                return True
            self._take_end(work)
            self._work.remove(work)
            self._position = self._position.after_interleaved_task(work.task.task_index, work.next_index)
        return True

    def _hand_out(self, work: InFlightTask, item: Item) -> Arrival | TaskEnd:
        if item.is_last and isinstance(item.microbatch, ShardTrailer):
            self._recorder.end_task(work.task, item.microbatch.value)
            return TaskEnd(self._end(work, item.microbatch_index))
        work.last_digest = item.digest
        work.next_index = next_index = item.microbatch_index + 1
        self._has_delivered = True
        is_last = item.is_last
        if is_last is None and work.arrived:
            is_last = self._take_end(work)
        microbatch = item.microbatch
        if type(microbatch) is WithPlanUpdate:
            self._recorder.record(work.task, next_index, microbatch.update)
            work.left_out += microbatch.left_out
            self._position = self._position._replace(left_out=self._position.left_out + microbatch.left_out)
            microbatch = microbatch.microbatch
        # skips NamedTuple's Python `__new__`: twice as fast
        epoch, task_index, number, step, ended, left_out = self._position
        self._position = tuple.__new__(Position, (epoch, task_index, number + 1, step + 1, ended, left_out))
        if is_last:
            self._end(work, next_index)
        else:
            if self._look_ahead is not None and next_index >= work.learn_at:
                self._learn(work, self._look_ahead, item)
            work.allow(next_index + self._num_microbatches_ahead)
            if self._is_interleaved:
                self._work.rotate(-1)
        return tuple.__new__(Arrival, (microbatch, self._position, item.size_bytes, item.digest, work.task))

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
        leftover_rows = work.group.take_leftover_rows(task.task_id)
        if leftover_rows is None:
            return
        if work.leftover_rows is not None:
            if leftover_rows != work.leftover_rows:  # the successor of a dead worker says it again
                error = ReplayMismatchError(task.payload, task.epoch, work.next_index)
                work.arrived.clear()
                work.arrived.append(Failure(task.task_id, error, work.next_index))
            return
        work.leftover_rows = leftover_rows
        if len(self._work) == 1:
            self._leftover_rows = leftover_rows
            return
        behind = self._work[1]
        behind.task = behind.task._replace(leftover_rows=leftover_rows)
        behind.group.give_leftover_rows(behind.task.task_id, leftover_rows)

    def _end(self, work: InFlightTask, num_microbatches: int, *, is_whole: bool = True) -> Position:
        """Go on to the next task; return the position behind the one that ended."""
        self._keep_fingerprint()
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
            work.update_source()
            if self._look_ahead is not None:  # it may have been smaller when the task was assigned
                work.allow(self._initial_limit(work.next_index), is_new=True)

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
        fingerprint = self._kept_fingerprint((epoch, index)) if first_microbatch else None
        left_out = self._position.left_out if first_microbatch else ()
        if origin is not None:
            first_microbatch += origin.first_microbatch
            fingerprint = fingerprint or (self._fingerprint_of_origins if origin.first_microbatch else None)
            left_out = origin.left_out + left_out
        group = self._groups[self._task_id % len(self._groups)]
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
        numbers = self._task_id, self._position.epoch, index
        task = Task(
            *numbers,
            payload,
            first_microbatch,
            origin,
            fingerprint=fingerprint,
            leftover_rows=leftover_rows,
            left_out=left_out,
        )
        limit = self._initial_limit(first_microbatch)
        group.assign(task, limit)
        self._work.append(InFlightTask(task, group, limit))
        self._task_id += 1

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

    def _initial_limit(self, first_microbatch: int) -> int:
        return first_microbatch + self._num_microbatches_ahead

    def _learn(self, work: InFlightTask, look_ahead: LookAhead, item: Item) -> None:
        """Let the look-ahead learn from a delivery."""
        work.learn_after(look_ahead.stride)
        look_ahead.deliver(1 + len(work.arrived) + work.message_source.num_ready, item.size_bytes)
        self._adopt(look_ahead)

    def _look_further(self, work: InFlightTask, look_ahead: LookAhead) -> None:
        """Let the look-ahead learn from a wait that begins."""
        work.learn_after(2)  # the next delivery comes after a wait
        # Interleaved tasks that are not next have nothing to do.
        ahead = () if self._is_interleaved else tuple(self._work)
        look_ahead.wait(is_idle_ahead=any(each.group is not work.group and each.group.is_blocked for each in ahead))
        self._adopt(look_ahead)

    def _adopt(self, look_ahead: LookAhead) -> None:
        before, self._num_microbatches_ahead = self._num_microbatches_ahead, look_ahead.size
        if look_ahead.size > before:
            for index, work in enumerate(self._work):
                work.allow(work.next_index + look_ahead.size, is_ahead=index > 0 and not self._is_interleaved)

    def _receive(self, work: InFlightTask, *, block: bool) -> Item | End | Failure | Raised | None:
        """Return a task's next message, and keep it as the last that has arrived."""
        task_id = work.task.task_id
        num_expected = work.next_index + len(work.arrived)
        if block and num_expected >= work.limit:
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
                if self._startup.newest_task_id >= task_id and _comes_again(message, num_expected):
                    continue
                if self._shortages.newest is not None:
                    self._shortages.forget()
                self.has_chunk = isinstance(message, MicrobatchChunk) and len(message.microbatches) > 1
                if self._shared is not None and not isinstance(message, MicrobatchChunk):
                    fingerprint = work.group.fingerprint(task_id)
                    self._shared.forward(work.task, message, fingerprint, self._num_microbatches_ahead)
                return work.append(message)
            self._lose(work, num_expected, lost)
            work.update_source()

    def _next_message(
        self, work: InFlightTask, num_expected: int, *, block: bool
    ) -> Item | End | Failure | MicrobatchChunk | Raised | None:
        message = cast("Message | None", work.message_source.receive(timeout_s=0))
        if isinstance(message, MemoryShortage):
            self._shortages.record(message)
        elif message is not None and message.task_id >= work.task.task_id:
            return message
        elif block:
            made = None if self._startup.is_over else self._startup.make(work.group, work.task, num_expected)
            if made is not None:
                return made
            if self._look_ahead is not None:
                self._look_further(work, self._look_ahead)
        return self._wait(work, num_expected, block=block)

    def _wait(
        self, work: InFlightTask, num_expected: int, *, block: bool
    ) -> Item | End | Failure | MicrobatchChunk | Raised | None:
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
                    if message.task_id >= task.task_id:  # a smaller one was cancelled after the worker had sent it
                        return message
                elif not block:
                    return None
                elif self._shortages.newest is not None:
                    worker = group.maker(task.task_id, num_expected)
                    waited_s = time.monotonic() - began_s
                    error = self._shortages.error(worker, waited_s, has_arrived=bool(work.arrived))
                    if error is not None:
                        return Raised(error)
                    self._shortages.forget()
                else:
                    clock = clock or self._recovery.wait_clock()
                    clock.advance(group.maker(task.task_id, num_expected), task, num_expected, len(self._work))
                    if self._pool.leave_hung_fork():
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
            self._pool.replace(group)
        except WorkerError as refused:  # what workers are forked from is gone
            add_note(error, str(refused))
            raise error from refused
        self._shortages.forget()
        last = work.arrived[-1] if work.arrived else None
        digest = last.digest if isinstance(last, Item) else work.last_digest
        given_up = loss if remedy is Remedy.GIVE_UP_SHARD else None
        resumed = [
            (each.task, each.limit, sum(map(left_out_before, each.arrived), each.left_out))
            for each in self._work
            if each.group is group
        ]
        group.resume(resumed, task, num_expected, digest, members, given_up)

    def _may_skip(self, work: InFlightTask, error: BaseException) -> bool:
        task = work.task
        if isinstance(error, WorkerError) and not work.group.is_alive:
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
