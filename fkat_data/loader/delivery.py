"""Delivery: from what the prefetcher takes to what the caller receives, and the count of it."""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from fkat_data.device.host import Mover
from fkat_data.device.placement import Placement
from fkat_data.loader.agreement import RankAgreement
from fkat_data.loader.prefetch import Arrival, Prefetcher, ShardEnd
from fkat_data.observe.sink import EventSink
from fkat_data.plan.cursor import Cursor
from fkat_data.types import Microbatch

__all__ = ["Delivery", "DeliveryProgress", "EpochWatch"]

_Taken: TypeAlias = tuple[Arrival | ShardEnd, Mover, Any]


class DeliveryProgress(NamedTuple):
    """What was delivered so far.

    Attributes:
        num_delivered: Microbatches that the caller received.
        delivered_bytes: Their bytes, without those that were never copied.
        delivered_at_s: When the last one was delivered, on the clock of ``time.perf_counter``.
        copied_s: Seconds in which copies to devices were under way.
        num_moving: Microbatches that are moving to the device, or have arrived there, and were not delivered.
        is_over: Whether no iteration is under way.
    """

    num_delivered: int = 0
    delivered_bytes: int = 0
    delivered_at_s: float = 0.0
    copied_s: float = 0.0
    num_moving: int = 0
    is_over: bool = True


class EpochWatch(Protocol):
    """Watches iterations begin and end."""

    def epoch_began(self, epoch: int, progress: DeliveryProgress) -> None:
        """An iteration over an epoch, or over the rest of one, begins."""
        ...

    def epoch_ended(self, epoch: int, progress: DeliveryProgress) -> None:
        """The epoch was delivered to its end."""
        ...


class Delivery:
    """One iteration after the other: each microbatch is moved, handed over and counted.

    Args:
        start_workers: Starts the workers that do not run.
        prefetcher: Gives the microbatches.
        cursor: Counts them.
        placement: The device, and the mover to it.
        agreement: Compares the ranks; None: they are not compared.
        sink: Gets the moves, and ranges for profilers.
        watch: Watches iterations begin and end.
    """

    def __init__(
        self,
        start_workers: Callable[[], None],
        prefetcher: Prefetcher,
        cursor: Cursor,
        placement: Placement,
        agreement: RankAgreement | None,
        sink: EventSink,
        watch: EpochWatch,
    ) -> None:
        self._start_workers = start_workers
        self._prefetcher = prefetcher
        self._cursor = cursor
        self._placement = placement
        self._agreement = agreement
        self._sink = sink
        self._watch = watch
        # Two at most: one that the caller is about to get, and one that moves behind it.
        self._moving: deque[_Taken] = deque()
        self._is_interrupted = False
        self._began_mid_epoch = False
        self._is_first = False
        self._epoch = 0
        self._num_delivered = 0
        self._delivered_bytes = 0
        self._delivered_at_s = 0.0
        self.is_over = True
        """Whether no iteration is under way."""

    @property
    def step(self) -> int:
        """Microbatches of the epoch that were delivered so far."""
        return self._cursor.position.step

    def progress(self) -> DeliveryProgress:
        """Return what was delivered so far."""
        return DeliveryProgress(
            self._num_delivered,
            self._delivered_bytes,
            self._delivered_at_s,
            self._placement.copied_s,
            sum(isinstance(arrival, Arrival) for arrival, _, _ in self._moving),
            self.is_over,
        )

    def begin(self) -> None:
        """Begin an iteration at the cursor's position, with all workers; compare the ranks if that is due.

        Raises:
            RankMismatchError: The ranks do not agree on what they begin with.
        """
        self._start_workers()
        self._begin()
        if self._agreement is not None:
            self._agreement.begin(self._cursor.position)

    def load_to(self, mover: Mover) -> None:
        """Move by another mover from the next microbatch on that is not moving yet."""
        self._placement.use(mover)

    def extend(self, num_shards: int) -> None:
        """Put more shards in work."""
        self._prefetcher.extend(num_shards)

    def stop(self) -> None:
        """End the iteration, and drop what was prefetched."""
        self._moving.clear()
        self._prefetcher.drop()
        self.is_over = True

    def next(self) -> Microbatch:
        """Return the epoch's next microbatch.

        Raises:
            StopIteration: Every microbatch of the epoch was delivered.
            BaseException: The user's, again with every further call.
        """
        try:
            while not self.is_over:
                if self._is_interrupted:
                    self._resume()
                if self._moving:
                    taken = self._moving.popleft()
                elif self._sink.is_profiled():
                    with self._sink.range("wait"):
                        taken = self._take(block=True)
                else:
                    taken = self._take(block=True)
                if taken is None:
                    self._end_epoch()
                elif isinstance(taken[0], ShardEnd):
                    self._cursor.pass_shard(is_last_shard=taken[0].is_last_shard)
                else:
                    return self._deliver(taken[0], taken[1], taken[2])
            raise StopIteration
        except Exception:
            raise
        except BaseException:
            # Ctrl-C, or what a signal handler raises, may have come between two steps that belong together.
            self._is_interrupted = True
            raise

    def count_again(self, size_bytes: int) -> None:
        """Count a microbatch that was delivered before; the position stays."""
        self._num_delivered += 1
        self._delivered_bytes += size_bytes
        self._delivered_at_s = time.perf_counter()

    def prefetch(self) -> None:
        """Start to move the next microbatch to the device, if it has arrived; do not wait."""
        if self._moving or self.is_over or self._is_interrupted:
            return
        try:
            with contextlib.suppress(Exception):  # raised again when it is the microbatch's turn
                taken = self._take(block=False)
                if taken is not None:
                    self._moving.append(taken)
        except BaseException:
            self._is_interrupted = True
            raise

    def _deliver(self, arrival: Arrival, mover: Mover, moving: Any) -> Microbatch:
        try:
            if self._agreement is not None:
                self._agreement.deliver(self._cursor.position, arrival.digest)
            microbatch = mover.finish(moving) if mover.copies else moving
        except BaseException:
            self._is_interrupted = True
            raise
        if self._placement.mover.copies:
            self.prefetch()
        if self._is_first:
            self._is_first = self._began_mid_epoch = False
            self._sink.first_delivered()
        # Counted last: what is not counted is delivered again after an interruption.
        self._num_delivered += 1
        self._delivered_bytes += arrival.size_bytes
        self._delivered_at_s = time.perf_counter()
        self._cursor.deliver(is_last_in_shard=arrival.is_last_in_shard, is_last_shard=arrival.is_last_shard)
        return microbatch

    def _take(self, *, block: bool) -> _Taken | None:
        arrival = self._prefetcher.take(block=block)
        if arrival is None:
            return None
        mover = self._placement.mover
        if isinstance(arrival, ShardEnd):
            return arrival, mover, None
        if not mover.copies and not self._sink.is_profiled():
            return arrival, mover, arrival.microbatch
        began_s = time.perf_counter()
        try:
            with self._sink.range("move"):
                moving = mover.begin(arrival.microbatch)
            self._sink.moved(began_s, time.perf_counter())
        except BaseException:
            self._is_interrupted = True
            raise
        return arrival, mover, moving

    def _begin(self) -> None:
        left = self._cursor.position
        position = self._cursor.start()
        if position.epoch != left.epoch:
            self._prefetcher.leave(left)
        self._moving.clear()
        self._is_interrupted = False
        self.is_over = False
        self._epoch = position.epoch
        self._is_first = True
        self._began_mid_epoch = position.shard > 0 or position.microbatch > 0
        self._sink.iteration_began()
        self._watch.epoch_began(position.epoch, self.progress())
        self._prefetcher.start(position)

    def _resume(self) -> None:
        """Go on after the last delivered microbatch."""
        self._moving.clear()
        self._is_interrupted = False
        self._prefetcher.start(self._cursor.position)

    def _end_epoch(self) -> None:
        self._watch.epoch_ended(self._epoch, self.progress())
        # The epoch is still this one if the plan did not know its end, or this rank had no shard in it.
        if self._cursor.position.epoch == self._epoch:
            self._cursor.pass_epoch()
        if self._began_mid_epoch:
            # Resumed where nothing was left: the caller gets the next epoch, not an empty one.
            self._begin()
        else:
            self.is_over = True
