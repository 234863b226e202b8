"""Which of a loader's numbers are exported, under which names."""

import weakref
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from fkat_data.errors import ConfigurationError
from fkat_data.observe.statistics import LoaderStatistics

__all__ = ["METRICS", "Metric", "StatisticsSource", "WatchedLoaders", "present", "watched"]


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
        name: Its name in Prometheus; OpenTelemetry's has a dot after ``fkat_data``, and no unit.
        unit: As OpenTelemetry writes units.
        is_total: Whether it is a sum since the loader was made; otherwise a present state.
        text: What it is.
    """

    field: str
    name: str
    unit: str
    is_total: bool
    text: str


_SECONDS = (
    ("elapsed_s", "iteration", "Time of iteration, up to the last delivery"),
    ("waited_s", "waited", "Time that the trainer waited for microbatches, or for copies to its device"),
    ("waited_first_s", "waited_first", "Time waited before the first microbatch of an iteration"),
    ("waited_behind_s", "waited_behind", "Time waited for a microbatch while later ones were ready"),
    ("store_s", "store", "Workers' time waiting for stored bytes"),
    ("build_s", "build", "Workers' time opening shards, in the factory"),
    ("produce_s", "produce", "Workers' time making microbatches"),
    ("replay_s", "replay", "Workers' time making again what was delivered before a resume"),
    ("encode_s", "encode", "Workers' time writing microbatches into shared memory"),
    ("blocked_s", "blocked", "Workers' time waiting for memory, or for their allowance"),
    ("idle_s", "idle", "Workers' time without a shard to make"),
    ("copied_s", "copied", "Time in which copies to the device were under way"),
)

METRICS: tuple[Metric, ...] = (
    Metric("delivered", "fkat_data_delivered_total", "{microbatch}", True, "Microbatches that the trainer received"),
    Metric("delivered_bytes", "fkat_data_delivered_bytes_total", "By", True, "Bytes of their tensors and arrays"),
    Metric("produced", "fkat_data_produced_total", "{microbatch}", True, "Microbatches that workers have made"),
    *(Metric(field, f"fkat_data_{name}_seconds_total", "s", True, text) for field, name, text in _SECONDS),
    Metric("worker_restarts", "fkat_data_worker_restarts_total", "{restart}", True, "Dead workers that were replaced"),
    Metric("skipped_shards", "fkat_data_skipped_shards_total", "{shard}", True, "Shards that failed and were skipped"),
    Metric("queue_depth", "fkat_data_ready", "{microbatch}", False, "Microbatches made and not yet delivered"),
    Metric("num_segments", "fkat_data_segments", "{segment}", False, "Pieces of shared memory"),
    Metric("segment_bytes", "fkat_data_segment_bytes", "By", False, "Bytes of shared memory"),
    Metric("held_bytes", "fkat_data_held_bytes", "By", False, "Bytes of shared memory whose microbatches are alive"),
    Metric("num_workers", "fkat_data_workers", "{process}", False, "Worker processes"),
    Metric("num_workers_per_shard", "fkat_data_workers_per_shard", "{process}", False, "Workers that share a shard"),
    Metric("num_shard_prefetches", "fkat_data_shard_prefetches", "{shard}", False, "Shards in work ahead"),
    Metric("num_cpus", "fkat_data_cpus", "{cpu}", False, "CPUs that the trainer may run on"),
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
