"""Shards in work, and their microbatches in order.

Ticket *t* belongs to worker *t mod number of workers*, and a worker does its tasks in the order of their tickets. So
the next microbatch is the next one in the pipe whose turn it is: nothing has to be sorted.
"""

import gc
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fkat_data.errors import MemoryLimitError, StaleIteratorError, WorkerDiedError, WorkerError, WorkerStalledError
from fkat_data.loader.patience import Patience
from fkat_data.loader.recovery import Recovery, Remedy, Restarts, ShardSkips
from fkat_data.plan.shard_plan import ShardPlan
from fkat_data.plan.task import Task
from fkat_data.position import Position
from fkat_data.types import Shard
from fkat_data.worker.messages import NO_LIMIT, End, Failure, Item, MemoryShortage, Worker, WorkerGone

__all__ = ["Arrival", "Prefetcher", "ShardEnd"]

logger = logging.getLogger(__name__)

_MOST_REMEMBERED = 1_000_000
# So long a control group may have no memory for the microbatch that is waited for.
_SHORT_OF_MEMORY_S = 10.0


class Arrival(NamedTuple):
    """The next microbatch.

    Attributes:
        microbatch: What the user's DataLoader yielded.
        is_last_in_shard: Whether its shard ends with it.
        is_last_shard: Whether its shard is the epoch's last.
        size_bytes: Bytes of its tensors and arrays that were copied.
        digest: Of its content; 0 where nobody asked for it.
    """

    microbatch: Any
    is_last_in_shard: bool
    is_last_shard: bool
    size_bytes: int
    digest: int


class ShardEnd(NamedTuple):
    """The current shard had nothing (more) to give.

    Attributes:
        is_last_shard: Whether it is the epoch's last.
    """

    is_last_shard: bool


class Prefetcher:
    """Keeps shards in work ahead of the caller, and hands out their microbatches in order.

    Args:
        plan: The ordered work.
        workers: Who does it.
        replace: Starts another worker in the place of the one at an index.
        recovery: What may be done about faults.
        num_shard_prefetches: Shards in work ahead of the current one.
        num_microbatch_prefetches: Microbatches produced and not delivered, for each shard; -1: no bound but memory.
    """

    def __init__(
        self,
        plan: ShardPlan,
        workers: Sequence[Worker],
        replace: Callable[[int], None],
        recovery: Recovery,
        num_shard_prefetches: int,
        num_microbatch_prefetches: int,
    ) -> None:
        self._plan = plan
        self._workers = workers
        self._replace = replace
        self._recovery = recovery
        self._patience_s = recovery.patience().interval_s
        self.let_go: Callable[[], None] | None = None
        """Called before it is said that the caller holds too much: what only copies to a device hold is no fault."""
        self.restarts = Restarts(recovery.max_worker_restarts)
        """How often a dead worker was replaced."""
        self.skips = ShardSkips(recovery.max_skipped_shards, skips=recovery.skips_shards)
        """Which failing shards were skipped."""
        self._num_shards_ahead = num_shard_prefetches
        self._num_microbatches_ahead = num_microbatch_prefetches
        self._ticket = 0
        self._epoch: int = 0
        self._next_shard: int = 0
        self._num_extra = 0
        self._is_exhausted = False
        self._tasks: deque[Task] = deque()
        self._arrived: deque[Item | End | Failure] = deque()
        self._delivered = 0
        self._last_digest: int | None = None
        self._has_delivered = False
        self._allowance = 0
        self._starved: MemoryShortage | None = None
        self._has_told_of_group = False
        self._sampler_error: Exception | None = None
        self.num_microbatches: dict[str, int] = {}
        """Microbatches of shards that were seen to their end, by the shard's ``repr``; of a million at most."""

    @property
    def num_arrived(self) -> int:
        """Microbatches that have arrived and were not handed out."""
        return sum(isinstance(message, Item) for message in self._arrived)

    @property
    def task(self) -> Task | None:
        """The shard whose microbatches are next."""
        return self._tasks[0] if self._tasks else None

    def start(self, position: Position) -> None:
        """Begin at a position; what was in work before is dropped."""
        self._arrived.clear()
        self._tasks.clear()
        self._starved = self._sampler_error = None
        self._is_exhausted = False
        for worker in self._workers:
            worker.cancel(self._ticket)
        self._epoch, self._next_shard, self._num_extra = position.epoch, position.shard, 0
        self._has_delivered = position.step > 0
        self._assign(position.microbatch)
        self._fill()
        self._begin_shard()

    def drop(self) -> None:
        """Let go of what has arrived: it will not be handed out."""
        self._arrived.clear()

    def leave(self, position: Position) -> None:
        """Take note that an epoch is left at a position; to be called before another one is started."""
        self._plan.leave(position.epoch, position.shard + (position.microbatch > 0))

    def extend(self, count: int) -> None:
        """Put ``count`` more shards in work; the surplus shrinks again as shards are delivered."""
        self._num_extra += count
        self._fill()

    def take(self, *, block: bool) -> Arrival | ShardEnd | None:
        """Return what comes next, or None if it has not arrived and ``block`` is false, or the epoch is over.

        Raises:
            BaseException: The user's, in its place in the order.
            WorkerDiedError: The current shard's worker is gone, and is not to be replaced.
            WorkerStalledError: It was silent for too long, and is not to be replaced.
            StaleIteratorError: Another thread has closed the loader meanwhile.
            MemoryLimitError: The caller holds all the memory that the limit allows.
        """
        while self._tasks:
            message = self._arrived[0] if self._arrived else self._receive(block=block)
            match message:
                case None:
                    return None
                case Item():
                    if message.is_last is None and not self._look_ahead(block=block):
                        return None
                    self._arrived.popleft()
                    return self._deliver(message)
                case End():
                    self._arrived.popleft()
                    return ShardEnd(self._end_shard(message.num_microbatches))
                case Failure():
                    if not self._may_skip(message.error):
                        raise message.error  # and again with the next call: it stays
                    self._arrived.popleft()
                    return ShardEnd(self._end_shard(self._delivered))
        if self._sampler_error is not None:
            raise self._sampler_error
        return None

    def _look_ahead(self, *, block: bool) -> bool:
        """Return whether a microbatch that has arrived may go to the caller.

        What follows it tells whether it is the shard's last, and with that what the state says after it.
        """
        try:
            return len(self._arrived) > 1 or self._receive(block=block) is not None
        except MemoryLimitError:
            return True  # there is room for no more: the caller gets this one, and has to make some

    def _deliver(self, item: Item) -> Arrival:
        self._delivered = item.microbatch_index + 1
        self._last_digest = item.digest
        self._has_delivered = True
        is_last = item.is_last
        if is_last is None and self._arrived and isinstance(self._arrived[0], End):
            self._arrived.popleft()
            is_last = True
        if is_last:
            return Arrival(item.microbatch, True, self._end_shard(self._delivered), item.size_bytes, item.digest)
        self._allow(self._delivered + self._num_microbatches_ahead)
        return Arrival(item.microbatch, False, False, item.size_bytes, item.digest)

    def _end_shard(self, num_microbatches: int) -> bool:
        """Go on to the next shard; return whether the one that ended is the epoch's last."""
        ended = self._tasks.popleft()
        self._num_extra = max(0, self._num_extra - 1)
        if self._plan.num_shards(ended.epoch) is not None:  # an endless sampler's shards are too many to remember
            name = repr(ended.shard)
            # As are those of one with other names each epoch.
            if len(self.num_microbatches) >= _MOST_REMEMBERED and name not in self.num_microbatches:
                self.num_microbatches.clear()
            self.num_microbatches[name] = num_microbatches
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

    def _fill(self) -> None:
        wanted = 1 + self._num_shards_ahead + self._num_extra
        while len(self._tasks) < wanted and not self._is_exhausted:
            self._assign(0)

    def _assign(self, first_microbatch: int) -> None:
        shard = self._plan_shard(self._next_shard)
        if shard is None:
            return
        piece = self._plan.piece(self._epoch, self._next_shard)
        if piece is not None:
            first_microbatch += piece.first_microbatch
        task = Task(self._ticket, self._epoch, self._next_shard, shard, first_microbatch, piece)
        self._worker_of(task).assign(task, self._initial_allowance(first_microbatch))
        self._tasks.append(task)
        self._ticket += 1
        self._next_shard += 1

    def _plan_shard(self, index: int) -> Shard | None:
        """Return the shard at an index of this epoch, or None if that is past its end, or the sampler has failed."""
        try:
            shard = self._plan.shard(self._epoch, index)
        except Exception as error:  # noqa: BLE001 - a user's sampler's; raised when the shards before it are through
            self._sampler_error, shard = error, None
        if shard is None:
            self._is_exhausted = True
        return shard

    def _worker_of(self, task: Task) -> Worker:
        return self._workers[task.ticket % len(self._workers)]

    def _initial_allowance(self, first_microbatch: int) -> int:
        if self._num_microbatches_ahead == NO_LIMIT:
            return NO_LIMIT
        return first_microbatch + self._num_microbatches_ahead

    def _allow(self, allowance: int) -> None:
        if self._num_microbatches_ahead != NO_LIMIT and allowance > self._allowance:
            self._allowance = allowance
            task = self._tasks[0]
            self._worker_of(task).allow(task.ticket, allowance)

    def _receive(self, *, block: bool) -> Item | End | Failure | None:
        """Return the current task's next message, and keep it as the last that has arrived."""
        task = self._tasks[0]
        worker = self._worker_of(task)
        num_expected = self._delivered + len(self._arrived)
        if block:
            # Whatever the bound says, what is waited for must be made.
            self._allow(num_expected + 1)
        try:
            return self._next_message(worker, task, num_expected, block=block)
        except WorkerGone as gone:
            if worker not in self._workers:
                raise StaleIteratorError("the loader was closed while this iterator waited") from None
            number = self.restarts.in_epoch
            told = (gone.pid, gone.exit_code, task.shard, task.epoch, num_expected, gone.last_words)
            return self._lose(worker, num_expected, WorkerDiedError(*told, socket.gethostname(), number), block=block)
        except WorkerStalledError as stalled:
            worker.close(0.0)
            return self._lose(worker, num_expected, stalled, block=block)

    def _next_message(
        self, worker: Worker, task: Task, num_expected: int, *, block: bool
    ) -> Item | End | Failure | None:
        patience: Patience | None = None
        began_s = time.monotonic()
        interval_s = self._patience_s if block else 0.0
        try:
            while True:
                message = worker.receive(timeout_s=interval_s if self._starved is None else 0)
                if isinstance(message, MemoryShortage):
                    self._starved = message
                    self._tell_of_group(message)
                elif message is None:
                    if not block:
                        return None
                    if self._starved is not None:
                        self._check_starvation(worker, time.monotonic() - began_s)
                        continue
                    patience = patience or self._recovery.patience()
                    patience.report(worker, task, num_expected, len(self._tasks))
                    interval_s = patience.interval_s
                elif message.ticket >= task.ticket:  # a smaller one was cancelled when it was already on its way
                    self._starved = None
                    self._arrived.append(message)
                    return message
        finally:
            if patience is not None:
                patience.end()

    def _lose(
        self, worker: Worker, num_expected: int, error: WorkerError, *, block: bool
    ) -> Item | End | Failure | None:
        """Act on the end of the current shard's worker; return the next message."""
        task = self._tasks[0]
        remedy = self.restarts.remedy(task, num_expected, has_begun=worker.has_begun(task.ticket))
        if remedy is Remedy.GIVE_UP or (remedy is Remedy.GIVE_UP_SHARD and not self.skips.is_active):
            self._arrived.append(Failure(task.ticket, error))
            return self._arrived[-1]
        logger.warning("%s; another worker is started in its place", error)
        self._replace(task.ticket % len(self._workers))
        self._starved = None
        last = self._arrived[-1] if self._arrived else None
        digest = last.digest if isinstance(last, Item) else self._last_digest
        resumed = task._replace(first_microbatch=num_expected, digest=digest)
        for lost in list(self._tasks):
            if lost.ticket % len(self._workers) != task.ticket % len(self._workers):
                continue
            if lost is not task:
                self._worker_of(lost).assign(lost, self._initial_allowance(lost.first_microbatch))
            elif remedy is Remedy.GO_ON:
                self._worker_of(task).assign(resumed, self._allowance)
        if remedy is Remedy.GO_ON:
            return self._receive(block=block)
        self._arrived.append(Failure(task.ticket, error))
        return self._arrived[-1]

    def _may_skip(self, error: BaseException) -> bool:
        task = self._tasks[0]
        if isinstance(error, (WorkerDiedError, WorkerStalledError)) and not self._worker_of(task).is_alive:
            return False  # nobody is there who could make the next shard
        is_last = len(self._tasks) == 1 and self._plan_shard(task.shard_index + 1) is None
        return self.skips.may_skip(task, error, is_whole_epoch_lost=is_last and not self._has_delivered)

    def _tell_of_group(self, starved: MemoryShortage) -> None:
        if starved.group_bytes >= 0 and not self._has_told_of_group:
            self._has_told_of_group = True
            logger.warning(
                "the control group of this process leaves %.1f MiB for shared memory, and the next microbatch needs "
                "%.1f MiB: microbatches wait for those before them",
                starved.group_bytes / (1 << 20),
                starved.needed_bytes / (1 << 20),
            )

    def _check_starvation(self, worker: Worker, waited_s: float) -> None:
        """Raise if the worker waits for memory that nobody but the caller, or other processes, can give back."""
        starved = self._starved
        if starved is None:
            return
        gc.collect()  # microbatches in reference cycles
        if self.let_go is not None:
            self.let_go()
        held_bytes = worker.held_bytes
        if held_bytes + starved.needed_bytes > starved.limit_bytes:
            raise MemoryLimitError(
                starved.limit_bytes,
                starved.needed_bytes,
                held_bytes,
                "by microbatches that the caller keeps. Let go of some, clone what is kept, or raise "
                "memory_limit_bytes: each worker has an equal share, and a loop needs room for two microbatches",
            )
        # One that has arrived is delivered rather than kept until it is known whether it is its shard's last.
        if starved.group_bytes >= 0 and (waited_s > _SHORT_OF_MEMORY_S or self._arrived):
            raise MemoryLimitError(
                starved.limit_bytes,
                starved.needed_bytes,
                held_bytes,
                f"and the control group of the process leaves {starved.group_bytes:,} bytes, a tenth of its limit kept "
                "for others. Make smaller microbatches, use fewer workers, or give the group more memory",
            )
        self._starved = None
