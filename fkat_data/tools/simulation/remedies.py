"""Find what would remove the waits, by playing the run again with one number changed."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from fkat_data.tools.simulation.costs import ShardCosts
from fkat_data.tools.simulation.needs import EpochNeeds
from fkat_data.tools.simulation.play import Played, play
from fkat_data.tools.simulation.result import Remedies, later_share
from fkat_data.tools.simulation.setup import Setup

__all__ = ["NEGLIGIBLE_SHARE", "remedies_of"]

#: Waiting less than this share of the time, not counting the first step of each epoch, is negligible.
NEGLIGIBLE_SHARE = 0.01

#: The number of shard visits to play again, at most. A longer run is judged by its beginning.
_MOST_VISITS = 200_000
_MOST_DOUBLINGS = 7
_PRECISION = 1.05


def remedies_of(
    needs: Sequence[EpochNeeds],
    costs: Sequence[ShardCosts],
    setup: Setup,
    num_ranks: int,
    played: Played,
    cached: Sequence[Collection[int]] = (),
) -> Remedies:
    """Return what would remove the waits of a run.

    Args:
        needs: The shards that the ranks need.
        costs: The costs of each shard.
        setup: The run.
        num_ranks: The number of ranks in ``needs``.
        played: The run, played with this setup.
        cached: For each node from the first one on, the shards that it has when the run starts.
    """
    shortened = _shortened(needs)

    def replay(setup: Setup) -> Played:
        return play(shortened, costs, setup, num_ranks, cached)

    cache_limit = _cache_limit(replay, setup) if _is_fetched_again(played) else None
    if cache_limit is not None:
        # First fix the cache: the bandwidth is not to blame for repeated fetches.
        setup = replace(setup, cache_limit_bytes=cache_limit)
        played = replay(setup)
    if _share(played, setup) <= NEGLIGIBLE_SHARE:
        return Remedies(cache_limit_bytes=cache_limit)

    def share(**changes: float) -> float:
        return _share(replay(replace(setup, **changes)), setup)

    unbounded = share(bandwidth_bytes_per_s=math.inf)
    bandwidth = None
    if unbounded <= NEGLIGIBLE_SHARE:
        bandwidth = _least_bandwidth(lambda value: share(bandwidth_bytes_per_s=value) <= NEGLIGIBLE_SHARE, setup)
    return Remedies(bandwidth, _least_predownload(share, setup), unbounded, cache_limit)


def _least_bandwidth(is_enough: Callable[[float], bool], setup: Setup) -> float | None:
    low, high = setup.bandwidth_bytes_per_s, setup.bandwidth_bytes_per_s
    for _ in range(4 * _MOST_DOUBLINGS):
        high *= 2
        if is_enough(high):
            break
        low = high
    else:
        return None
    while high > low * _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _least_predownload(share: Callable[..., float], setup: Setup) -> int | None:
    predownload = max(1, setup.predownload)
    for _ in range(_MOST_DOUBLINGS):
        predownload *= 2
        if share(predownload=predownload) <= NEGLIGIBLE_SHARE:
            return predownload
    return None


def _cache_limit(replay: Callable[[Setup], Played], setup: Setup) -> int:
    unlimited = replay(replace(setup, cache_limit_bytes=None))
    low = setup.cache_limit_bytes or 1
    high = max(low, *(node.cache.most_bytes for node in unlimited.nodes))

    def is_enough(limit_bytes: int) -> bool:
        return not _is_fetched_again(replay(replace(setup, cache_limit_bytes=limit_bytes)))

    while high > low * _PRECISION:
        middle = int(math.sqrt(low * high))
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _share(played: Played, setup: Setup) -> float:
    return later_share(played.wait_s, played.epoch_starts, setup.step_s)


def _is_fetched_again(played: Played) -> bool:
    return any(node.num_fetched_again for node in played.nodes)


def _shortened(needs: Sequence[EpochNeeds]) -> list[EpochNeeds]:
    kept: list[EpochNeeds] = []
    num_left = _MOST_VISITS
    for epoch in needs:
        num_parts = 0
        while num_parts < len(epoch.parts) and num_left > 0:
            num_left -= sum(len(shards) for shards in epoch.parts[num_parts].shards)
            num_parts += 1
        kept.append(replace(epoch, parts=epoch.parts[:num_parts]))
        if num_left <= 0:
            break
    return kept
