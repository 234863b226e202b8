"""Which of a loader's numbers are exported, under which names."""

import weakref
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from fkat_data.errors import ConfigurationError
from fkat_data.observe.statistics import STATES, LoaderStatistics


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
