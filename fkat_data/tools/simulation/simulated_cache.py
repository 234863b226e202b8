"""A node's cache of shards on disk, which evicts the least recently used first."""

from collections import OrderedDict
from collections.abc import Iterator


class SimulatedCache:
    """The shards on a node's disk.

    A shard that is being fetched counts at its full size and cannot be evicted. If nothing else can be evicted, it
    exceeds the limit.

    Args:
        limit_bytes: The limit for all shards; None: unlimited.

    Attributes:
        used_bytes: The size of all shards, including those being fetched.
        most_bytes: The largest ``used_bytes`` so far.
        num_evictions: The number of evictions.
        evicted: The evicted shards, in order; a shard can occur repeatedly. A reader closes those that it has open.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[int, int] = OrderedDict()
        self._kept_bytes = 0
        self.used_bytes: int = 0
        self.most_bytes: int = 0
        self.num_evictions: int = 0
        self.evicted: list[int] = []

    def __contains__(self, shard: int) -> bool:
        return shard in self._kept

    def __iter__(self) -> Iterator[int]:
        """Return an iterator of the shards, the least recently used first."""
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def touch(self, shard: int) -> None:
        """Mark a shard as used now, if it is in the cache."""
        if shard in self._kept:
            self._kept.move_to_end(shard)

    def reserve(self, num_bytes: int) -> None:
        """Make room for a shard whose fetch begins."""
        self.used_bytes += num_bytes
        while self._limit_bytes is not None and self.used_bytes > self._limit_bytes and self._kept:
            self._evict()
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    def keep(self, shard: int, reserved_bytes: int, kept_bytes: int) -> None:
        """Add a shard that is ready, as the most recently used."""
        self.used_bytes += kept_bytes - reserved_bytes
        self._kept[shard] = kept_bytes
        self._kept_bytes += kept_bytes
        # The shards may have exceeded the limit while they were being fetched.
        while self._limit_bytes is not None and self._kept_bytes > self._limit_bytes:
            self._evict()

    def _evict(self) -> None:
        shard, freed_bytes = self._kept.popitem(last=False)
        self.used_bytes -= freed_bytes
        self._kept_bytes -= freed_bytes
        self.num_evictions += 1
        self.evicted.append(shard)
