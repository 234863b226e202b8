"""A worker's use of its time: stages, one at a time, measured where the work is done.

The numbers live in a page of memory that a worker shares with its trainer: the worker adds to them, the trainer reads
them when it is asked for statistics, and neither sends anything. A page outlives its worker, so what a dead one did
still counts.
"""

import threading
import time
from array import array
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from fkat_data.observe.durations import NUM_BUCKETS, Durations, bucket_of
from fkat_data.observe.events import EventRecorder
from fkat_data.observe.profile import WorkerProfile
from fkat_data.runtime.machine import call_in_forks

Page: TypeAlias = "memoryview[float] | array[float]"
"""``NUM_SLOTS`` numbers, all 0 in the beginning."""

STAGES = ("", "build", "replay", "produce", "store", "encode", "blocked", "idle")
"""None; the factory works; a microbatch that was delivered before a resume is made again; one is made; the worker waits
for stored bytes; copies a microbatch, into shared memory if there is any; waits for memory or until it may make more; waits for a task."""

_NUMBER = {name: number for number, name in enumerate(STAGES)}
_PRODUCE, _STORE = _NUMBER["produce"], _NUMBER["store"]
# After the seconds of each stage: microbatches made, the stage in work, what it is about, when it began; then how many
# microbatches took how long.
PRODUCED, _STAGE, _INDEX, BEGAN_S, _FIRST_BUCKET = range(len(STAGES), len(STAGES) + 5)
NUM_SLOTS = _FIRST_BUCKET + NUM_BUCKETS
"""Numbers of 8 bytes in a page."""

# The stages that a profiler gets; the others would only cut these in pieces.
_PROFILED = {"": "", "build": "build", "produce": "produce", "replay": "produce", "encode": "encode"}


class StageTimes(NamedTuple):
    """The seconds that a worker has spent in each stage, and the stage that it is in.

    Attributes:
        produced: Microbatches made.
        seconds: Time in each of ``STAGES``, the one in work included.
        stage: The one in work.
        began_s: When it began, on the clock of ``time.perf_counter``.
        subject: Its subject: a shard of the epoch, or a microbatch of the shard; -1: neither.
        making: How long each microbatch took: its ``produce`` and its ``store``.
    """

    produced: int
    seconds: tuple[float, ...]
    stage: str
    began_s: float
    subject: int
    making: Durations

    def of(self, stage: str) -> float:
        """Return the seconds in a stage."""
        return self.seconds[_NUMBER[stage]]


class StageClock:
    """A clock of one worker's stages; used by one thread.

    Args:
        slots: A page.
        profile: Gets the stages that a profiler knows; None: no profiler listens.
        recorder: Gets an event for each stage; None: nothing is drawn.
    """

    def __init__(
        self, slots: Page, profile: WorkerProfile | None = None, recorder: EventRecorder | None = None
    ) -> None:
        self._slots = slots
        self._profile = profile if profile is not None and profile.is_active else None
        self.recorder = recorder
        """The collector of events."""
        self._is_heard = self._profile is not None or recorder is not None
        self._thread = threading.get_ident()
        self._stage = 0
        self._index = -1
        self._label = ""
        # Seconds of ``produce`` and ``store`` before the microbatch that is being made.
        self._before_s = 0.0
        self._began_s = slots[BEGAN_S] = time.perf_counter()

    def enter_stage(self, name: str, index: int = -1, label: str = "") -> None:
        """Begin a stage, which ends the one before.

        Args:
            name: One of ``STAGES``.
            index: The shard's index in its epoch, for ``build``; or the microbatch's in its shard.
            label: A name for the timeline.
        """
        now_s = time.perf_counter()
        if self._is_heard:
            self._report(name, label, now_s)
        slots, before, began_s = self._slots, self._stage, self._began_s
        self._stage = slots[_STAGE] = _NUMBER[name]
        self._index = slots[_INDEX] = index
        # The beginning before the sum: a reader between the two counts too little for an instant, not twice.
        self._began_s = slots[BEGAN_S] = now_s
        slots[before] += now_s - began_s
        if before < _PRODUCE:  # what an opening or a replay has read is no part of the next microbatch
            self._before_s = slots[_PRODUCE] + slots[_STORE]

    def times(self) -> StageTimes:
        """Return what was measured so far."""
        return stage_times(self._slots, time.perf_counter())

    def count(self, num_made: int = 1) -> None:
        """Count microbatches that were made, and how long each took; not in their ``produce`` or ``store``."""
        if not num_made:
            return
        slots = self._slots
        now_s = slots[_PRODUCE] + slots[_STORE]
        making_s, self._before_s = now_s - self._before_s, now_s
        slots[_FIRST_BUCKET + bucket_of(making_s / num_made)] += num_made
        slots[PRODUCED] += num_made

    def shift(self, name: str, seconds: float) -> None:
        """Count time of the stage in work for another one."""
        self._slots[_NUMBER[name]] += seconds
        self._slots[self._stage] -= seconds

    def draw(self) -> None:
        """Collect the event of the stage in work up to now; the stage goes on."""
        if self.recorder is not None and self._stage:
            self.recorder.add(STAGES[self._stage], self._began_s, time.perf_counter(), self._index, self._label)

    @contextmanager
    def within(self, name: str) -> Generator[None]:
        """Measure a stage within another, which goes on afterwards; other threads are not measured."""
        if threading.get_ident() != self._thread:
            yield
            return
        outer, index, label = STAGES[self._stage], self._index, self._label
        self.enter_stage(name, index)
        try:
            yield
        finally:
            self.enter_stage(outer, index, label)

    @contextmanager
    def installed(self) -> Generator[None]:
        """Let ``reading`` in this thread enter the stages of this clock, within the context."""
        self._thread = threading.get_ident()
        before, _installed[:] = list(_installed), [self]
        try:
            yield
        finally:
            _installed[:] = before

    def _report(self, name: str, label: str, now_s: float) -> None:
        if self.recorder is not None and self._stage:
            self.recorder.add(STAGES[self._stage], self._began_s, now_s, self._index, self._label)
        self._label = label
        is_going_on = self._stage == _STORE  # a profiler was not given that stage, and is in the one around it
        if self._profile is not None and name in _PROFILED and not is_going_on:
            self._profile.enter_stage(_PROFILED[name])


_installed: list[StageClock] = []
# The child of a fork has the page, but not the clock's time: a nested DataLoader's worker has no stage.
call_in_forks(_installed.clear)


def new_page() -> Page:
    """Return a page of this process alone."""
    return array("d", bytes(8 * NUM_SLOTS))


@contextmanager
def reading() -> Generator[None]:
    """Count what happens in the context as time spent waiting for a store: for a dataset that fetches its own bytes.

    In a worker, this time appears as ``store_s`` in the loader's statistics and as ``store`` in its timeline, instead
    of the factory's or the dataset's; in workers that are threads, in the statistics alone. Anywhere else, and in
    threads that a dataset starts, it does nothing.
    """
    if _help.times is not None:
        with _help.times.measured():
            yield
    elif not _installed:
        yield
    else:
        with _installed[0].within("store"):
            yield


class HelperTimes:
    """The time that a worker thread spends in ``reading``.

    Attributes:
        store_s: The seconds.
    """

    def __init__(self) -> None:
        self.store_s: float = 0.0
        self._depth = 0

    @contextmanager
    def measured(self) -> Generator[None]:
        """Count the time in the context, once where contexts are nested."""
        began_s = time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.store_s += time.perf_counter() - began_s


class _Help(threading.local):
    times: HelperTimes | None = None


_help = _Help()


@contextmanager
def helping() -> Generator[HelperTimes]:
    """Let ``reading`` in this thread count into what is returned, within the context."""
    times = _help.times = HelperTimes()
    try:
        yield times
    finally:
        _help.times = None


def added_times(several: Sequence[StageTimes]) -> StageTimes:
    """Return the times of several workers together."""
    seconds = tuple(sum(times.seconds[number] for times in several) for number in range(len(STAGES)))
    making = sum((times.making for times in several), Durations())
    return StageTimes(sum(times.produced for times in several), seconds, "", 0.0, -1, making)


def stage_times(slots: Page, now_s: float) -> StageTimes:
    """Return what a page says.

    Args:
        slots: The page.
        now_s: The time, on the clock of ``time.perf_counter``, which is one for all processes of a machine.
    """
    numbers, making = list(slots[:_FIRST_BUCKET]), Durations.snapshot(slots[_FIRST_BUCKET:NUM_SLOTS])
    seconds = numbers[: len(STAGES)]
    stage = int(numbers[_STAGE])
    seconds[stage] += max(0.0, now_s - numbers[BEGAN_S]) if numbers[BEGAN_S] else 0.0
    produced, index = int(numbers[PRODUCED]), int(numbers[_INDEX])
    return StageTimes(produced, tuple(seconds), STAGES[stage], numbers[BEGAN_S], index, making)
