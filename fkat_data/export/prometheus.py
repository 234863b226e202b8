"""Loaders' statistics in the text format of Prometheus, and a file of them for node_exporter's textfile collector."""

import logging
import os
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeAlias, cast, runtime_checkable

from fkat_data import arguments
from fkat_data.distributed import rank_and_world_size
from fkat_data.dropped import WeakTable, after_end
from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine, suppress
from fkat_data.location import machine_path
from fkat_data.observe.durations import SHORTEST_S, Durations
from fkat_data.observe.statistics import DURATIONS, STATES, LoaderStatistics


@runtime_checkable
class StatisticsSource(Protocol):
    """A loader: what has statistics."""

    def statistics(self) -> LoaderStatistics:
        """Return what was done so far."""
        ...


class Metric(NamedTuple):
    """A number that is exported.

    Attributes:
        field: Its name in ``LoaderStatistics``.
        name: Its name in Prometheus.
        is_total: Whether it is a sum since the loader was made; otherwise a present state.
        text: What it is.
    """

    field: str
    name: str
    is_total: bool
    text: str


_ROWS = (
    ("delivered", "delivered", "Microbatches that the trainer received"),
    ("delivered_bytes", "delivered_bytes", "Bytes of their tensors and arrays"),
    ("produced", "produced", "Microbatches that workers have made"),
    ("elapsed_s", "iteration_seconds", "Time of iteration, up to the last delivery"),
    ("waited_s", "waited_seconds", "Time that the trainer waited for microbatches, or for copies to its device"),
    ("waited_first_s", "waited_first_seconds", "Time waited before the first microbatch of an iteration"),
    ("waited_behind_s", "waited_behind_seconds", "Time waited for a microbatch while later ones were ready"),
    ("store_s", "store_seconds", "Workers' time waiting for stored bytes"),
    ("build_s", "build_seconds", "Workers' time opening shards, in the factory"),
    ("produce_s", "produce_seconds", "Workers' time making microbatches"),
    ("replay_s", "replay_seconds", "Workers' time making again what was delivered before a resume"),
    ("encode_s", "encode_seconds", "Workers' time writing microbatches into shared memory"),
    ("blocked_s", "blocked_seconds", "Workers' time waiting for memory, or for their allowance"),
    ("idle_s", "idle_seconds", "Workers' time without a shard to make"),
    ("copied_s", "copied_seconds", "Time in which copies to the device were under way"),
    ("worker_restarts", "worker_restarts", "Dead workers that were replaced"),
    ("skipped_shards", "skipped_shards", "Shards that failed and were skipped"),
    ("queue_depth", "ready", "Microbatches made and not yet delivered"),
    ("num_segments", "segments", "Pieces of shared memory"),
    ("segment_bytes", "segment_bytes", "Bytes of shared memory"),
    ("held_bytes", "held_bytes", "Bytes of shared memory whose microbatches are alive"),
    ("num_workers", "workers", "Worker processes"),
    ("num_workers_per_shard", "workers_per_shard", "Workers that share a shard"),
    ("num_shard_prefetches", "shard_prefetches", "Shards in work ahead"),
    ("num_cpus", "cpus", "CPUs that the trainer may run on"),
)

METRICS: tuple[Metric, ...] = tuple(
    Metric(field, f"fkat_data_{name}{'' if field in STATES else '_total'}", field not in STATES, text)
    for field, name, text in _ROWS
)
"""The numbers. How long each microbatch was waited for and made is exported besides."""

WatchedLoaders: TypeAlias = Mapping[str, "weakref.ref[StatisticsSource]"]
"""Loaders by their names; what is exported keeps none alive."""


def watched(loaders: StatisticsSource | Mapping[str, StatisticsSource]) -> WatchedLoaders:
    """Return loaders by their names; one alone is named ``loader``.

    Raises:
        ConfigurationError: It is no loader, or no mapping of loaders by their names.
    """
    found = loaders if isinstance(loaders, Mapping) else {"loader": loaders}
    expected = "a loader with statistics(), or a dict of loaders by their names"
    for loader in found.values():
        if not isinstance(loader, StatisticsSource):
            raise ConfigurationError("loaders", loader, expected)
    return {str(name): weakref.ref(loader) for name, loader in found.items()}


def present(loaders: WatchedLoaders) -> Iterator[tuple[str, LoaderStatistics]]:
    """Yield the statistics of the loaders that are alive, with their names."""
    for name, known in loaders.items():
        loader = known()
        if loader is not None:
            yield name, loader.statistics()


HISTOGRAMS = {
    "waiting": ("fkat_data_waiting_seconds", "How long the trainer waited for a microbatch"),
    "making": ("fkat_data_making_seconds", "How long a worker took to make a microbatch, stored bytes included"),
}
"""The names of histograms, and what they are."""

# From 15 microseconds to four minutes, in steps of two.
_DOUBLINGS = range(4, 29)


def prometheus_text(several: Iterable[tuple[Mapping[str, str], LoaderStatistics]]) -> str:
    """Return the statistics of loaders as lines of text.

    Args:
        several: Each loader's labels and statistics.
    """
    found = [(_labels(labels), statistics) for labels, statistics in several]
    lines: list[str] = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {metric.text}.", f"# TYPE {metric.name} {_kind(is_total=metric.is_total)}"]
        lines += [f"{metric.name}{{{labels}}} {getattr(statistics, metric.field)}" for labels, statistics in found]
    for name in DURATIONS:
        title, text = HISTOGRAMS[name]
        lines += [f"# HELP {title} {text}.", f"# TYPE {title} histogram"]
        for labels, statistics in found:
            lines += _histogram(title, labels, getattr(statistics, name))
    return "\n".join([*lines, ""])


def _histogram(title: str, labels: str, durations: Durations) -> Iterator[str]:
    comma = "," if labels else ""
    for doublings, count in zip(_DOUBLINGS, durations.num_up_to(_DOUBLINGS), strict=True):
        yield f'{title}_bucket{{{labels}{comma}le="{SHORTEST_S * 2**doublings!r}"}} {count}'
    yield f'{title}_bucket{{{labels}{comma}le="+Inf"}} {durations.num}'
    yield f"{title}_sum{{{labels}}} {durations.total_s!r}"
    yield f"{title}_count{{{labels}}} {durations.num}"


def _kind(*, is_total: bool) -> str:
    return "counter" if is_total else "gauge"


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


logger: logging.Logger = logging.getLogger(__name__)

# Those that this process writes; a fork of it writes none of them.
_open_files: "WeakTable[tuple[int, Path], PrometheusFile]" = WeakTable()
_opening = threading.Lock()

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class PrometheusFile:
    """Writes loaders' statistics to a file every ``interval_s``, from a thread; also a context manager.

    A reader always sees a whole file: each is written beside it and renamed. Every line has the labels ``loader``
    and ``rank``. A file that cannot be written, when its disk is full, is one warning in the log; training goes on. So
    is a file that another process writes as well.

    Args:
        path: The file, whose name ends with ``.prom``. Each of several ranks writes its own: ``run-rank3.prom`` for
            ``run.prom``. Only one ``PrometheusFile`` of a process may write it at a time.
        loaders: A loader, or several by their names; none of them is kept alive.
        interval_s: Seconds between two files.
        labels: More labels of every line, for example the name of the run.

    Raises:
        ConfigurationError: The file cannot be written, another ``PrometheusFile`` of this process writes it, or an
            argument cannot work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        loaders: StatisticsSource | Mapping[str, StatisticsSource],
        interval_s: float = 15.0,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        expected = "a file of this machine whose name ends with .prom: node_exporter reads no other"
        file = machine_path("path", path, expected)
        if file.suffix != ".prom":
            raise ConfigurationError("path", path, expected)
        rank, world_size = rank_and_world_size()
        if world_size > 1:
            file = file.with_name(f"{file.stem}-rank{rank}{file.suffix}")
        self.path: Path = file
        """The file of this rank."""
        text = _Text(watched(loaders), {"rank": str(rank), **_checked(labels or {})})
        interval_s = arguments.seconds("interval_s", interval_s)
        self._key = (os.getpid(), file.parent.resolve() / file.name)
        with _opening:
            if _open_files.get(self._key) is not None:
                free = "a file that no other PrometheusFile of this process writes: close that one, or give one of them"
                raise ConfigurationError("path", path, f"{free} all loaders, as a dict with their names")
            _open_files[self._key] = self
        try:
            text.write(file)
        except BaseException as error:
            _open_files.pop(self._key)
            if isinstance(error, OSError):
                raise ConfigurationError("path", path, f"a file that can be written ({error})") from error
            raise
        self._text = text
        self._is_over = threading.Event()
        arguments_of_thread = (file, text, interval_s, self._is_over)
        self._thread = threading.Thread(
            target=_write_often, args=arguments_of_thread, name="fkat_data export", daemon=True
        )
        self._thread.start()
        after_end(self, self._is_over.set)

    def close(self) -> None:
        """Write the file a last time; it stays. Any number of calls."""
        if self._is_over.is_set() or os.getpid() != self._key[0]:  # a fork has no such thread
            return
        self._is_over.set()
        self._thread.join()
        _write(self.path, self._text)
        _open_files.pop(self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Text:
    def __init__(self, loaders: WatchedLoaders, labels: Mapping[str, str]) -> None:
        self._loaders = loaders
        self._labels = labels
        self._written: tuple[int, int] | None = None
        self._has_company = False
        self.has_failed = False

    def write(self, path: Path) -> None:
        text = prometheus_text(({"loader": name, **self._labels}, now) for name, now in present(self._loaders))
        found = _identity(path)
        if None not in (self._written, found) and found != self._written and not self._has_company:
            self._has_company = True
            logger.warning(
                "another process writes %s, too, so that it has the numbers of either: give each its own", path
            )
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
        self._written = _identity(path)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what differs between two files that had the same name; None if there is none."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _write_often(path: Path, text: _Text, interval_s: float, is_over: threading.Event) -> None:
    while not is_over.wait(interval_s):
        _write(path, text)


def _write(path: Path, text: _Text) -> None:
    try:
        text.write(path)
    except genuine(Exception) as error:  # numbers are no reason to end a training run
        if not text.has_failed:
            logger.warning("the statistics cannot be written to %s: %s: %s", path, type(error).__name__, error)
        text.has_failed = True
    else:
        text.has_failed = False


def _checked(labels: Mapping[str, str]) -> dict[str, str]:
    for name in labels:
        if not isinstance(cast("object", name), str) or not _LABEL.fullmatch(name) or name in ("loader", "rank", "le"):
            raise ConfigurationError("labels", name, "names of letters, digits and _, other than loader, rank and le")
    return {name: str(value) for name, value in labels.items()}
