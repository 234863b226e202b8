"""What each shard costs: bytes on the line, bytes on the disk, requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from fkat_data.streaming.formats.entry import ShardEntry

__all__ = ["ShardCosts", "costs_of"]


@dataclass(frozen=True)
class ShardCosts:
    """One shard's costs.

    Attributes:
        fetched_bytes: What comes over the line.
        raw_bytes: What is read.
        is_compressed: Whether what comes is decompressed.
        keeps_zip: Whether what comes stays after that.
        num_requests: Requests that it takes: one a file.
    """

    fetched_bytes: int
    raw_bytes: int
    is_compressed: bool = False
    keeps_zip: bool = False
    num_requests: int = 1

    @property
    def making_bytes(self) -> int:
        """What it takes on the disk while it is made ready."""
        return self.raw_bytes + self.fetched_bytes if self.is_compressed else self.raw_bytes

    @property
    def kept_bytes(self) -> int:
        """What it takes on the disk afterwards."""
        return self.making_bytes if self.keeps_zip else self.raw_bytes


def costs_of(entries: Sequence[ShardEntry], keeps_zip: Sequence[bool]) -> list[ShardCosts]:
    """Return what the shards of an index cost.

    Args:
        entries: What the index says.
        keeps_zip: For each, whether its compressed files stay once they are decompressed.
    """
    return [
        ShardCosts(entry.stored_bytes, entry.raw_bytes, entry.compression is not None, keep, len(entry.files))
        for entry, keep in zip(entries, keeps_zip, strict=True)
    ]
