"""How large a cache has to be for nothing to be fetched again: from who used what when."""

from collections.abc import Sequence
from enum import IntEnum

from fkat_data.streaming.simulation.costs import ShardCosts

__all__ = ["Use", "enough_bytes"]


class Use(IntEnum):
    """What happened to a shard; ``EPOCH`` is for all of them: another epoch began."""

    BEGUN = 0
    READY = 1
    ASKED = 2
    EPOCH = 3


def enough_bytes(uses: Sequence[tuple[Use, int]], costs: Sequence[ShardCosts]) -> tuple[int, int]:
    """Return which limits are enough for shards that give way in the order of their last use.

    A shard is fetched again if, between two uses of it, others have taken all the room. So it is enough to have room,
    at any use, for all that was used since the use before; and for all that is being made ready at a time. A shard is
    counted as large as it is while it is made ready.

    Args:
        uses: What happened on a node on which nothing was evicted.
        costs: What each shard costs.

    Returns:
        The limit with which no shard is fetched twice within an epoch, and that for the whole run.
    """
    in_epoch = whole = 0
    sums = _Sums(len(uses) + 1)
    last: dict[int, int] = {}
    epoch_of: dict[int, int] = {}
    epoch = in_work_bytes = 0
    in_work: set[int] = set()
    for place, (use, shard) in enumerate(uses):
        if use is Use.EPOCH:
            epoch += 1
            continue
        size = costs[shard].making_bytes
        if use is Use.ASKED:
            needed = sums.above(last[shard]) + size + _below(in_work, last, last[shard], costs)
            whole = max(whole, needed)
            if epoch_of[shard] == epoch:
                in_epoch = max(in_epoch, needed)
        elif use is Use.BEGUN:
            in_work.add(shard)
            in_work_bytes += size
            in_epoch, whole = max(in_epoch, in_work_bytes), max(whole, in_work_bytes)
        else:
            in_work.discard(shard)
            in_work_bytes -= size
        if shard in last:
            sums.add(last[shard], -size)
        sums.add(place, size)
        last[shard] = place
        epoch_of[shard] = epoch
    return in_epoch, whole


def _below(shards: set[int], last: dict[int, int], place: int, costs: Sequence[ShardCosts]) -> int:
    return sum(costs[shard].making_bytes for shard in shards if last[shard] < place)


class _Sums:
    """Numbers in places, and the sum of those above one, in logarithmic time."""

    def __init__(self, size: int) -> None:
        self._tree = [0] * (size + 1)
        self._total = 0

    def add(self, place: int, number: int) -> None:
        self._total += number
        place += 1
        while place < len(self._tree):
            self._tree[place] += number
            place += place & -place

    def above(self, place: int) -> int:
        below = 0
        place += 1
        while place:
            below += self._tree[place]
            place -= place & -place
        return self._total - below
