"""A rank's read-ahead: what it wants, in the order of need, and what of it is not there yet."""

from collections import deque
from collections.abc import Iterable

__all__ = ["SimulatedRank"]


class SimulatedRank:
    """What a rank waits for.

    Attributes:
        queue: Shards that it wants and nobody has begun for it, in the order of need.
        num_busy: Its threads that make a shard ready.
    """

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.num_busy = 0
        self._pending: dict[int, list[int]] = {}
        # Parts in their order, each with the number of its shards that are not ready.
        self._parts: deque[list[int]] = deque()

    def want(self, part: int, shards: Iterable[int]) -> None:
        """Want shards for a part; parts come in their order."""
        wanted = [shard for shard in shards if shard not in self._pending]
        entry = [part, len(wanted)]
        self._parts.append(entry)
        for shard in wanted:
            self._pending[shard] = entry
            self.queue.append(shard)

    def settle(self, shard: int) -> None:
        """Take note that a shard is ready."""
        self._pending.pop(shard)[1] -= 1

    def is_ready(self, part: int) -> bool:
        """Return whether everything for a part, and for those before it, is ready."""
        while self._parts and self._parts[0][1] == 0:
            self._parts.popleft()
        return not self._parts or self._parts[0][0] > part
