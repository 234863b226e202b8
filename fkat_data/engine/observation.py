"""What a loader reports of itself: its statistics, a line at the end of an epoch, and the trainer's timeline."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from fkat_data.engine.prefetch import Prefetcher
from fkat_data.engine.settings import EngineSettings
from fkat_data.engine.worker_pool import WorkerPool
from fkat_data.errors.wording import counted, readable_bytes
from fkat_data.observe.events import CYCLE_S, MAIN_THREAD, EventRecorder
from fkat_data.observe.sink import EventSink
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.observe.timeline import Timeline
from fkat_data.runtime.machine import num_usable_cpus
from fkat_data.types import Microbatch
from fkat_data.worker.worker import PipedWorker

logger: logging.Logger = logging.getLogger(__name__)

_SAMPLE_S = 0.05
_LAST_EVENTS_S = 0.2
_RECORD_S = 1.0


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


class Observation:
    """Collects what a loader's parts count.

    Args:
        pool: The workers.
        prefetcher: What has arrived.
        sink: How long the trainer waited.
        settings: The engine's.
    """

    def __init__(self, pool: WorkerPool, prefetcher: Prefetcher, sink: EventSink, settings: EngineSettings) -> None:
        self._settings = settings
        self._pool = pool
        self._prefetcher = prefetcher
        self._sink = sink
        self._timeline = settings.workers.timeline
        self._num_cpus = num_usable_cpus()
        self._elapsed_s = 0.0
        self._began_s: float | None = None
        self._before = settings.statistics_type()
        self._returned_s: float | None = None
        self._is_taking = False
        self._next_traced_s = self._sampled_s = self._recorded_s = 0.0

    def statistics(self, progress: DeliveryProgress) -> LoaderStatistics:
        """Return the present numbers, with what was delivered so far."""
        reports = self._pool.reports()
        times = self._pool.times(reports)
        num_in_pipe = sum(max(0, each.times.produced - each.num_received) for each in reports)
        num_ready = num_in_pipe + self._prefetcher.num_arrived + progress.num_moving
        return self._settings.statistics_type(
            delivered=progress.num_delivered,
            delivered_bytes=progress.delivered_bytes,
            elapsed_s=self._elapsed_s + self._under_way_s(progress),
            waited_s=self._sink.waited_s,
            waited_first_s=self._sink.waited_first_s,
            waited_behind_s=self._sink.waited_behind_s,
            produced=times.produced,
            produced_by_caller=self._pool.startup.num_made,
            queue_depth=0 if progress.is_over else num_ready,
            store_s=times.of("store"),
            build_s=times.of("build"),
            produce_s=times.of("produce"),
            replay_s=times.of("replay"),
            encode_s=times.of("encode"),
            blocked_s=times.of("blocked"),
            idle_s=times.of("idle"),
            copied_s=progress.copied_s,
            num_segments=sum(each.num_segments for each in reports),
            segment_bytes=sum(each.segment_bytes for each in reports),
            held_bytes=sum(each.held_bytes for each in reports),
            worker_restarts=self._prefetcher.restarts.total,
            skipped_shards=self._prefetcher.skips.total,
            skipped_samples=self._prefetcher.num_skipped_samples,
            num_workers=self._pool.num_workers,
            num_workers_per_shard=self._pool.group_size,
            num_shard_prefetches=self._settings.num_tasks_ahead,
            num_cpus=self._num_cpus,
            waiting=self._sink.waiting(progress.num_delivered),
            making=times.making,
            made_on=self._pool.made_on(reports),
            opened_alone=self._pool.opened_alone,
        )

    def epoch_began(self, epoch: int, progress: DeliveryProgress) -> None:
        """Start to measure an iteration."""
        self._elapsed_s += self._under_way_s(progress)
        self._began_s = None
        self._before = self.statistics(progress)
        self._began_s = time.perf_counter()
        if self._timeline is not None:
            self._returned_s = None
            self._timeline.record(f"epoch {epoch} begins", self._before)
            self._timeline.sample(self._before)

    def epoch_ended(self, epoch: int, progress: DeliveryProgress) -> None:
        """Log one line about an epoch that was delivered to its end."""
        if self._began_s is not None:
            self._elapsed_s += time.perf_counter() - self._began_s
            self._began_s = None
        now = self.statistics(progress)
        done = now.since(self._before)
        if self._timeline is not None:
            self._timeline.record(f"epoch {epoch} ends", now, verdict=str(done.verdict))
        if done.delivered and done.elapsed_s > 0:  # an interrupted call has not begun to measure
            logger.info(
                "epoch %d: %s in %.1f s (%.4g a second, %s/s); %s",
                epoch,
                counted(done.delivered, "microbatch"),
                done.elapsed_s,
                done.delivered / done.elapsed_s,
                readable_bytes(done.delivered_bytes / done.elapsed_s),
                done.verdict,
            )

    def traced(
        self, take: Callable[[], Microbatch], progress: Callable[[], DeliveryProgress]
    ) -> Callable[[], Microbatch]:
        """Return ``take``, which returns the next microbatch; with a timeline, a function that records each call in it."""
        timeline = self._timeline
        if timeline is None:
            return take

        def take_and_trace() -> Microbatch:
            called_s = time.perf_counter()
            if self._returned_s is not None:
                timeline.recorder.add("step", self._returned_s, called_s)
                self._returned_s = None
            is_traced = called_s >= self._next_traced_s
            self._is_taking = True
            try:
                return take()
            finally:
                self._is_taking = False
                if is_traced:
                    self._trace(timeline, called_s, progress())

        return take_and_trace

    def close(self, progress: DeliveryProgress) -> None:
        """Write the rest of the timeline."""
        timeline = self._timeline
        if timeline is None:
            return
        self._returned_s = None
        self._pool.dismiss()
        deadline_s = time.monotonic() + _LAST_EVENTS_S
        for worker in self._pool.workers:
            if not self._is_taking and isinstance(
                worker, PipedWorker
            ):  # else another thread, or the one that was interrupted, reads the pipe
                worker.take_events(deadline_s)
            times = worker.report().times
            if times.stage:
                last = EventRecorder(worker.pid, MAIN_THREAD)
                last.add(times.stage, times.began_s, time.perf_counter(), times.subject)
                timeline.write(last.take())
        timeline.record("loader closed", self.statistics(progress))

    def _trace(self, timeline: Timeline, called_s: float, progress: DeliveryProgress) -> None:
        """Record the call of ``next`` that began then, and the statistics at intervals."""
        self._returned_s = now_s = time.perf_counter()
        self._next_traced_s = called_s + CYCLE_S
        timeline.recorder.add("next", called_s, now_s, progress.num_delivered - 1)
        if now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            timeline.sample(self.statistics(progress))
        if now_s - self._recorded_s >= _RECORD_S:
            self._recorded_s = now_s
            timeline.record("statistics", self.statistics(progress))
        elif timeline.recorder.is_due:
            timeline.write(timeline.recorder.take())

    def _under_way_s(self, progress: DeliveryProgress) -> float:
        """Return the duration of the iteration under way, up to its last delivery."""
        return 0.0 if self._began_s is None else max(0.0, progress.delivered_at_s - self._began_s)
