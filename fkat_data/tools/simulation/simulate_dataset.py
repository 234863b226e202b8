"""Simulate training on a dataset: take from the dataset what it knows, and the rest from the caller."""

from collections.abc import Mapping
from typing import Any

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.streaming.epoch.rank_batches import batches_in_chunk
from fkat_data.streaming.stream_plan import batches_together
from fkat_data.tools.simulation.advice import advice
from fkat_data.tools.simulation.costs import ShardCosts, costs_of
from fkat_data.tools.simulation.result import Simulation
from fkat_data.tools.simulation.setup import Setup
from fkat_data.tools.simulation.simulate import simulate

__all__ = ["advice_for", "costs_in", "setup_of", "simulate_dataset"]


def simulate_dataset(dataset: StreamingDataset, *, workers_per_rank: int = 0, **numbers: Any) -> Simulation:
    """Return what training on a dataset would wait for, fetch and cache. It reads only the dataset's index.

    Args:
        dataset: The dataset, with the ``world`` of the run.
        workers_per_rank: The number of workers of each rank's ``StreamingDataLoader``.
        **numbers: Arguments of ``Setup``. The dataset provides the defaults of ``predownload`` and
            ``cache_limit_bytes``, and the batch arguments. Default of ``num_epochs`` without ``num_steps``: 1.

    Raises:
        ConfigurationError: A number is invalid, the dataset has no ``batch_size``, or its ``world`` has a different
            number of ranks.
    """
    if numbers.get("num_steps") is None and numbers.get("num_epochs") is None:
        numbers["num_epochs"] = 1
    setup = setup_of(dataset, workers_per_rank, numbers)
    return simulate(dataset.epochs, dataset.catalog.spanner, costs_in(dataset), dataset.skips, setup)


def advice_for(dataset: StreamingDataset, result: Simulation) -> list[str]:
    """Return what to change about a dataset or its run, the most important first. Options are in backquotes."""
    entries = dataset.catalog.entries
    shard_bytes = sum(entry.stored_bytes for entry in entries) / max(1, len(entries))
    nodes = dataset.num_canonical_nodes or dataset.epochs.settings.canonical_nodes(result.setup.num_nodes)
    return advice(result, shard_bytes, nodes)


def setup_of(dataset: StreamingDataset, workers_per_rank: int, numbers: Mapping[str, Any]) -> Setup:
    """Return a run's setup from what a dataset knows and the caller's numbers.

    Args:
        dataset: The dataset.
        workers_per_rank: The number of workers of each rank.
        numbers: Arguments of ``Setup``.

    Raises:
        ConfigurationError: A number is invalid, or the dataset has no ``batch_size``.
    """
    batch_size = dataset.batch_size
    if batch_size is None:
        raise ConfigurationError("batch_size", None, "a number of samples: the order depends on it")
    known: dict[str, Any] = {
        "predownload": dataset.num_ahead,
        "cache_limit_bytes": dataset.cache_limit,
        "batches_together": 1 if workers_per_rank else batches_together(dataset, batch_size),
        "batches_per_chunk": batches_in_chunk(batch_size),
    }
    return Setup(workers_per_rank=workers_per_rank, **known | dict(numbers))


def costs_in(dataset: StreamingDataset) -> list[ShardCosts]:
    """Return the costs of a dataset's shards."""
    catalog = dataset.catalog
    streams: list[int] = catalog.stream_per_shard.tolist()
    return costs_of(catalog.entries, [bool(dataset.streams[stream].keep_zip) for stream in streams])
