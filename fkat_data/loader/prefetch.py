"""Shards in work, and their microbatches in order.

Ticket *t* belongs to worker *t mod number of workers*, and a worker does its tasks in the order of their tickets. So
the next microbatch is the next one in the pipe whose turn it is: nothing has to be sorted.
"""

import gc
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from fkat_data.errors import MemoryLimitError, WorkerDiedError
from fkat_data.plan.shard_plan import ShardPlan
from fkat_data.plan.task import Task
from fkat_data.position import Position
from fkat_data.types import Shard
from fkat_data.worker.messages import NO_LIMIT, End, Failure, Item, Starved, Worker, WorkerGone

__all__ = ["Arrival", "Prefetcher", "ShardEnd"]


class Arrival(NamedTuple):
    """The next microbatch.

    Attributes:
        microbatch: What the user's DataLoader yielded.
        is_last_in_shard: Whether its shard ends with it.
        is_last_shard: Whether its shard is the epoch's last.
        size_bytes: Bytes of its tensors and arrays that were copied.
    """

    microbatch: Any
    is_last_in_shard: bool
    is_last_shard: bool
    size_bytes: int


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
        num_shard_prefetches: Shards in work ahead of the current one.
        num_microbatch_prefetches: Microbatches produced and not delivered, for each shard; -1: no bound but memory.
    """

    def __init__(
        self, plan: ShardPlan, workers: Sequence[Worker], num_shard_prefetches: int, num_microbatch_prefetches: int
    ) -> None:
        self._plan = plan
        self._workers = workers
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
        self._allowance = 0
        self._starved: Starved | None = None
        self._sampler_error: Exception | None = None
        self.num_microbatches: dict[str, int] = {}
        """Microbatches of every shard that was seen to its end, by the shard's ``repr``."""

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
        self._assign(position.microbatch)
        self._fill()
        self._begin_shard()

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
            WorkerDiedError: The current shard's worker is gone.
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
                    raise message.error  # and again with the next call: it stays
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
        is_last = item.is_last
        if is_last is None and self._arrived and isinstance(self._arrived[0], End):
            self._arrived.popleft()
            is_last = True
        if is_last:
            return Arrival(item.microbatch, True, self._end_shard(self._delivered), item.size_bytes)
        self._allow(self._delivered + self._num_microbatches_ahead)
        return Arrival(item.microbatch, False, False, item.size_bytes)

    def _end_shard(self, num_microbatches: int) -> bool:
        """Go on to the next shard; return whether the one that ended is the epoch's last."""
        ended = self._tasks.popleft()
        self._num_extra = max(0, self._num_extra - 1)
        if self._plan.num_shards(ended.epoch) is not None:  # an endless sampler's shards are too many to remember
            self.num_microbatches[repr(ended.shard)] = num_microbatches
        if not self._tasks and (self._is_exhausted or self._plan_shard(ended.shard_index + 1) is None):
            return self._sampler_error is None
        self._fill()
        self._begin_shard()
        return False

    def _begin_shard(self) -> None:
        if self._tasks:
            self._delivered = self._tasks[0].first_microbatch
            self._allowance = self._initial_allowance(self._delivered)

    def _fill(self) -> None:
        wanted = 1 + self._num_shards_ahead + self._num_extra
        while len(self._tasks) < wanted and not self._is_exhausted:
            self._assign(0)

    def _assign(self, first_microbatch: int) -> None:
        shard = self._plan_shard(self._next_shard)
        if shard is None:
            return
        task = Task(self._ticket, self._epoch, self._next_shard, shard, first_microbatch)
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
            while True:
                message = worker.receive(block=block and self._starved is None)
                if isinstance(message, Starved):
                    self._starved = message
                elif message is None:
                    if self._starved is None or not block:
                        return None
                    self._check_starvation(worker)
                elif message.ticket >= task.ticket:  # a smaller one was cancelled when it was already on its way
                    self._starved = None
                    self._arrived.append(message)
                    return message
        except WorkerGone as gone:
            error = WorkerDiedError(gone.pid, gone.exit_code, task.shard, task.epoch, num_expected)
            self._arrived.append(Failure(task.ticket, error))
            return self._arrived[-1]

    def _check_starvation(self, worker: Worker) -> None:
        """Raise if the worker waits for memory that nobody but the caller can give back."""
        starved = self._starved
        if starved is None:
            return
        gc.collect()  # microbatches in reference cycles
        held_bytes = worker.held_bytes
        if held_bytes + starved.needed_bytes > starved.limit_bytes:
            raise MemoryLimitError(
                starved.limit_bytes,
                starved.needed_bytes,
                held_bytes,
                "by microbatches that the caller keeps. Let go of some, clone what is kept, or raise "
                "memory_limit_bytes: each worker has an equal share, and a loop needs room for two microbatches",
            )
        self._starved = None
