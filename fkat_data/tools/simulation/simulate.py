"""Simulate a run, from the configuration's order to the result."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.epoch.epochs import Epochs
from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.epoch.skips import SampleSkips
from fkat_data.streaming.order.plan import Plan
from fkat_data.streaming.order.spanner import Spanner
from fkat_data.tools.simulation.costs import ShardCosts
from fkat_data.tools.simulation.needs import needs_of
from fkat_data.tools.simulation.play import play
from fkat_data.tools.simulation.quality import Quality, quality_of
from fkat_data.tools.simulation.remedies import remedies_of
from fkat_data.tools.simulation.result import Remedies, Simulation, num_warm_up_steps, totals_of
from fkat_data.tools.simulation.setup import Setup

__all__ = ["simulate"]

#: The number of samples on which to measure the order's quality.
_NUM_MEASURED = 1 << 20


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
    has_remedies: bool = True,
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
        has_remedies: Whether to look for what would remove the waits, which plays the run again and again.

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
        quality=_quality(first_plan, spanner),
        remedies=remedies_of(needs, costs, setup, num_ranks, played, cached) if has_remedies else Remedies(),
    )


def _quality(plan: Plan, spanner: Spanner) -> Quality:
    num_batches = max(1, min(plan.batching.num_even_batches, _NUM_MEASURED // plan.grid.global_batch_size))
    return quality_of(plan.global_batches(np.arange(num_batches)), spanner)
