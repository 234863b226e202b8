"""Say in words what to change about a simulated run."""

import math
from collections.abc import Iterator

from fkat_data.quantities import readable_bytes
from fkat_data.tools.simulation.remedies import NEGLIGIBLE_SHARE
from fkat_data.tools.simulation.result import Simulation

__all__ = ["advice"]

_FEW_SHARED = 1.05
_LONG_FIRST_S = 60.0
_POOR_SPREAD = 0.5
_POOR_MIXTURE = 0.1


def advice(result: Simulation, shard_bytes: float, num_canonical_nodes: int) -> list[str]:
    """Return what to change and why, the most important first. Names of options are in backquotes.

    Args:
        result: The run.
        shard_bytes: The average number of bytes fetched for a shard.
        num_canonical_nodes: The number of canonical nodes in the order.
    """
    found = [*_cache(result), *_line(result, shard_bytes), *_nodes(result, num_canonical_nodes), *_quality(result)]
    if not any((result.later_share > NEGLIGIBLE_SHARE, *(node.num_fetched_again for node in result.nodes))):
        share = f"{result.later_share:.1%}"
        found.insert(0, f"The data keep up: after the first step of each epoch, the run waits {share} of the time.")
    return [*found, *_start(result, shard_bytes)]


def _cache(result: Simulation) -> list[str]:
    again = sum(node.num_fetched_again for node in result.nodes)
    needed = result.remedies.cache_limit_bytes
    limit = result.setup.cache_limit_bytes
    found: list[str] = []
    if again:
        times = sum(node.num_fetches for node in result.nodes) / sum(node.num_shards for node in result.nodes)
        enough = f" `cache_limit` = {readable_bytes(needed)} avoids that." if needed else ""
        found.append(
            f"The cache is too small: it evicts shards before they are fully read, so each is fetched {times:.1f} "
            f"times. {again:,} fetches are repeated within an epoch.{enough}"
        )
    if limit is not None and result.num_epochs > 1 and limit < result.whole_bytes:
        found.append(
            f"Every epoch fetches shards again: `cache_limit` is {readable_bytes(limit)}, and to keep all its shards a "
            f"node needs {readable_bytes(result.whole_bytes)}."
        )
    return found


def _line(result: Simulation, shard_bytes: float) -> list[str]:
    setup, remedies = result.setup, result.remedies
    if result.later_share <= NEGLIGIBLE_SHARE:
        return []
    found: list[str] = []
    waits = f"The run waits for data {result.later_share:.0%} of the time after the first step of each epoch"
    if remedies.unbounded_share is None:
        return [f"{waits}. A large enough cache avoids that."]
    if remedies.bandwidth_bytes_per_s is not None:
        found.append(
            f"{waits}: a node has {readable_bytes(setup.bandwidth_bytes_per_s)}/s, and needs about "
            f"{readable_bytes(remedies.bandwidth_bytes_per_s)}/s to wait less than {NEGLIGIBLE_SHARE:.0%}."
        )
    else:
        found.append(
            f"{waits}, and with unlimited bandwidth still {remedies.unbounded_share:.0%}: "
            f"{_other_limit(result, shard_bytes)}"
        )
    if remedies.predownload is not None:
        found.append(
            f"`predownload` = {remedies.predownload:,} is enough at this bandwidth. With {setup.predownload:,} samples, "
            "shards are requested too late."
        )
    elif remedies.bandwidth_bytes_per_s is not None:
        found.append("A larger `predownload` does not help: the run reads more than the bandwidth allows.")
    return found


def _other_limit(result: Simulation, shard_bytes: float) -> str:
    setup = result.setup
    transfer_s = shard_bytes / min(setup.connection_bytes_per_s, setup.bandwidth_bytes_per_s)
    if setup.store_bytes_per_s < math.inf:
        return f"the store sends {readable_bytes(setup.store_bytes_per_s)}/s to all nodes together."
    if setup.latency_s > transfer_s:
        return (
            f"a request for a shard of {readable_bytes(shard_bytes)} takes {setup.latency_s:.3g} s to answer and only "
            f"{transfer_s:.2g} s to transfer, so write larger shards."
        )
    return "single transfers are too slow or start too late, so raise `predownload` or write smaller shards."


def _nodes(result: Simulation, num_canonical_nodes: int) -> Iterator[str]:
    num_nodes = result.setup.num_nodes
    times = sum(node.num_shards for node in result.nodes) / max(1, result.num_shards)
    if num_nodes == 1 or times <= _FEW_SHARED:
        return
    text = f"Each shard is fetched by {times:.1f} of {num_nodes} nodes"
    if num_canonical_nodes % num_nodes:
        yield (
            f"{text}: `num_canonical_nodes` is {num_canonical_nodes}. With a multiple of {num_nodes}, each node has "
            "its own shards."
        )
    else:
        yield f"{text}, because the order assigns its samples to several nodes."


def _quality(result: Simulation) -> Iterator[str]:
    quality = result.quality
    if quality.spread < _POOR_SPREAD:
        yield (
            f"The order is hardly shuffled: consecutive samples are close together in the dataset (spread "
            f"{quality.spread:.0%})."
        )
    elif quality.mixture < _POOR_MIXTURE:
        yield (
            f"A step has samples of {quality.shards_per_step:,.0f} shards; a full shuffle would have "
            f"{quality.perfect_shards_per_step:,.0f}. A larger `shuffle_block_size` or `num_canonical_nodes` mixes "
            "better, but keeps more shards open."
        )


def _start(result: Simulation, shard_bytes: float) -> Iterator[str]:
    if result.first_batch_s >= _LONG_FIRST_S:
        yield (
            f"The first step waits {result.first_batch_s:,.0f} s, until all shards with its samples are fetched, "
            f"{readable_bytes(shard_bytes)} each. Smaller shards, a smaller `shuffle_block_size` or a warm cache "
            "shorten that."
        )
