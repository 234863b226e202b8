"""Delivery of microbatches: moves each to the device, returns it to the caller, and counts it.

Ctrl-C, or an exception that a signal's handler raises, may end a call between any two instructions, and leave prefetcher,
pipes and workers half changed. So ``Delivery`` stores the position at which all of them agree, and sets it to None for as
long as a call changes them. If the next call finds None, the call before it was interrupted: it ends the workers, starts
new ones, and prefetches from the caller's position again. A call that only waits changes nothing, and needs none of this.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from fkat_data.device.host import Mover, Placement
from fkat_data.engine.agreement import RankAgreement
from fkat_data.engine.observation import DeliveryProgress, Observation
from fkat_data.engine.prefetch import Arrival, HungStartError, Prefetcher, Raised, TaskEnd
from fkat_data.engine.worker_pool import WorkerPool
from fkat_data.observe.sink import EventSink
from fkat_data.plan.iteration import Cursor
from fkat_data.plan.position import Position, Task
from fkat_data.runtime.interruption import genuine
from fkat_data.seeding import microbatch_seed
from fkat_data.types import Microbatch

_logger = logging.getLogger(__name__)

_Taken: TypeAlias = tuple[Arrival | TaskEnd | Raised, Mover, Any]
# Not a position of the caller's: nothing is half done, and the next call restarts the prefetcher at the cursor's position.
_RESTART = Position(-1, -1, -1, -1)


class Delivery:
    """One iteration after the other: each microbatch is moved, handed over and counted.

    Args:
        pool: The workers, which it starts and releases.
        prefetcher: Gives the microbatches.
        cursor: Counts them.
        placement: The device, and the mover to it.
        agreement: Compares the ranks; None: they are not compared.
        sink: Gets the moves, and ranges for profilers.
        observation: Learns where iterations begin and end.
        on_begin: Called with the position where an iteration begins; None: no rank shares the workers.
    """

    def __init__(
        self,
        pool: WorkerPool,
        prefetcher: Prefetcher,
        cursor: Cursor,
        placement: Placement,
        agreement: RankAgreement | None,
        sink: EventSink,
        observation: Observation,
        on_begin: Callable[[Position], None] | None = None,
    ) -> None:
        self._pool = pool
        self._thread = 0
        self._prefetcher = prefetcher
        self._cursor = cursor
        self._placement = placement
        self._agreement = agreement
        self._sink = sink
        self._observation = observation
        self._on_begin = on_begin
        # At most two: the next microbatch, and the one behind it, whose copy to the device has begun.
        self._moving: deque[_Taken] = deque()
        # The next microbatches, of one message, which need not move.
        self._chunk: deque[Microbatch] = deque()
        # Where prefetcher and workers agree with the cursor, compared by identity. None: a call changes them, or was
        # interrupted.
        self._consistent_position: Position | None = _RESTART
        self._began_mid_epoch = False
        self._is_first = False
        self._epoch = 0
        self._num_delivered = 0
        self._delivered_bytes = 0
        self._delivered_at_s = 0.0
        self.is_over: bool = True
        """Whether no iteration is under way."""
        self.task: Task | None = None
        """The task that has made what ``next`` returned last."""

    def progress(self) -> DeliveryProgress:
        """Return what was delivered so far."""
        return DeliveryProgress(
            self._num_delivered,
            self._delivered_bytes,
            self._delivered_at_s,
            self._placement.copied_s,
            len(self._chunk) + sum(isinstance(arrival, Arrival) for arrival, _, _ in list(self._moving)),
            self.is_over,
        )

    def begin(self) -> None:
        """Begin an iteration at the cursor's position, with all workers; compare the ranks if that is due.

        Raises:
            RankMismatchError: The ranks do not agree on what they begin with.
        """
        self._make_consistent()
        self._thread = threading.get_ident()
        self._pool.start()
        self._begin()
        if self._agreement is not None:
            self._agreement.begin(self._cursor.position)

    def moved_now(self, microbatch: Microbatch) -> Microbatch:
        """Return a microbatch that was not prefetched, moved to the device."""
        mover = self._placement.mover
        return mover.finish(mover.begin(microbatch)) if mover.copies else microbatch

    def load_to(self, mover: Mover) -> None:
        """Move by another mover from the next microbatch on that is not moving yet."""
        self._placement.use(mover)
        if self._consistent_position is not None and self._chunk:
            self._consistent_position = _RESTART  # they are taken again

    def make_again(self) -> None:
        """Have the next call drop what was prefetched, and begin again at the caller's position."""
        if self._consistent_position is not None:
            self._consistent_position = _RESTART
        if self._on_begin is not None:  # what ranks that share workers have of the plan before is not of this one
            self._on_begin(self._cursor.position)

    def count_ahead(self) -> int:
        """Return the microbatches that have arrived and were not delivered, after receiving what workers have ready."""
        consistent_position = self._consistent_position
        if self.is_over or consistent_position is None or consistent_position is _RESTART:
            return 0
        self._consistent_position = None
        self._prefetcher.receive_ready()
        self._consistent_position = consistent_position
        return self._prefetcher.num_arrived + self.progress().num_moving

    def extend(self, num_tasks: int) -> None:
        """Put more tasks in work."""
        position = self._cursor.position
        if self._consistent_position is not position:
            self._recover(position)
        self._consistent_position = None
        self._prefetcher.extend(num_tasks)
        self._consistent_position = position

    def go_on_behind_epoch(self) -> None:
        """Let the iteration go on with the next epoch where this one ends, as where it began within it."""
        self._began_mid_epoch = True

    def stop(self) -> None:
        """End the iteration, and drop what was prefetched."""
        self.is_over = True
        self._clear()
        self._prefetcher.drop()
        self._pool.rest()

    def suspend(self) -> bool:
        """Have the next call go on with new workers at the caller's position; return False where a call is under way."""
        if self._consistent_position is None or self._thread != threading.get_ident():
            return False
        self._consistent_position = None
        return True

    def next(self) -> Microbatch:
        """Return the epoch's next microbatch; it counts when the cursor hands it over.

        Raises:
            StopIteration: Every microbatch of the epoch was delivered.
            BaseException: The user's, again with every further call.
        """
        cursor = self._cursor
        position = cursor.position
        if self._chunk and self._consistent_position is position:
            self._consistent_position = None
            microbatch = self._chunk.popleft()
            epoch, task_index, number, step, ended, left_out = position
            # skips NamedTuple's Python `__new__`: twice as fast
            after = tuple.__new__(Position, (epoch, task_index, number + 1, step + 1, ended, left_out))
            self._num_delivered += 1
            self._delivered_at_s = time.perf_counter()
            cursor.advance(after)
            self._consistent_position = after
            return microbatch
        while not self.is_over:
            position = cursor.position
            if position.epoch != self._epoch:
                self._end_epoch()
                continue
            if self._consistent_position is not position:
                self._recover(position)
            self._consistent_position = None
            try:
                taken = self._moving.popleft() if self._moving else self._take()
            except genuine(HungStartError):
                continue  # as after an interruption: with other workers
            if taken is None:
                # The epoch is still this one: the plan did not know its end, or this rank had no task in it.
                cursor.pass_epoch()
            elif isinstance(taken[0], Arrival):
                return self._deliver(taken[0], taken[1], taken[2])
            elif isinstance(taken[0], TaskEnd):
                cursor.pass_task(taken[0].after)
            else:
                self._consistent_position = position
                raise taken[0].error
            self._consistent_position = cursor.position
        raise StopIteration

    def prefetch(self) -> None:
        """Start to move the next microbatch to the device, if it has arrived; do not wait."""
        if self._moving or self.is_over:
            return
        position = self._cursor.position
        if self._consistent_position is not position:
            self._recover(position)
        self._consistent_position = None
        self._consistent_position = position if self._move_ahead() else _RESTART

    def _deliver(self, arrival: Arrival, mover: Mover, moving: Any) -> Microbatch:
        if self._agreement is not None:
            self._agreement.deliver(self._cursor.position, arrival.digest)
        microbatch = mover.finish(moving) if mover.copies else moving
        is_ahead_whole = not self._placement.mover.copies or self._move_ahead()
        if self._is_first:
            self._began_mid_epoch = False
            self._sink.first_delivered()
            self._is_first = False
        self.task = arrival.task
        self._num_delivered += 1
        self._delivered_bytes += arrival.size_bytes
        self._delivered_at_s = time.perf_counter()
        sink = self._sink
        if sink.waited_s != sink.counted_s:
            sink.waited_for_microbatch()
        self._cursor.advance(arrival.after)
        self._consistent_position = arrival.after if is_ahead_whole else _RESTART
        return microbatch

    def _move_ahead(self) -> bool:
        """Start to move the next microbatch, if it has arrived; return False if it could not be moved."""
        if self._moving:
            return True
        arrival = self._prefetcher.take(block=False)
        if arrival is None or isinstance(arrival, Raised):  # an error stays with the prefetcher until its turn
            return True
        if isinstance(arrival, TaskEnd):
            self._moving.append((arrival, self._placement.mover, None))
            return True
        try:
            self._moving.append(self._moved(arrival))
        except genuine(Exception):
            return False  # it is moved again, and raises, when it is its turn
        return True

    def _take(self) -> _Taken | None:
        is_profiled = self._sink.is_profiled()
        if is_profiled:
            with self._sink.range("wait"):
                arrival = self._prefetcher.take(block=True)
        else:
            arrival = self._prefetcher.take(block=True)
        if arrival is None:
            return None
        mover = self._placement.mover
        if not isinstance(arrival, Arrival):
            return arrival, mover, None
        if mover.copies or is_profiled:
            return self._moved(arrival)
        if self._prefetcher.has_chunk and self._agreement is None:
            self._chunk.extend(self._prefetcher.take_chunk())
        return arrival, mover, arrival.microbatch

    def _moved(self, arrival: Arrival) -> _Taken:
        """Begin to move a microbatch."""
        mover = self._placement.mover
        began_s = time.perf_counter()
        with self._sink.range("move"):
            moving = mover.begin(arrival.microbatch)
        self._sink.moved(began_s, time.perf_counter())
        return arrival, mover, moving

    def _begin(self) -> None:
        self._make_consistent()
        left = self._cursor.position
        position = self._cursor.first()
        self._consistent_position = None
        if position.epoch != left.epoch:
            self._prefetcher.leave(left)
        self._clear()
        self._epoch = position.epoch
        self._is_first = True
        self._began_mid_epoch = self._cursor.is_loaded and (position.task_index > 0 or position.microbatch > 0)
        self._cursor.start(position)
        self.is_over = False
        self._sink.iteration_began()
        self._observation.epoch_began(position.epoch, self.progress())
        if self._on_begin is not None:
            self._on_begin(position)
        self._prefetcher.start(position)
        self._consistent_position = position

    def _recover(self, position: Position) -> None:
        """Go on at a position after an interrupted call."""
        if self._consistent_position is None and self._prefetcher.end_wait():
            return
        self._make_consistent()
        self._clear()
        self._consistent_position = None
        self._prefetcher.start(position)

    def _make_consistent(self) -> None:
        """Replace what an interrupted call has left half changed."""
        if self._consistent_position is not None:
            return
        if not self._prefetcher.end_wait():
            self._clear()
            self._placement.release()
            self._prefetcher.reset()
            self._pool.restart()
        self._consistent_position = _RESTART

    def _clear(self) -> None:
        self._moving.clear()
        self._chunk.clear()

    def _end_epoch(self) -> None:
        self._observation.epoch_ended(self._epoch, self.progress())
        if self._began_mid_epoch:
            # Resumed where nothing was left: the caller gets the next epoch, not an empty one.
            self._begin()
            return
        self.is_over = True
        self._pool.rest()
        # A task without a microbatch, which a factory has made a loader of, is no fault.
        if self._is_first and microbatch_seed() is None:
            _logger.warning("epoch %d has no microbatch on this rank: no sample, or nothing made of them", self._epoch)
