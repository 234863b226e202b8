"""Shards in work, and their microbatches in order.

Ticket *t* belongs to group *t mod number of groups* of the workers, and a group does its tasks in the order of their
tickets. So the next microbatch is the next one of the group whose turn it is: nothing has to be sorted here.
"""

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from fkat_data.errors import MemoryLimitError, StaleIteratorError, WorkerDiedError, WorkerError, WorkerStalledError
from fkat_data.interruption import genuine
from fkat_data.loader.arrival import Arrival, Raised, ShardEnd
from fkat_data.loader.garbage import GarbageCollection
from fkat_data.loader.look_ahead import LookAhead
from fkat_data.loader.recovery import Recovery, Remedy, Restarts, ShardSkips
from fkat_data.loader.shard_lengths import ShardLengths
from fkat_data.loader.wait_clock import WaitClock
from fkat_data.loader.worker_group import WorkerGroup
from fkat_data.plan.shard_plan import ShardPlan
from fkat_data.plan.task import ShardTerms, Task
from fkat_data.position import Position
from fkat_data.types import Shard
from fkat_data.worker.messages import (
    NO_LIMIT,
    NUM_TASKS,
    End,
    Epilogue,
    Failure,
    Item,
    MemoryShortage,
    Message,
    Worker,
    WorkerGone,
)

__all__ = ["Prefetcher"]

logger: logging.Logger = logging.getLogger(__name__)

# Allowances count on from here, and travel in 64 bits: `sys.maxsize` for "all" must not overflow them.
_MOST_AHEAD = 1 << 40
# A control group may have no memory for the next microbatch for this long.
_SHORT_OF_MEMORY_S = 10.0


class Prefetcher:
    """Keeps shards in work ahead of the caller, and hands out their microbatches in order.

    Args:
        plan: The ordered work.
        groups: The groups of workers that do it.
        replace: Replaces the dead workers of a group.
        release: Releases what only copies to a device still hold: the caller is not to blame for that.
        recovery: What may be done about faults.
        num_shard_prefetches: Shards in work ahead of the current one.
        num_microbatch_prefetches: Microbatches produced and not delivered, for each shard; -1: as many as help.
        lengths: Gets the lengths of shards that end.
    """

    def __init__(
        self,
        plan: ShardPlan,
        groups: Sequence[WorkerGroup],
        replace: Callable[[WorkerGroup], None],
        release: Callable[[], None],
        recovery: Recovery,
        num_shard_prefetches: int,
        num_microbatch_prefetches: int,
        lengths: ShardLengths,
    ) -> None:
        self._plan = plan
        self._groups = groups
        self._replace = replace
        self._release = release
        self._recovery = recovery
        self._first_interval_s = recovery.wait_clock().interval_s
        self.restarts: Restarts = Restarts(recovery.max_worker_restarts)
        """How often a dead worker was replaced."""
        self.skips: ShardSkips = ShardSkips(recovery.max_skipped_shards, skips=recovery.skips_shards)
        """Which failing shards were skipped."""
        self._num_shard_prefetches = num_shard_prefetches
        self._num_microbatch_prefetches = min(num_microbatch_prefetches, _MOST_AHEAD)
        self._window: LookAhead | None = None
        if num_microbatch_prefetches == NO_LIMIT:
            self._window = LookAhead(max(group.size for group in groups))
            self._num_microbatch_prefetches = self._window.size
        self._ticket = 0
        self._epoch: int = 0
        self._next_shard: int = 0
        self._num_extra = 0
        self._is_exhausted = False
        self._tasks: deque[Task] = deque()
        self._arrived: deque[Item | End | Failure] = deque()
        self._delivered = 0
        self._learn_at = 0
        self._last_digest: int | None = None
        self._has_delivered = False
        self._front: Worker | WorkerGroup = groups[0]
        self._allowance = 0
        self._shortage: MemoryShortage | None = None
        self._has_warned_of_group = False
        self._garbage = GarbageCollection()
        self._sampler_error: Exception | None = None
        self._lengths = lengths
        # Of the shard begun last, by epoch and index; and of those that other ranks had begun before a new split.
        self._terms: tuple[tuple[int, int], ShardTerms | None] = ((-1, -1), None)
        self._terms_of_pieces: ShardTerms | None = None
        self._is_stale = False  # the tasks are those of before a load

    @property
    def num_arrived(self) -> int:
        """Microbatches that have arrived and were not handed out."""
        return sum(isinstance(message, Item) for message in list(self._arrived)) + sum(
            group.num_early for group in self._groups
        )

    @property
    def task(self) -> Task | None:
        """The shard whose microbatches are next."""
        return self._tasks[0] if self._tasks else None

    def start(self, position: Position) -> None:
        """Begin at a position; what was in work before is dropped."""
        self._keep_terms()
        self._is_stale = False
        self._arrived.clear()
        self._tasks.clear()
        self._shortage = self._sampler_error = None
        self._is_exhausted = False
        for group in self._groups:
            group.cancel(self._ticket)
        self._epoch, self._next_shard, self._num_extra = position.epoch, position.shard, 0
        self._has_delivered = position.step > 0
        self._assign(position.microbatch)
        self._fill()
        self._begin_shard()

    def drop(self) -> None:
        """Drop what has arrived: it will not be handed out."""
        self._keep_terms()
        self._arrived.clear()

    def terms(self, position: Position) -> ShardTerms | None:
        """Return what a begun shard's worker has reported of it; None: nothing."""
        self._keep_terms()
        return self._terms[1] if position.microbatch and self._terms[0] == position[:2] else None

    def load_terms(self, position: Position, terms: ShardTerms | None) -> None:
        """Remember what was reported of the shard at a loaded position, or of all that other ranks had begun."""
        self._is_stale = True
        self._terms = position[:2], terms
        self._terms_of_pieces = None if position.microbatch else terms

    def _keep_terms(self) -> None:
        if self._tasks and not self._is_stale:
            task = self._tasks[0]
            terms = self._group_of(task).terms(task.ticket)
            if terms is not None:
                self._terms = (task.epoch, task.shard_index), terms

    def leave(self, position: Position) -> None:
        """Leave an epoch at a position; to be called before another one is started."""
        self._plan.leave(position.epoch, position.shard + (position.microbatch > 0))

    def extend(self, count: int) -> None:
        """Put ``count`` more shards in work; the surplus shrinks again as shards are delivered."""
        self._num_extra += count
        self._fill()

    @property
    def is_waiting(self) -> bool:
        """Whether the last call of ``take`` was interrupted while it waited: nothing had changed then."""
        return bool(self._tasks) and self._group_of(self._tasks[0]).is_waiting

    def end_wait(self) -> None:
        """Record that the interrupted wait is over."""
        for group in self._groups:
            group.end_wait()

    def reset(self) -> None:
        """Forget what an interrupted call has left of the groups; their workers are replaced after this."""
        self._keep_terms()
        self._ticket += NUM_TASKS  # what was under way has a ticket below that
        self._tasks.clear()
        self._arrived.clear()
        for group in self._groups:
            group.reset()

    def take(self, *, block: bool) -> Arrival | ShardEnd | Raised | None:
        """Return what comes next, or None if it has not arrived and ``block`` is false, or the epoch is over.

        An error comes in its place in the order: the user's, a ``WorkerDiedError`` or ``WorkerStalledError`` if the
        worker is not replaced, or a ``MemoryLimitError`` if the caller holds all the memory that the limit allows.

        Raises:
            StaleIteratorError: Another thread closed the loader meanwhile.
        """
        while self._tasks:
            message = self._arrived[0] if self._arrived else self._receive(block=block)
            if isinstance(message, Item):
                if message.is_last is None and len(self._arrived) == 1 and not self._look_ahead(block=block):
                    return None
                self._arrived.popleft()
                return self._hand_out(message)
            if message is None or isinstance(message, Raised):
                return message
            if isinstance(message, Failure) and not self._may_skip(message.error):
                return Raised(message.error)  # and again with the next call: it stays
            self._arrived.popleft()
            is_whole = isinstance(message, End)
            found = message.num_microbatches if isinstance(message, End) else self._delivered
            return ShardEnd(self._end_shard(found, is_whole=is_whole))
        return None if self._sampler_error is None else Raised(self._sampler_error)

    def _look_ahead(self, *, block: bool) -> bool:
        """Return whether the only microbatch that has arrived may go to the caller.

        The message behind it says whether it is the shard's last, which decides on the state after it.
        """
        # Where the limit has no room for another, the caller gets this one, and has to release some.
        return self._receive(block=block) is not None

    def _hand_out(self, item: Item) -> Arrival | ShardEnd:
        if item.is_last and isinstance(item.microbatch, Epilogue):
            self._plan.end_shard(self._epoch, item.microbatch.value)
            return ShardEnd(self._end_shard(item.microbatch_index))
        self._delivered = item.microbatch_index + 1
        self._last_digest = item.digest
        self._has_delivered = True
        is_last = item.is_last
        if is_last is None and self._arrived:
            is_last = self._take_end(self._arrived[0])
        is_last_shard = False
        if is_last:
            is_last_shard = self._end_shard(self._delivered)
        else:
            if self._window is not None and self._delivered >= self._learn_at:
                self._learn(self._window, item)
            self._allow(self._delivered + self._num_microbatch_prefetches)
        # half of what the class itself takes, whose function is one of Python's
        return tuple.__new__(Arrival, (item.microbatch, bool(is_last), is_last_shard, item.size_bytes, item.digest))

    def _take_end(self, behind: Item | End | Failure) -> bool:
        """Return whether the message behind a microbatch says no more than that the shard has ended; take it then."""
        if isinstance(behind, Item) and behind.is_last and isinstance(behind.microbatch, Epilogue):
            self._plan.end_shard(self._epoch, behind.microbatch.value)
        elif not isinstance(behind, End):
            return False
        self._arrived.popleft()
        return True

    def _end_shard(self, num_microbatches: int, *, is_whole: bool = True) -> bool:
        """Go on to the next shard; return whether the one that ended is the epoch's last."""
        ended = self._tasks.popleft()
        self._num_extra = max(0, self._num_extra - 1)
        if self._plan.num_shards(ended.epoch) is not None:  # an endless sampler's shards are too many to remember
            self._lengths.end(ended.shard, num_microbatches, is_whole=is_whole)
        if not self._tasks and (self._is_exhausted or self._plan_shard(ended.shard_index + 1) is None):
            return self._sampler_error is None
        self._fill()
        self._begin_shard()
        return False

    def _begin_shard(self) -> None:
        if self._tasks:
            self._delivered = self._tasks[0].first_microbatch
            self._last_digest = None
            self._allowance = self._initial_allowance(self._delivered)
            self._front = self._group_of(self._tasks[0]).front
            self._learn_at = 0
            if self._window is not None:  # it may have been smaller when the task was assigned
                self._allowance = 0
                self._allow(self._initial_allowance(self._delivered))

    def _fill(self) -> None:
        wanted = min(1 + self._num_shard_prefetches + self._num_extra, NUM_TASKS - 1)
        while len(self._tasks) < wanted and not self._is_exhausted:
            self._assign(0)

    def _assign(self, first_microbatch: int) -> None:
        shard = self._plan_shard(self._next_shard)
        if shard is None:
            return
        piece = self._plan.piece(self._epoch, self._next_shard)
        terms = self._terms[1] if first_microbatch and self._terms[0] == (self._epoch, self._next_shard) else None
        if piece is not None:
            first_microbatch += piece.first_microbatch
            terms = terms or (self._terms_of_pieces if piece.first_microbatch else None)
        task = Task(self._ticket, self._epoch, self._next_shard, shard, first_microbatch, piece, terms=terms)
        self._group_of(task).assign(task, self._initial_allowance(first_microbatch))
        self._tasks.append(task)
        self._ticket += 1
        self._next_shard += 1

    def _plan_shard(self, index: int) -> Shard | None:
        """Return the shard at an index of this epoch, or None if that is past its end, or the sampler has failed."""
        try:
            shard = self._plan.shard(self._epoch, index)
        except genuine(Exception) as error:
            # The user's sampler's; it comes when the shards before it are through.
            self._sampler_error, shard = error, None
        if shard is None:
            self._is_exhausted = True
        return shard

    def _group_of(self, task: Task) -> WorkerGroup:
        return self._groups[task.ticket % len(self._groups)]

    def _initial_allowance(self, first_microbatch: int) -> int:
        return first_microbatch + self._num_microbatch_prefetches

    def _allow(self, allowance: int) -> None:
        if allowance > self._allowance:
            self._allowance = allowance
            task = self._tasks[0]
            self._front.allow(task.ticket, allowance)

    def _learn(self, window: LookAhead, item: Item) -> None:
        """Let the look-ahead learn from a delivery."""
        self._learn_at = self._delivered + window.stride
        window.deliver(1 + len(self._arrived) + self._front.num_ready, item.size_bytes)
        self._adopt(window)

    def _look_further(self, window: LookAhead) -> None:
        """Let the look-ahead learn from a wait that begins."""
        self._learn_at = self._delivered + 2  # the next delivery comes after a wait
        current = self._group_of(self._tasks[0])
        others = {self._group_of(task) for task in self._tasks} - {current}
        window.wait(is_idle_ahead=any(other.is_blocked for other in others))
        self._adopt(window)

    def _adopt(self, window: LookAhead) -> None:
        before, self._num_microbatch_prefetches = self._num_microbatch_prefetches, window.size
        if window.size > before:
            self._allow(self._delivered + window.size)
            for task in list(self._tasks)[1:]:
                self._group_of(task).allow(task.ticket, self._initial_allowance(task.first_microbatch), is_ahead=True)

    def _receive(self, *, block: bool) -> Item | End | Failure | Raised | None:
        """Return the current task's next message, and keep it as the last that has arrived."""
        task = self._tasks[0]
        num_expected = self._delivered + len(self._arrived)
        if block and num_expected >= self._allowance:
            # The worker must make what the trainer waits for, even beyond the bound.
            self._allow(num_expected + 1)
        while True:
            try:
                message = cast("Message | None", self._front.receive(timeout_s=0))
                if isinstance(message, MemoryShortage):
                    self._record_shortage(message)
                    message = self._wait(self._group_of(task), task, num_expected, block=block)
                elif message is None or message.ticket < task.ticket:
                    if block and self._window is not None:
                        self._look_further(self._window)
                    message = self._wait(self._group_of(task), task, num_expected, block=block)
            except (WorkerGone, WorkerStalledError) as error:
                lost = error
            else:
                if message is not None and not isinstance(message, Raised):
                    self._shortage = None
                    self._arrived.append(message)
                return message
            group = self._group_of(task)
            self._lose(group, task, num_expected, lost)
            self._front = group.front

    def _wait(
        self, group: WorkerGroup, task: Task, num_expected: int, *, block: bool
    ) -> Item | End | Failure | Raised | None:
        """Return the task's next message: the last one was none, a shortage, or of a cancelled task."""
        clock: WaitClock | None = None  # costs more than a short wait
        interval_s = self._first_interval_s
        began_s = time.monotonic()
        try:
            while True:
                message = group.receive(timeout_s=interval_s if block and self._shortage is None else 0)
                if isinstance(message, MemoryShortage):
                    self._record_shortage(message)
                elif message is not None:
                    if message.ticket >= task.ticket:  # a smaller one was cancelled after the worker had sent it
                        return message
                elif not block:
                    return None
                elif self._shortage is not None:
                    worker = group.maker(task.ticket, num_expected)
                    error = self._shortage_error(worker, self._shortage, time.monotonic() - began_s)
                    if error is not None:
                        return Raised(error)
                    self._shortage = None
                else:
                    clock = clock or self._recovery.wait_clock()
                    clock.advance(group.maker(task.ticket, num_expected), task, num_expected, len(self._tasks))
                    interval_s = clock.interval_s
        finally:
            if clock is not None:
                clock.end()

    def _lose(self, group: WorkerGroup, task: Task, num_expected: int, lost: WorkerGone | WorkerStalledError) -> None:
        """Act on the end of a worker of the current shard's group: another one goes on, or its error comes in its place."""
        members = list(group.members)
        if isinstance(lost, WorkerStalledError):
            for worker in members:
                if worker.pid == lost.pid:
                    worker.close(0.0)
        elif all(worker.pid != lost.pid for worker in members):
            raise StaleIteratorError("the loader was closed while this iterator waited")
        loss = group.loss(lost.pid, task, num_expected)
        error: WorkerError = (
            lost
            if isinstance(lost, WorkerStalledError)
            else WorkerDiedError(
                lost.pid,
                lost.exit_code,
                loss.task.shard,
                loss.task.epoch,
                loss.microbatch_index,
                lost.last_words,
                socket.gethostname(),
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
        self._replace(group)
        self._shortage = None
        last = self._arrived[-1] if self._arrived else None
        digest = last.digest if isinstance(last, Item) else self._last_digest
        given_up = loss if remedy is Remedy.GIVE_UP_SHARD else None
        tasks = [each for each in self._tasks if self._group_of(each) is group]
        allowances = [self._allowance, *(self._initial_allowance(each.first_microbatch) for each in tasks[1:])]
        work = list(zip(tasks, allowances, strict=True))
        group.resume(work, task, num_expected, digest, members, given_up)

    def _may_skip(self, error: BaseException) -> bool:
        task = self._tasks[0]
        if isinstance(error, (WorkerDiedError, WorkerStalledError)) and not self._group_of(task).is_alive:
            return False  # no worker could make the next shard
        is_last = len(self._tasks) == 1 and self._plan_shard(task.shard_index + 1) is None
        return self.skips.may_skip(task, error, is_whole_epoch_lost=is_last and not self._has_delivered)

    def _record_shortage(self, shortage: MemoryShortage) -> None:
        self._shortage = shortage
        if shortage.group_bytes >= 0 and not self._has_warned_of_group:
            self._has_warned_of_group = True
            logger.warning(
                "the control group of this process leaves %.1f MiB for shared memory, and the next microbatch needs "
                "%.1f MiB: microbatches wait for those before them",
                shortage.group_bytes / (1 << 20),
                shortage.needed_bytes / (1 << 20),
            )

    def _shortage_error(self, worker: Worker, shortage: MemoryShortage, waited_s: float) -> MemoryLimitError | None:
        """Return an error if the worker waits for memory that only the caller, or other processes, can release."""

        def has_room() -> bool:
            return worker.held_bytes + shortage.needed_bytes <= shortage.limit_bytes

        if shortage.group_bytes < 0 and has_room():  # released since the worker asked
            return None
        self._release()
        # A microbatch that has arrived is delivered instead of the error.
        is_last_resort = not self._arrived and (not has_room() or waited_s > _SHORT_OF_MEMORY_S)
        self._garbage.collect(lambda: shortage.group_bytes < 0 and has_room(), is_last_resort=is_last_resort)
        held_bytes = worker.held_bytes
        if not has_room():
            return MemoryLimitError(
                shortage.limit_bytes,
                shortage.needed_bytes,
                held_bytes,
                "by microbatches that the caller keeps. Release some, clone those that you keep, or raise "
                "memory_limit_bytes: each worker has an equal share, and a loop needs room for two microbatches",
            )
        # A microbatch that has arrived is delivered even if it is not known yet whether it is its shard's last.
        if shortage.group_bytes >= 0 and (waited_s > _SHORT_OF_MEMORY_S or self._arrived):
            return MemoryLimitError(
                shortage.limit_bytes,
                shortage.needed_bytes,
                held_bytes,
                f"and the control group of the process leaves {shortage.group_bytes:,} bytes, a tenth of its limit "
                "kept for others. Make smaller microbatches, use fewer workers, or give the group more memory",
            )
        return None
