"""What each shard costs: bytes to fetch, bytes on disk, requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from fkat_data.streaming.formats.entry import ShardEntry

__all__ = ["ShardCosts", "costs_of"]


@dataclass(frozen=True)
class ShardCosts:
    """The costs of one shard.

    Attributes:
        fetched_bytes: Bytes to fetch.
        raw_bytes: Bytes after decompression.
        is_compressed: Whether the fetched files are compressed.
        keeps_zip: Whether the compressed files stay on disk after decompression.
        num_requests: Number of requests, one for each file.
    """

    fetched_bytes: int
    raw_bytes: int
    is_compressed: bool = False
    keeps_zip: bool = False
    num_requests: int = 1

    @property
    def making_bytes(self) -> int:
        """Bytes on disk during the fetch and the decompression."""
        return self.raw_bytes + self.fetched_bytes if self.is_compressed else self.raw_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes on disk afterwards."""
        return self.making_bytes if self.keeps_zip else self.raw_bytes


def costs_of(entries: Sequence[ShardEntry], keeps_zip: Sequence[bool]) -> list[ShardCosts]:
    """Return the costs of the shards in an index.

    Args:
        entries: The shards' entries in the index.
        keeps_zip: For each shard, whether its compressed files stay on disk after decompression.
    """
    return [
        ShardCosts(entry.stored_bytes, entry.raw_bytes, entry.compression is not None, keep, len(entry.files))
        for entry, keep in zip(entries, keeps_zip, strict=True)
    ]
