"""What a loader says of itself: its numbers, a line at the end of an epoch, and the trainer's part of the timeline."""

import logging
import os
import time
from collections.abc import Callable

from fkat_data.loader.delivery import Delivery
from fkat_data.loader.prefetch import Prefetcher
from fkat_data.loader.worker_pool import WorkerPool
from fkat_data.observe.events import COPY_THREAD, CYCLE_S, MAIN_THREAD, EventRecorder
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.observe.timeline import Timeline
from fkat_data.types import Microbatch

__all__ = ["Observation"]

logger = logging.getLogger(__name__)

_SAMPLE_S = 0.05
_LAST_EVENTS_S = 0.2
_TELL_S = 1.0
_MEBIBYTE = 1 << 20


class _CopyTrack:
    """Draws copies to a device, on a track that is there as soon as one was made.

    Args:
        timeline: Where they are drawn.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._recorder: EventRecorder | None = None

    def add(self, began_s: float, ended_s: float) -> None:
        """Draw the copies of a microbatch."""
        if self._recorder is None:
            self._recorder = self._timeline.recorder_of(COPY_THREAD, "copies to the device")
        self._recorder.add("copy", began_s, ended_s)
        if self._recorder.is_due:
            self._recorder.flush()


class Observation:
    """Collects what a loader's parts count.

    Args:
        crew: The workers.
        prefetcher: What has arrived.
        delivery: What was delivered.
        num_shard_prefetches: As the loader was given it.
        timeline: Where the trainer's events go; None: nothing is drawn.
    """

    def __init__(
        self,
        crew: WorkerPool,
        prefetcher: Prefetcher,
        delivery: Delivery,
        num_shard_prefetches: int,
        timeline: Timeline | None,
    ) -> None:
        self._crew = crew
        self._prefetcher = prefetcher
        self._delivery = delivery
        self._num_shard_prefetches = num_shard_prefetches
        self._timeline = timeline
        self._num_cpus = len(os.sched_getaffinity(0))
        self._elapsed_s = 0.0
        self._began_s: float | None = None
        self._before = LoaderStatistics()
        self._returned_s: float | None = None
        self._is_taking = False
        self._next_drawn_s = self._sampled_s = self._told_s = 0.0
        crew.waiting.num_delivered = lambda: delivery.delivered
        delivery.on_wait = crew.waiting.add
        if timeline is not None:
            crew.waiting.recorder = delivery.recorder = timeline.recorder
            delivery.tell_of_copies(_CopyTrack(timeline).add)
        delivery.watch = self

    def statistics(self) -> LoaderStatistics:
        """Return the numbers of this moment."""
        workers, delivery, times = list(self._crew.workers), self._delivery, self._crew.times()
        num_on_their_way = sum(max(0, worker.times().produced - worker.num_received) for worker in workers)
        return LoaderStatistics(
            delivered=delivery.delivered,
            delivered_bytes=delivery.delivered_bytes,
            elapsed_s=self._elapsed_s + self._under_way_s(),
            waited_s=self._crew.waiting.total_s,
            waited_first_s=self._crew.waiting.first_s,
            produced=times.produced,
            queue_depth=0 if delivery.is_over else num_on_their_way + self._prefetcher.num_arrived + delivery.num_ahead,
            store_s=times.of("store"),
            build_s=times.of("build"),
            produce_s=times.of("produce"),
            replay_s=times.of("replay"),
            encode_s=times.of("encode"),
            blocked_s=times.of("blocked"),
            idle_s=times.of("idle"),
            copied_s=delivery.copied_s,
            num_segments=sum(worker.num_segments for worker in workers),
            segment_bytes=sum(worker.segment_bytes for worker in workers),
            held_bytes=self._crew.held_bytes,
            worker_restarts=self._prefetcher.restarts.total,
            skipped_shards=self._prefetcher.skips.total,
            num_workers=self._crew.num_processes,
            num_shard_prefetches=self._num_shard_prefetches,
            num_cpus=self._num_cpus,
        )

    def begin(self, epoch: int) -> None:
        """Take note that an iteration begins."""
        self._elapsed_s += self._under_way_s()
        self._began_s = None
        self._crew.waiting.begin()
        self._before = self.statistics()
        self._began_s = time.perf_counter()
        if self._timeline is not None:
            self._returned_s = None
            self._timeline.tell(f"epoch {epoch} begins", self._before)
            self._timeline.sample(self._before)

    def end(self, epoch: int) -> None:
        """Take note that an epoch was delivered to its end, and say in one line how it went."""
        if self._began_s is not None:
            self._elapsed_s += time.perf_counter() - self._began_s
            self._began_s = None
        now = self.statistics()
        done = now.since(self._before)
        if self._timeline is not None:
            self._timeline.tell(f"epoch {epoch} ends", now, verdict=str(done.verdict))
        if done.delivered:
            logger.info(
                "epoch %d: %d microbatches in %.1f s (%.4g a second, %.4g MiB/s); %s",
                epoch,
                done.delivered,
                done.elapsed_s,
                done.delivered / done.elapsed_s,
                done.delivered_bytes / _MEBIBYTE / done.elapsed_s,
                done.verdict,
            )

    def drawn(self, take: Callable[[], Microbatch]) -> Callable[[], Microbatch]:
        """Return a function that takes the next microbatch as ``take`` does, and draws it where there is a timeline."""
        timeline = self._timeline
        if timeline is None:
            return take

        def take_and_draw() -> Microbatch:
            called_s = time.perf_counter()
            if self._returned_s is not None:
                timeline.recorder.add("step", self._returned_s, called_s)
                self._returned_s = None
            is_drawn = called_s >= self._next_drawn_s
            self._is_taking = True
            try:
                return take()
            finally:
                self._is_taking = False
                if is_drawn:
                    self._draw(timeline, called_s)

        return take_and_draw

    def close(self) -> None:
        """Write what is left of the timeline."""
        timeline = self._timeline
        if timeline is None:
            return
        self._returned_s = None
        for worker in self._crew.workers:
            worker.dismiss()
        deadline_s = time.monotonic() + _LAST_EVENTS_S
        for worker in self._crew.workers:
            if not self._is_taking:  # else another thread, or the one that was interrupted, is reading the pipe
                worker.take_events(deadline_s)
            times = worker.times()
            if times.stage:
                last = EventRecorder(timeline.write, worker.pid, MAIN_THREAD)
                last.add(times.stage, times.began_s, time.perf_counter(), times.place)
                last.flush()
        timeline.tell("loader closed", self.statistics())

    def _draw(self, timeline: Timeline, called_s: float) -> None:
        """Draw the call of ``next`` that began then, and from time to time the numbers."""
        self._returned_s = now_s = time.perf_counter()
        self._next_drawn_s = called_s + CYCLE_S
        timeline.recorder.add("next", called_s, now_s, self._delivery.delivered - 1)
        if now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            timeline.sample(self.statistics())
        if now_s - self._told_s >= _TELL_S:
            self._told_s = now_s
            timeline.tell("statistics", self.statistics())
        elif timeline.recorder.is_due:
            timeline.recorder.flush()

    def _under_way_s(self) -> float:
        """Return how long the iteration under way has taken, up to its last delivery."""
        return 0.0 if self._began_s is None else max(0.0, self._delivery.delivered_at_s - self._began_s)
