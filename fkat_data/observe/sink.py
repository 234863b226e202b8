"""The one sink for what a loader's parts report: each part gets it when it is made, and knows no listener."""

import logging
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager

from fkat_data.observe.durations import NUM_BUCKETS, Durations, bucket_of
from fkat_data.observe.events import COPY_THREAD, LONG_S, EventRecorder
from fkat_data.observe.profile import TrainerProfile
from fkat_data.observe.timeline import Timeline
from fkat_data.types import Profiler, Shard

logger: logging.Logger = logging.getLogger(__name__)


class EventSink:
    """Adds up how long the trainer waits; draws waits, moves and copies; opens ranges for profilers.

    All times are on the clock of ``time.perf_counter``.

    Args:
        timeline: Where events are drawn; None: nowhere.
        profiler: The user's profiler; None: only torch's own, while it records.
        loader_name: The loader's class, for the names of ranges.
    """

    def __init__(
        self,
        timeline: Timeline | None = None,
        profiler: Profiler | None = None,
        loader_name: str = "ShardedDataLoader",
    ) -> None:
        self._timeline = timeline
        self._copies: EventRecorder | None = None
        self._is_before_first = True
        profile = TrainerProfile(profiler, loader_name)
        self.is_profiled: Callable[[], bool] = profile.is_active
        """Returns whether a profiler listens; asked for each microbatch."""
        self.range: Callable[[str], AbstractContextManager[None]] = profile.range
        """Returns a context in which the named action runs: ``wait``, ``decode`` or ``move``."""
        self.waited_s: float = 0.0
        """Seconds that the trainer has waited."""
        self.waited_first_s: float = 0.0
        """Those of them before the first microbatch of an iteration."""
        self.waited_behind_s: float = 0.0
        """Those of them in which later microbatches had arrived: a slow one held them up."""
        self.counted_s: float = 0.0
        """Those of ``waited_s`` that are counted for a microbatch that was delivered, or were for none."""
        self._waits = array("d", bytes(8 * NUM_BUCKETS))
        self._has_said_alone = False

    def waiting(self, num_delivered: int) -> Durations:
        """Return how long the trainer waited for each of the microbatches that were delivered."""
        return Durations.snapshot(self._waits, num_delivered)

    def iteration_began(self) -> None:
        """Record that an iteration begins."""
        self._is_before_first = True
        self.counted_s = self.waited_s

    def waited_for_microbatch(self) -> None:
        """Count the waiting since the last microbatch for the one that is delivered now."""
        # In this order: an interruption in between counts it for none, never for two.
        before_s, self.counted_s = self.counted_s, self.waited_s
        self._waits[bucket_of(self.counted_s - before_s)] += 1

    def first_delivered(self) -> None:
        """Record that the caller has the first microbatch of an iteration."""
        self._is_before_first = False

    def made_alone(self, shard: Shard, kind: str, num_workers: int) -> None:
        """Log, once, that one worker makes a shard that several were to make together."""
        if not self._has_said_alone:
            self._has_said_alone = True
            logger.info(
                "one worker makes all of shard %r instead of %d workers together: what the factory returns "
                "(%s) cannot make a microbatch without those before it. A DataLoader over a dataset with "
                "indices can, and so can an object with num_microbatches and microbatch(index)",
                shard,
                num_workers,
                kind,
            )

    def waited(self, began_s: float, ended_s: float, *, is_behind: bool = False) -> None:
        """Record a wait for a worker, or for copies to a device.

        Args:
            began_s: When it began.
            ended_s: When it ended.
            is_behind: Whether later microbatches had arrived.
        """
        duration_s = ended_s - began_s
        if is_behind:
            self.waited_behind_s += duration_s
        self.waited_s += duration_s
        if self._is_before_first:
            self.waited_first_s += duration_s
        if self._timeline is not None and duration_s > LONG_S:
            self._timeline.recorder.add("wait", began_s, ended_s)

    def moved(self, began_s: float, ended_s: float) -> None:
        """Record how long the host issued the copies of a microbatch."""
        if self._timeline is not None:
            self._timeline.recorder.add("move", began_s, ended_s)

    def copied(self, began_s: float, ended_s: float) -> None:
        """Record how long the copies of a microbatch were under way; the first one opens the timeline's track."""
        if self._timeline is None:
            return
        if self._copies is None:
            self._copies = self._timeline.recorder_of(COPY_THREAD, "copies to the device")
        self._copies.add("copy", began_s, ended_s)
        if self._copies.is_due:
            self._timeline.write(self._copies.take())
