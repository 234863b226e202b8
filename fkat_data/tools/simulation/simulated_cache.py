"""Shards on a node's disk: those that were not used for the longest time make room."""

from collections import OrderedDict

__all__ = ["SimulatedCache"]


class SimulatedCache:
    """Which shards are on a node's disk.

    A shard that is being made ready counts at its full size and cannot be evicted; if nothing else is left, it comes
    on top of the limit.

    Args:
        limit_bytes: What shards may take; None: all stay.

    Attributes:
        used_bytes: What they take, those that are being made ready included.
        most_bytes: The most that they have taken.
        num_evictions: Shards that have been evicted.
        gone: These shards, in order: whoever has one open closes it. A shard may be among them again.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[int, int] = OrderedDict()
        self._kept_bytes = 0
        self.used_bytes = self.most_bytes = self.num_evictions = 0
        self.gone: list[int] = []

    def __contains__(self, shard: int) -> bool:
        return shard in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def touch(self, shard: int) -> None:
        """Mark a shard as used now, if it is there."""
        if shard in self._kept:
            self._kept.move_to_end(shard)

    def reserve(self, num_bytes: int) -> None:
        """Make room for a shard that begins to be made ready."""
        self.used_bytes += num_bytes
        while self._limit_bytes is not None and self.used_bytes > self._limit_bytes and self._kept:
            self._evict()
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    def keep(self, shard: int, reserved_bytes: int, kept_bytes: int) -> None:
        """Let a shard that is ready be there, as the one that was used last."""
        self.used_bytes += kept_bytes - reserved_bytes
        self._kept[shard] = kept_bytes
        self._kept_bytes += kept_bytes
        # What came on top of the limit is on top of it no longer.
        while self._limit_bytes is not None and self._kept_bytes > self._limit_bytes:
            self._evict()

    def _evict(self) -> None:
        shard, freed_bytes = self._kept.popitem(last=False)
        self.used_bytes -= freed_bytes
        self._kept_bytes -= freed_bytes
        self.num_evictions += 1
        self.gone.append(shard)
