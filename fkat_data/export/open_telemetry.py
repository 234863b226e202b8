"""Statistics through OpenTelemetry's metrics."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fkat_data.distributed import rank_and_world_size
from fkat_data.export.metrics import METRICS, StatisticsSource, WatchedLoaders, present, watched
from fkat_data.export.prometheus_text import HISTOGRAMS
from fkat_data.observe.statistics import DURATIONS, QUANTILES, LoaderStatistics
from fkat_data.requirement import required

__all__ = ["export_to_open_telemetry", "open_telemetry_name"]


def export_to_open_telemetry(
    loaders: StatisticsSource | Mapping[str, StatisticsSource],
    meter_provider: Any = None,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Let OpenTelemetry read loaders' statistics whenever it collects metrics, in a thread of its own.

    All numbers of a collection are of one moment. Sums are counters, states are gauges; the quantiles of waiting and
    making are gauges with the attribute ``quantile``, over all since the loader was made. Each has the attributes
    ``loader`` and ``rank``.

    Args:
        loaders: A loader, or several by their names; none of them is kept alive.
        meter_provider: OpenTelemetry's ``MeterProvider``; None: the one that the program has set.
        attributes: More attributes of every number.

    Raises:
        ConfigurationError: OpenTelemetry is not installed (extra ``opentelemetry``), or it is no loader.
    """
    api = required("opentelemetry.metrics", "opentelemetry")
    meter = api.get_meter("fkat_data", meter_provider=meter_provider)
    known = watched(loaders)
    shared = {"rank": rank_and_world_size()[0], **(attributes or {})}
    snapshot = _Snapshot(known)
    for metric in METRICS:
        create = meter.create_observable_counter if metric.is_total else meter.create_observable_gauge
        read = _reader(api.Observation, snapshot, shared, metric.field)
        create(open_telemetry_name(metric.name), [read], metric.unit, metric.text)
    for name in DURATIONS:
        title, text = HISTOGRAMS[name]
        read = _quantile_reader(api.Observation, snapshot, shared, name)
        meter.create_observable_gauge(open_telemetry_name(title), [read], "s", text)


def open_telemetry_name(name: str) -> str:
    """Return what a metric of Prometheus is called: the unit and the kind are none of the name."""
    return name.removesuffix("_total").removesuffix("_seconds").replace("fkat_data_", "fkat_data.", 1)


_Callback = Callable[[Any], Iterator[Any]]


class _Snapshot(threading.local):
    """The statistics that one collection reads, taken once for all of its numbers.

    OpenTelemetry says nowhere when a collection begins. It asks for each number once, one after the other, in one
    thread: a number that is asked for a second time belongs to the next collection.
    """

    def __init__(self, loaders: WatchedLoaders) -> None:
        self._loaders = loaders
        self._taken: list[tuple[str, LoaderStatistics]] = []
        self._read: set[str] = set()

    def of(self, field: str) -> list[tuple[str, LoaderStatistics]]:
        """Return the loaders' names and statistics, for one number of the collection."""
        if not self._read or field in self._read:
            self._taken = list(present(self._loaders))
            self._read.clear()
        self._read.add(field)
        return self._taken


def _reader(observation: Any, snapshot: _Snapshot, shared: Mapping[str, Any], field: str) -> _Callback:
    def read(options: Any) -> Iterator[Any]:
        del options
        for name, statistics in snapshot.of(field):
            yield observation(getattr(statistics, field), {"loader": name, **shared})

    return read


def _quantile_reader(observation: Any, snapshot: _Snapshot, shared: Mapping[str, Any], name: str) -> _Callback:
    def values_s(statistics: LoaderStatistics) -> list[float]:
        return getattr(statistics, name).quantiles_s(*QUANTILES.values())

    def read(options: Any) -> Iterator[Any]:
        del options
        for loader, statistics in snapshot.of(name):
            for quantile, value_s in zip(QUANTILES, values_s(statistics), strict=True):
                yield observation(value_s, {"loader": loader, "quantile": quantile, **shared})

    return read
