"""Simulate a run, from the configuration's order to the result."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.streaming.epoch.epochs import Epochs
from fkat_data.streaming.epoch.rank_batches import batches_in_chunk
from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.epoch.skips import SampleSkips
from fkat_data.streaming.order.spanner import Spanner
from fkat_data.streaming.stream_plan import batches_together
from fkat_data.tools.simulation.needs import needs_of
from fkat_data.tools.simulation.play import play
from fkat_data.tools.simulation.result import Simulation, num_warm_up_steps, totals_of
from fkat_data.tools.simulation.setup import Setup, ShardCosts


def simulate(
    epochs: Epochs,
    spanner: Spanner,
    costs: Sequence[ShardCosts],
    skips: SampleSkips,
    setup: Setup,
    *,
    start: ResumePoint | None = None,
    cached: Sequence[Collection[int]] = (),
    count: Callable[[npt.NDArray[np.int64]], None] | None = None,
) -> Simulation:
    """Return what a run would wait for, fetch and cache. It reads no clock, no files and no network.

    Args:
        epochs: The configuration of the order, for the run's world size.
        spanner: Where the shards begin.
        costs: The costs of each shard.
        skips: The samples and batches that are not delivered.
        setup: The run.
        start: Where the run starts; None: at the start of epoch 0.
        cached: For each node from the first one on, the shards that it has when the run starts.
        count: Called with the ids of the delivered samples, part by part.

    Raises:
        ConfigurationError: The epochs cannot be planned, are empty, or have another world size; or a shard does not
            fit into the cache.
    """
    num_ranks = epochs.grid().num_ranks
    world_size = num_ranks * (epochs.replication or 1)
    if setup.num_ranks != world_size:
        expected = f"nodes with {world_size} ranks in total, the world size of the dataset"
        raise ConfigurationError("num_nodes", setup.num_nodes, expected)
    largest = max(cost.making_bytes for cost in costs)
    if setup.cache_limit_bytes is not None and setup.cache_limit_bytes < largest:
        expected = f"at least {largest} bytes, the size of the largest shard"
        raise ConfigurationError("cache_limit", setup.cache_limit_bytes, expected)
    start = epochs.settled(start or ResumePoint())
    first_plan = epochs.plan(start)
    needs = needs_of(epochs, spanner, skips, setup, start=start, first_plan=first_plan, count=count)
    if not sum(epoch.num_steps for epoch in needs):
        raise ConfigurationError("batch_size", epochs.batch_size, "an epoch with at least one global batch")
    played = play(needs, costs, setup, num_ranks, cached)
    return Simulation(
        setup=setup,
        wait_s=played.wait_s,
        epoch_starts=played.epoch_starts,
        duration_s=played.duration_s,
        num_warm_up_steps=num_warm_up_steps(played.wait_s, setup.step_s),
        snapshots=played.snapshots,
        nodes=totals_of(played),
        cached=tuple(tuple(node.cache) for node in played.nodes),
        num_shards=len(set[int]().union(*(node.fetched for node in played.nodes))),
        whole_bytes=max(sum(costs[shard].kept_bytes for shard in node.fetched) for node in played.nodes),
    )


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
    keeps_zip = [bool(dataset.streams[stream].keep_zip) for stream in streams]
    return [
        ShardCosts(entry.stored_bytes, entry.raw_bytes, entry.compression is not None, keep, len(entry.files))
        for entry, keep in zip(catalog.entries, keeps_zip, strict=True)
    ]
