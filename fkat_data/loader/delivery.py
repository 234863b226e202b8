"""Delivery: from what the prefetcher takes to what the caller receives, and the count of it."""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from fkat_data.device.host import HostMover, Mover
from fkat_data.loader.agreement import RankAgreement
from fkat_data.loader.prefetch import Arrival, Prefetcher, ShardEnd
from fkat_data.observe.events import EventRecorder
from fkat_data.observe.profile import TrainerProfile
from fkat_data.plan.cursor import Cursor
from fkat_data.types import Microbatch

__all__ = ["Delivery", "EpochWatch"]

_Taken: TypeAlias = tuple[Arrival | ShardEnd, Mover, Any]


class EpochWatch(Protocol):
    """Who wants to know of iterations."""

    def begin(self, epoch: int) -> None:
        """An iteration over an epoch, or over the rest of one, begins."""
        ...

    def end(self, epoch: int) -> None:
        """The epoch was delivered to its end."""
        ...


class Delivery:
    """One iteration after the other: each microbatch is moved, handed over and counted.

    Args:
        prefetcher: Where microbatches come from.
        cursor: Where they are counted.
        mover: Takes them to their device.
        profile: Told of waiting and moving.
    """

    def __init__(self, prefetcher: Prefetcher, cursor: Cursor, mover: Mover, profile: TrainerProfile) -> None:
        self._prefetcher = prefetcher
        self._cursor = cursor
        self._profile = profile
        # Two at most: one that the caller is about to get, and one on its way behind it.
        self._ahead: deque[_Taken] = deque()
        self._is_interrupted = False
        self._began_mid_epoch = False
        self._epoch = 0
        self._mover = mover
        self.is_over = True
        """Whether no iteration is under way."""
        self.agreement: RankAgreement | None = None
        """Told of every microbatch, where ranks are compared."""
        self.watch: EpochWatch | None = None
        """Told of the begin and the end of iterations."""
        self.recorder: EventRecorder | None = None
        """Given an event for each copy to a device."""
        self.on_wait: Callable[[float, float], None] | None = None
        """Told from when to when the caller waited for copies."""
        self._on_copied: Callable[[float, float], None] | None = None
        self.delivered = 0
        self.delivered_bytes = 0
        self.delivered_at_s = 0.0
        self._copied_before_s = 0.0
        prefetcher.let_go = mover.wait

    @property
    def num_ahead(self) -> int:
        """Microbatches on their way to the device, or there, and not delivered."""
        return sum(isinstance(arrival, Arrival) for arrival, _, _ in self._ahead)

    @property
    def copied_s(self) -> float:
        """Seconds in which copies to devices were under way."""
        return self._copied_before_s + self._mover.copied_s

    def begin(self) -> None:
        """Begin an iteration where the cursor says."""
        left = self._cursor.position
        position = self._cursor.start()
        if position.epoch != left.epoch:
            self._prefetcher.leave(left)
        self._ahead.clear()
        self._is_interrupted = False
        self.is_over = False
        self._epoch = position.epoch
        self._began_mid_epoch = position.shard > 0 or position.microbatch > 0
        if self.watch is not None:
            self.watch.begin(position.epoch)
        self._prefetcher.start(position)

    def tell_of_copies(self, on_copied: Callable[[float, float], None]) -> None:
        """Have this called with the begin and the end of each microbatch's copies to a device."""
        self._on_copied = self._mover.on_copied = on_copied

    def load_to(self, mover: Mover) -> None:
        """Move what is not yet on its way by another mover."""
        self._copied_before_s = self.copied_s
        self._prefetcher.let_go = mover.wait
        self._mover = mover
        mover.on_copied = self._on_copied

    def stop(self) -> None:
        """End the iteration; what was prefetched is dropped."""
        self._ahead.clear()
        self._prefetcher.drop()
        self.is_over = True

    def next(self) -> Microbatch:
        """Return the epoch's next microbatch.

        Raises:
            StopIteration: Every microbatch of the epoch was delivered.
            BaseException: The user's, again with every further call.
        """
        try:
            return self._next()
        except Exception:
            raise
        except BaseException:
            # Ctrl-C, or what a signal handler raises, may have hit between two steps that belong together.
            self._is_interrupted = True
            raise

    def _next(self) -> Microbatch:
        while not self.is_over:
            if self._is_interrupted:
                self._go_on()
            taken = self._ahead.popleft() if self._ahead else self._wait()
            if taken is None:
                self._end_epoch()
                continue
            arrival, mover, moving = taken
            if isinstance(arrival, ShardEnd):
                self._cursor.pass_shard(is_last_shard=arrival.is_last_shard)
                continue
            try:
                if self.agreement is not None:
                    self.agreement.deliver(self._cursor.position, arrival.digest)
                microbatch = mover.finish(moving)
            except BaseException:
                self._is_interrupted = True
                raise
            if not isinstance(self._mover, HostMover):
                self.load_ahead()
            # The last thing: what is not counted is delivered again after an interruption.
            self._count(arrival)
            return microbatch
        raise StopIteration

    def _count(self, arrival: Arrival) -> None:
        self.delivered += 1
        self.delivered_bytes += arrival.size_bytes
        self.delivered_at_s = time.perf_counter()
        self._began_mid_epoch = False
        self._cursor.deliver(is_last_in_shard=arrival.is_last_in_shard, is_last_shard=arrival.is_last_shard)

    def load_ahead(self) -> None:
        """Bring the next microbatch on its way to the device, if it has arrived; does not wait."""
        if self._ahead or self.is_over or self._is_interrupted:
            return
        try:
            with contextlib.suppress(Exception):  # raised again when its turn has come
                taken = self._take(block=False)
                if taken is not None:
                    self._ahead.append(taken)
        except BaseException:
            self._is_interrupted = True
            raise

    def _wait(self) -> _Taken | None:
        if not self._profile.is_active:
            return self._take(block=True)
        with self._profile.range("wait"):
            return self._take(block=True)

    def _take(self, *, block: bool) -> _Taken | None:
        arrival = self._prefetcher.take(block=block)
        if isinstance(arrival, Arrival):
            mover = self._mover
            if isinstance(mover, HostMover) and not self._profile.is_active:
                return arrival, mover, arrival.microbatch
            began_s, waited_s = time.perf_counter(), mover.waited_s
            try:
                with self._profile.range("move"):
                    moving = mover.begin(arrival.microbatch)
                if self.on_wait is not None and mover.waited_s > waited_s:
                    self.on_wait(began_s, began_s + mover.waited_s - waited_s)
                if self.recorder is not None:
                    self.recorder.add("move", began_s, time.perf_counter())
            except BaseException:
                self._is_interrupted = True
                raise
            return arrival, mover, moving
        return None if arrival is None else (arrival, self._mover, None)

    def _go_on(self) -> None:
        """Begin again after what was delivered last."""
        self._ahead.clear()
        self._is_interrupted = False
        self._prefetcher.start(self._cursor.position)

    def _end_epoch(self) -> None:
        position = self._cursor.position
        if self.watch is not None:
            self.watch.end(self._epoch)
        # A state that was taken at an end which the plan could not see, or a part of an epoch without any shard.
        if position.epoch == self._epoch:
            self._cursor.position = position.after_epoch()
        if self._began_mid_epoch:
            # Resumed where nothing was left: the caller gets the next epoch, not an empty one.
            self.begin()
        else:
            self.is_over = True
