"""What to change, in words."""

import math
from collections.abc import Iterator

from fkat_data.tools.simulation.remedies import HARDLY
from fkat_data.tools.simulation.result import Simulation

__all__ = ["advice", "readable_bytes"]

_FEW_SHARED = 1.05
_LONG_FIRST_S = 60.0
_POOR_SPREAD = 0.5
_POOR_MIXTURE = 0.1


def advice(result: Simulation, shard_bytes: float, num_canonical_nodes: int) -> list[str]:
    """Return what to change and why, the most important first; names of options stand in backquotes.

    Args:
        result: The run.
        shard_bytes: What a shard's fetch brings, on average.
        num_canonical_nodes: Parts that the order is made of.
    """
    found = [*_cache(result), *_line(result, shard_bytes), *_nodes(result, num_canonical_nodes), *_quality(result)]
    if not any((result.later_share > HARDLY, *(node.num_fetched_again for node in result.nodes))):
        share = f"{result.later_share:.1%}"
        found.insert(0, f"Data keep up with the steps: once an epoch has begun, {share} of the time is waited.")
    return [*found, *_start(result, shard_bytes)]


def _cache(result: Simulation) -> list[str]:
    again = sum(node.num_fetched_again for node in result.nodes)
    needed = result.remedies.cache_limit_bytes
    limit = result.setup.cache_limit_bytes
    found: list[str] = []
    if again:
        times = sum(node.num_fetches for node in result.nodes) / sum(node.num_shards for node in result.nodes)
        enough = f" `cache_limit` = {readable_bytes(needed)} is enough for that." if needed else ""
        found.append(
            f"The cache is too small: shards give way before they are read to their end, and each is fetched "
            f"{times:.1f} times; {again:,} fetches would not be needed in their epoch.{enough}"
        )
    if limit is not None and result.num_epochs > 1 and limit < result.whole_bytes:
        found.append(
            f"Every epoch fetches shards anew: `cache_limit` is {readable_bytes(limit)}, and a node that kept all that it "
            f"uses would need {readable_bytes(result.whole_bytes)}."
        )
    return found


def _line(result: Simulation, shard_bytes: float) -> list[str]:
    setup, remedies = result.setup, result.remedies
    if result.later_share <= HARDLY:
        return []
    found: list[str] = []
    waits = f"The run waits for data {result.later_share:.0%} of the time once an epoch has begun"
    if remedies.unbounded_share is None:
        return [f"{waits}; it would not with a cache that is large enough."]
    if remedies.bandwidth_bytes_per_s is not None:
        found.append(
            f"{waits}: a node needs about {readable_bytes(remedies.bandwidth_bytes_per_s)}/s for less than {HARDLY:.0%}, "
            f"and has {readable_bytes(setup.bandwidth_bytes_per_s)}/s."
        )
    else:
        found.append(
            f"{waits}, and still {remedies.unbounded_share:.0%} of it if a node received any number of bytes a second: "
            f"{_other_limit(result, shard_bytes)}"
        )
    if remedies.predownload is not None:
        found.append(
            f"`predownload` = {remedies.predownload:,} would do with the line as it is: with {setup.predownload:,} "
            "samples, what is needed soon is begun too late."
        )
    elif remedies.bandwidth_bytes_per_s is not None:
        found.append("A longer `predownload` does not help: more is read than the line brings.")
    return found


def _other_limit(result: Simulation, shard_bytes: float) -> str:
    setup = result.setup
    transfer_s = shard_bytes / min(setup.connection_bytes_per_s, setup.bandwidth_bytes_per_s)
    if math.isfinite(setup.store_bytes_per_s) and setup.store_bytes_per_s < math.inf:
        return f"the store sends {readable_bytes(setup.store_bytes_per_s)}/s to all nodes together."
    if setup.latency_s > transfer_s:
        return (
            f"shards of {readable_bytes(shard_bytes)} take {setup.latency_s:.3g} s to answer and {transfer_s:.2g} s to "
            "come; write larger shards."
        )
    return "single transfers are too slow, or begun too late; raise `predownload`, or write smaller shards."


def _nodes(result: Simulation, num_canonical_nodes: int) -> Iterator[str]:
    num_nodes = result.setup.num_nodes
    times = sum(node.num_shards for node in result.nodes) / max(1, result.num_shards)
    if num_nodes == 1 or times <= _FEW_SHARED:
        return
    text = f"Each shard is fetched by {times:.1f} of {num_nodes} nodes"
    if num_canonical_nodes % num_nodes:
        yield (
            f"{text}: `num_canonical_nodes` is {num_canonical_nodes}; with a multiple of {num_nodes}, each node has "
            "shards of its own."
        )
    else:
        yield f"{text}, as the order wants it."


def _quality(result: Simulation) -> Iterator[str]:
    quality = result.quality
    if quality.spread < _POOR_SPREAD:
        yield (
            f"Samples that follow one another are near each other in the dataset (spread {quality.spread:.0%}): the "
            "order is hardly shuffled."
        )
    elif quality.mixture < _POOR_MIXTURE:
        yield (
            f"A step has samples of {quality.shards_per_step:,.0f} shards, where a shuffle without shards would have "
            f"{quality.perfect_shards_per_step:,.0f}: a larger `shuffle_block_size` or `num_canonical_nodes` mixes "
            "better, and keeps more shards open."
        )


def _start(result: Simulation, shard_bytes: float) -> Iterator[str]:
    if result.first_batch_s >= _LONG_FIRST_S:
        yield (
            f"The first step waits {result.first_batch_s:,.0f} s: all shards that it has samples of are fetched "
            f"first, {readable_bytes(shard_bytes)} each. Smaller shards, a smaller `shuffle_block_size` or a warm cache "
            "begin sooner."
        )


def readable_bytes(size: float) -> str:
    """Return a size as people say it, in powers of 1,024."""
    if math.isinf(size):
        return "∞"
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 0.9995 * 1024**power:
            return f"{size / 1024**power:.3g} {unit}"
    return f"{size:.0f} B"
