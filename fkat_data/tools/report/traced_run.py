"""Read a run back from its timeline file."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from fkat_data.errors import ConfigurationError
from fkat_data.observe.durations import Durations
from fkat_data.observe.statistics import DURATIONS, DataLoaderStatistics, LoaderStatistics
from fkat_data.observe.timeline import HELD, READY, SECONDS

_FIELDS = {field.name for field in dataclasses.fields(LoaderStatistics)}.difference(DURATIONS)


class Span(NamedTuple):
    """An activity with a duration.

    Attributes:
        name: The activity.
        began_s: When it began, in seconds from the start of the run.
        duration_s: How long it lasted.
        about: The shard or microbatch, in words; may be empty.
    """

    name: str
    began_s: float
    duration_s: float
    about: str

    @property
    def ended_s(self) -> float:
        """When it ended."""
        return self.began_s + self.duration_s


class Track(NamedTuple):
    """What one thread did.

    Attributes:
        name: The process, and the thread if the process has several tracks.
        is_trainer: Whether this is the training loop's thread.
        spans: The spans, in the order in which they began.
    """

    name: str
    is_trainer: bool
    spans: list[Span]


class Sample(NamedTuple):
    """Values of counters at a time, in seconds from the start of the run."""

    at_s: float
    values: Mapping[str, float]


class EpochMark(NamedTuple):
    """An event, with the statistics of that time.

    Attributes:
        name: What happened.
        at_s: When it happened, in seconds from the start of the run.
        statistics: The statistics since the loader was made.
        verdict: The verdict on the epoch that ended then, or "".
    """

    name: str
    at_s: float
    statistics: LoaderStatistics
    verdict: str


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A run.

    Attributes:
        tracks: The trainer's tracks, then the workers' in their order.
        ready: Microbatches that were made and not yet delivered.
        held: Shared memory that live microbatches held, in MiB.
        seconds: Seconds spent so far on each of ``timeline.TOTALS``.
        marks: Starts and ends of epochs, and statistics in between.
        duration_s: Seconds from the first event to the end of the last.
    """

    tracks: list[Track]
    ready: list[Sample]
    held: list[Sample]
    seconds: list[Sample]
    marks: list[EpochMark]
    duration_s: float

    @property
    def statistics(self) -> LoaderStatistics:
        """The run's last statistics."""
        return self.marks[-1].statistics if self.marks else LoaderStatistics()


def read_run(path: Path) -> TracedRun:
    """Read a timeline.

    Raises:
        ConfigurationError: The file cannot be read, or is not a loader's timeline.
    """
    expected = "a file that a loader's `trace` wrote"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError("TIMELINE", str(path), f"{expected} ({error})") from error
    events = [event for event in _events(text) if isinstance(event.get("name"), str)]
    timed = [event for event in events if isinstance(event.get("ts"), (int, float))]
    if not any(event.get("ph") == "M" for event in events) or not timed:
        raise ConfigurationError("TIMELINE", str(path), expected)
    try:
        return _run_of(events, timed)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ConfigurationError("TIMELINE", str(path), f"{expected}; it has other events ({found})") from error


def _run_of(events: list[dict[str, Any]], timed: list[dict[str, Any]]) -> TracedRun:
    start_us = min(event["ts"] for event in timed)
    end_us = max(event["ts"] + event.get("dur", 0) for event in timed)
    for event in timed:
        event["at_s"] = 1e-6 * (event["ts"] - start_us)
    return TracedRun(
        tracks=_tracks(events),
        ready=_samples(timed, READY),
        held=_samples(timed, HELD),
        seconds=_samples(timed, SECONDS),
        marks=[_mark(event) for event in timed if event.get("ph") == "i"],
        duration_s=1e-6 * (end_us - start_us),
    )


def _events(text: str) -> Iterable[dict[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError:  # the file was cut off, for example by a full disk: read the lines that are whole
        found = [event for line in text.splitlines() if (event := _event(line)) is not None]
    if not isinstance(found, list):
        return []
    return [cast("dict[str, Any]", event) for event in cast("list[Any]", found) if isinstance(event, dict)]


def _event(line: str) -> Any:
    try:
        return json.loads(line.strip().rstrip(","))
    except ValueError:
        return None


def _tracks(events: list[dict[str, Any]]) -> list[Track]:
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    spans_of: dict[tuple[int, int], list[Span]] = {place: [] for place in threads}
    for event in events:
        if event.get("ph") == "X":
            place = event["pid"], event["tid"]
            span = Span(event["name"], event["at_s"], 1e-6 * event["dur"], _about(event.get("args", {})))
            spans_of.setdefault(place, []).append(span)
    tracks: list[Track] = []
    for place, spans in spans_of.items():
        process, thread = str(processes.get(place[0], f"process {place[0]}")), threads.get(place, "")
        is_trainer = thread == "training loop"
        is_inline = not is_trainer and process.startswith("trainer")
        tracks.append(Track(f"{process}: {thread}" if is_inline else process, is_trainer, sorted(spans, key=_began)))
    return sorted(tracks, key=lambda track: (not track.is_trainer, _natural(track.name)))


def _began(span: Span) -> tuple[float, float]:
    return span.began_s, -span.duration_s


def _natural(name: str) -> tuple[int, str]:
    last = name.rsplit(" ", 1)[-1]
    return (int(last) if last.isdigit() else -1, name)


def _about(arguments: Mapping[str, Any]) -> str:
    if "shard" in arguments:
        return f"shard {arguments['shard']}"
    return f"microbatch {arguments['index']}" if "index" in arguments else ""


def _samples(events: list[dict[str, Any]], name: str) -> list[Sample]:
    found = [Sample(event["at_s"], event["args"]) for event in events if event["name"] == name]
    return sorted(found, key=lambda sample: sample.at_s)


def _mark(event: dict[str, Any]) -> EpochMark:
    arguments = event.get("args", {})
    numbers = {name: value for name, value in arguments.items() if name in _FIELDS}
    durations: dict[str, Any] = {name: Durations.of(arguments[name]) for name in DURATIONS if name in arguments}
    kind = DataLoaderStatistics if arguments.get("kind") == DataLoaderStatistics.__name__ else LoaderStatistics
    statistics = kind(**numbers, **durations)
    return EpochMark(event["name"], event["at_s"], statistics, str(arguments.get("verdict", "")))


_NUM_BARS = 36


class Distribution(NamedTuple):
    """How durations are distributed.

    Attributes:
        edges_s: Bounds of the bars, evenly spaced on a logarithmic scale.
        counts: The number of durations in each bar.
        quantiles_s: The median, the 95th and 99th percentiles, and the largest.
    """

    edges_s: list[float]
    counts: list[int]
    quantiles_s: tuple[float, float, float, float]


def shares(samples: Sequence[Sample], names: Sequence[str], edges_s: Sequence[float]) -> dict[str, list[float]]:
    """Return for each name its share of each interval of time. Several workers add up, so a share can exceed 1.

    Args:
        samples: Seconds spent so far, in the order of time.
        names: The counters to return.
        edges_s: Bounds of the intervals.
    """
    if not samples:
        return {name: [0.0] * (len(edges_s) - 1) for name in names}
    at_s = [sample.at_s for sample in samples]
    widths_s = np.diff(edges_s)
    found: dict[str, list[float]] = {}
    for name in names:
        spent_s = np.interp(edges_s, at_s, [sample.values.get(name, 0.0) for sample in samples])
        found[name] = np.clip(np.diff(spent_s) / widths_s, 0.0, None).tolist()
    return found


def durations_s(tracks: Sequence[Track], name: str) -> list[float]:
    """Return the durations of all spans with this name."""
    return [span.duration_s for track in tracks for span in track.spans if span.name == name]


def distribution(values_s: Sequence[float]) -> Distribution | None:
    """Return the distribution of durations on a logarithmic scale, or None if there are none."""
    if not values_s:
        return None
    values = np.maximum(np.asarray(values_s), 1e-7)
    low, high = np.log10(values.min()), np.log10(values.max())
    middle = (low + high) / 2
    # At least a decade wide, so that nearly equal durations form one bar, not a wall of noise.
    half = max((high - low) / 2, 0.5) * 1.0001
    edges = [10.0 ** float(middle - half + 2 * half * number / _NUM_BARS) for number in range(_NUM_BARS + 1)]
    counts, _ = np.histogram(values, edges)
    median, p95, p99 = np.quantile(values, [0.5, 0.95, 0.99])
    quantiles = (float(median), float(p95), float(p99), float(values.max()))
    return Distribution(edges, [int(count) for count in counts], quantiles)


def columns(spans: Sequence[Span], end_s: float, num_columns: int) -> list[tuple[str, int, int]]:
    """Return the name that took most time in each column, as runs of columns: (name, first column, num columns).

    Of nested spans, the inner ones count. A column without spans has the name "".
    """
    names = sorted({span.name for span in spans})
    if not names or end_s <= 0:
        return []
    width_s = end_s / num_columns
    spent_s = np.zeros((len(names), num_columns))
    for span in spans:
        number = names.index(span.name)
        first = max(0, min(int(span.began_s / width_s), num_columns - 1))
        last = min(int(span.ended_s / width_s), num_columns - 1)
        for column in range(first, last + 1):
            start_s = max(span.began_s, column * width_s)
            spent_s[number, column] += max(0.0, min(span.ended_s, (column + 1) * width_s) - start_s)
    if "next" in names and "wait" in names:
        spent_s[names.index("next")] -= spent_s[names.index("wait")]
    best = spent_s.argmax(axis=0)
    best[spent_s.max(axis=0) < 0.02 * width_s] = -1
    runs: list[tuple[str, int, int]] = []
    for column in range(num_columns):
        name = names[int(best[column])] if best[column] >= 0 else ""
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((name, column, 1))
    return runs


def excerpt(run: TracedRun, num_microbatches: int) -> tuple[float, float]:
    """Return the bounds of an interval near the run's middle that delivers ``num_microbatches``."""
    ends_s = [span.ended_s for track in run.tracks if track.is_trainer for span in track.spans if span.name == "next"]
    if len(ends_s) < 2:
        return 0.0, run.duration_s
    first = max(0, (len(ends_s) - num_microbatches) // 2)
    last = min(len(ends_s) - 1, first + num_microbatches)
    return ends_s[first], ends_s[last]
