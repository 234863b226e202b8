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
        making_bytes: What it takes on the disk while it is made ready, compressed files included.
        kept_bytes: What it takes on the disk afterwards.
        decompressed_bytes: What is decompressed; 0 if it is not compressed.
        num_requests: Requests that it takes: one a file.
    """

    fetched_bytes: int
    making_bytes: int
    kept_bytes: int
    decompressed_bytes: int = 0
    num_requests: int = 1


def costs_of(entries: Sequence[ShardEntry], keeps_zip: Sequence[bool]) -> list[ShardCosts]:
    """Return what the shards of an index cost.

    Args:
        entries: What the index says.
        keeps_zip: For each, whether its compressed files stay once they are decompressed.
    """
    return [_costs(entry, keeps_zip=keep) for entry, keep in zip(entries, keeps_zip, strict=True)]


def _costs(entry: ShardEntry, *, keeps_zip: bool) -> ShardCosts:
    if entry.compression is None:
        return ShardCosts(entry.raw_bytes, entry.raw_bytes, entry.raw_bytes, 0, len(entry.files))
    both = entry.raw_bytes + entry.stored_bytes
    kept = both if keeps_zip else entry.raw_bytes
    return ShardCosts(entry.stored_bytes, both, kept, entry.raw_bytes, len(entry.files))
