"""Statistics as metrics of ``prometheus_client``: behind ``fkat_data.export``."""

import logging
import math
import os
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, cast, runtime_checkable

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.observe.durations import SHORTEST_S, Durations
from fkat_data.observe.statistics import STATES, LoaderStatistics
from fkat_data.runtime.distributed import rank_and_world_size
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.lifetime import WeakTable, on_collected
from fkat_data.runtime.machine import call_in_forks, required
from fkat_data.storage.location import machine_path


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


__all__ = ["METRICS", "Metric", "PrometheusFile", "StatisticsSource", "prometheus_text"]

_ROWS = (
    ("delivered", "delivered", "Microbatches that the trainer received"),
    ("delivered_bytes", "delivered_bytes", "Bytes of their tensors and arrays"),
    ("produced", "produced", "Microbatches that workers have made"),
    ("produced_by_caller", "produced_by_caller", "Those of them that the trainer made while workers started"),
    ("elapsed_s", "iteration_seconds", "Time of iteration, up to the last delivery"),
    ("waited_s", "waited_seconds", "Time that the trainer waited for microbatches, or for copies to its device"),
    ("waited_first_s", "waited_first_seconds", "Time waited before the first microbatch of an iteration"),
    ("waited_behind_s", "waited_behind_seconds", "Time waited for a microbatch while later ones were ready"),
    ("store_s", "store_seconds", "Workers' time waiting for stored bytes"),
    ("build_s", "build_seconds", "Workers' time opening shards, in the factory"),
    ("produce_s", "produce_seconds", "Workers' time making microbatches"),
    ("replay_s", "replay_seconds", "Workers' time making again what was delivered before a resume"),
    ("encode_s", "encode_seconds", "Workers' time writing microbatches into shared memory"),
    ("blocked_s", "blocked_seconds", "Workers' time waiting for memory, or until they may make more"),
    ("idle_s", "idle_seconds", "Workers' time without a shard to make"),
    ("copied_s", "copied_seconds", "Time in which copies to the device were under way"),
    ("worker_restarts", "worker_restarts", "Dead workers that were replaced"),
    ("skipped_shards", "skipped_shards", "Shards that failed and were skipped"),
    ("skipped_samples", "skipped_samples", "Samples that raised and were left out"),
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

_HISTOGRAMS = {
    "waiting": ("fkat_data_waiting_seconds", "How long the trainer waited for a microbatch"),
    "making": ("fkat_data_making_seconds", "How long a worker took to make a microbatch, stored bytes included"),
}

# From 15 microseconds to four minutes, in steps of two.
_DOUBLINGS = range(4, 29)


def prometheus_text(several: Iterable[tuple[Mapping[str, str], LoaderStatistics]]) -> str:
    """Return the statistics of loaders as lines of text.

    Args:
        several: Each loader's labels and statistics.

    Raises:
        ConfigurationError: ``prometheus_client`` is not installed.
    """
    return required("prometheus_client", "prometheus").generate_latest(_Collected(list(several))).decode()


class _Collected:
    """A collector of metrics for ``prometheus_client``."""

    def __init__(self, several: list[tuple[Mapping[str, str], LoaderStatistics]]) -> None:
        self._several = several

    def collect(self) -> Iterator[Any]:
        core = required("prometheus_client.core", "prometheus")
        for metric in METRICS:
            kind = "counter" if metric.is_total else "gauge"
            family = core.Metric(metric.name.removesuffix("_total"), f"{metric.text}.", kind)
            for labels, statistics in self._several:
                family.add_sample(metric.name, dict(labels), getattr(statistics, metric.field))
            yield family
        for field, (name, text) in _HISTOGRAMS.items():
            family = core.Metric(name, f"{text}.", "histogram")
            for labels, statistics in self._several:
                durations: Durations = getattr(statistics, field)
                bounds_s = [*(SHORTEST_S * 2**doublings for doublings in _DOUBLINGS), math.inf]
                counts = [*durations.num_up_to(_DOUBLINGS), durations.num]
                for bound_s, count in zip(bounds_s, counts, strict=True):
                    bound = "+Inf" if math.isinf(bound_s) else repr(bound_s)
                    family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
                family.add_sample(f"{name}_sum", dict(labels), durations.total_s)
                family.add_sample(f"{name}_count", dict(labels), durations.num)
            yield family


_logger = logging.getLogger(__name__)

# Those that this process writes.
_open_files: "WeakTable[Path, PrometheusFile]" = WeakTable()
call_in_forks(_open_files.clear)

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class PrometheusFile:
    """A writer of loaders' statistics to a file every ``interval_s``, from a thread; also a context manager.

    A reader always sees a whole file: each is written beside it and renamed. Every line has the labels ``loader``
    and ``rank``. A file that cannot be written, when its disk is full, is one warning in the log; training goes on.

    Args:
        path: The file, whose name ends with ``.prom``. Each of several ranks writes its own: ``run-rank3.prom`` for
            ``run.prom``. Only one ``PrometheusFile`` of a process may write it at a time.
        loaders: A loader, or several by their names; none of them is kept alive.
        interval_s: Seconds between two files.
        labels: More labels of every line, for example the name of the run.

    Raises:
        ConfigurationError: The file cannot be written, another ``PrometheusFile`` of this process writes it, an
            argument cannot work, or ``prometheus_client`` is not installed.
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
        self._text = _Text(file, loaders, {"rank": str(rank), **_checked(labels or {})})
        interval_s = arguments.seconds("interval_s", interval_s)
        self._key = file.parent.resolve() / file.name
        if _open_files.get(self._key) is not None:
            free = "a file that no other PrometheusFile of this process writes: close that one, or give one of them"
            raise ConfigurationError("path", path, f"{free} all loaders, as a dict with their names")
        try:
            self._text.write()
        except genuine(OSError) as error:
            raise ConfigurationError("path", path, f"a file that can be written ({error})") from error
        _open_files[self._key] = self
        self._pid = os.getpid()
        self._is_over = threading.Event()
        several = (self._text, interval_s, self._is_over)
        self._thread = threading.Thread(target=_write_often, args=several, name="fkat_data export", daemon=True)
        self._thread.start()
        on_collected(self, self._is_over.set)

    def close(self) -> None:
        """Write the file a last time; it stays. Any number of calls."""
        if self._is_over.is_set() or os.getpid() != self._pid:  # a fork has no such thread
            return
        self._is_over.set()
        self._thread.join()
        self._text.try_to_write()
        _open_files.pop(self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Text:
    """The content of a file; its thread holds this one, and not the ``PrometheusFile``."""

    def __init__(
        self, path: Path, loaders: StatisticsSource | Mapping[str, StatisticsSource], labels: Mapping[str, str]
    ) -> None:
        found = loaders if isinstance(loaders, Mapping) else {"loader": loaders}
        for loader in found.values():
            if not isinstance(loader, StatisticsSource):
                expected = "a loader with statistics(), or a dict of loaders by their names"
                raise ConfigurationError("loaders", loader, expected)
        self._loaders = {str(name): weakref.ref(loader) for name, loader in found.items()}
        self._labels = labels
        self._path = path
        self._has_failed = False

    def write(self) -> None:
        alive = ((name, loader) for name, known in self._loaders.items() if (loader := known()) is not None)
        text = prometheus_text(({"loader": name, **self._labels}, loader.statistics()) for name, loader in alive)
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self._path)

    def try_to_write(self) -> None:
        try:
            self.write()
        except genuine(Exception) as error:  # numbers are no reason to end a training run
            if not self._has_failed:
                _logger.warning(
                    "the statistics cannot be written to %s: %s: %s", self._path, type(error).__name__, error
                )
            self._has_failed = True
        else:
            self._has_failed = False


def _write_often(text: _Text, interval_s: float, is_over: threading.Event) -> None:
    while not is_over.wait(interval_s):
        text.try_to_write()


def _checked(labels: Mapping[str, str]) -> dict[str, str]:
    for name in labels:
        if not isinstance(cast("object", name), str) or not _LABEL.fullmatch(name) or name in ("loader", "rank", "le"):
            raise ConfigurationError("labels", name, "names of letters, digits and _, other than loader, rank and le")
    return {name: str(value) for name, value in labels.items()}
