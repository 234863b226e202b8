"""Read a run back from its timeline file."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

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
        """The time at which it ended."""
        return self.began_s + self.duration_s


class Track(NamedTuple):
    """The spans of one thread.

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
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError("TIMELINE", str(path), f"{expected} ({error})") from error
    entries = cast("list[Any]", found) if isinstance(found, list) else []
    events = [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]
    events = [event for event in events if isinstance(event.get("name"), str)]
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


def _tracks(events: list[dict[str, Any]]) -> list[Track]:
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    spans_of: dict[tuple[int, int], list[Span]] = {track: [] for track in threads}
    for event in events:
        if event.get("ph") == "X":
            track = event["pid"], event["tid"]
            span = Span(event["name"], event["at_s"], 1e-6 * event["dur"], _about(event.get("args", {})))
            spans_of.setdefault(track, []).append(span)
    tracks: list[Track] = []
    for track, spans in spans_of.items():
        process, thread = str(processes.get(track[0], f"process {track[0]}")), threads.get(track, "")
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
