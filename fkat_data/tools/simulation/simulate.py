"""Plays a configuration's run, from its order to its result."""

from collections.abc import Sequence

import numpy as np

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.epoch.epochs import Epochs
from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.epoch.skips import SampleSkips
from fkat_data.streaming.order.spanner import Spanner
from fkat_data.tools.simulation.costs import ShardCosts
from fkat_data.tools.simulation.needs import needs_of
from fkat_data.tools.simulation.play import play
from fkat_data.tools.simulation.quality import Quality, quality_of
from fkat_data.tools.simulation.remedies import remedies_of
from fkat_data.tools.simulation.result import Simulation, num_warm_up_steps, summed
from fkat_data.tools.simulation.setup import Setup

__all__ = ["simulate"]

#: Samples of which the order's quality is measured.
_NUM_MEASURED = 1 << 20


def simulate(
    epochs: Epochs, spanner: Spanner, costs: Sequence[ShardCosts], skips: SampleSkips, setup: Setup
) -> Simulation:
    """Return what a run would wait for, fetch and keep. It has no clock, and touches no file and no network.

    Args:
        epochs: What the configuration says of the order; its world is that of the run.
        spanner: Where the shards begin.
        costs: What each shard costs.
        skips: What is not delivered.
        setup: The run.

    Raises:
        ConfigurationError: The epochs cannot be planned, are empty, or are those of another world; or the cache is
            too small for a shard.
    """
    num_ranks = epochs.grid().num_ranks
    if setup.num_ranks != num_ranks * (epochs.replication or 1):
        raise ConfigurationError("num_nodes", setup.num_nodes, f"the world of the epochs, of {num_ranks} ranks")
    largest = max(cost.making_bytes for cost in costs)
    if setup.cache_limit_bytes is not None and setup.cache_limit_bytes < largest:
        raise ConfigurationError("cache_limit", setup.cache_limit_bytes, f"room for a shard: at least {largest} bytes")
    needs = needs_of(epochs, spanner, skips, setup)
    if not sum(epoch.num_steps for epoch in needs):
        raise ConfigurationError("batch_size", epochs.batch_size, "an epoch with at least one global batch")
    played = play(needs, costs, setup, num_ranks)
    return Simulation(
        setup=setup,
        wait_s=played.wait_s,
        epoch_starts=played.epoch_starts,
        duration_s=played.duration_s,
        num_warm_up_steps=num_warm_up_steps(played.wait_s, setup.step_s),
        moments=played.moments,
        nodes=summed(played),
        num_shards=len(set[int]().union(*(node.fetched for node in played.nodes))),
        whole_bytes=max(sum(costs[shard].kept_bytes for shard in node.fetched) for node in played.nodes),
        quality=_quality(epochs, spanner),
        remedies=remedies_of(needs, costs, setup, num_ranks, played),
    )


def _quality(epochs: Epochs, spanner: Spanner) -> Quality:
    plan = epochs.plan(epochs.settled(ResumePoint()))
    num_batches = max(1, min(plan.batching.num_even_batches, _NUM_MEASURED // plan.grid.global_batch_size))
    return quality_of(plan.global_batches(np.arange(num_batches)), spanner)
