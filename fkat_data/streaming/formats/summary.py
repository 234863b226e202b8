"""A summary of a dataset from its index, and its first samples."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fkat_data.streaming.formats.entry import Column, ShardEntry
from fkat_data.streaming.formats.index import INDEX_NAME, read_index
from fkat_data.streaming.formats.open_shard import open_shard
from fkat_data.streaming.formats.unpacking import unpacked


@dataclass(frozen=True)
class DatasetSummary:
    """Formats, columns and sizes of a dataset, from its index. Each tuple has distinct values.

    Attributes:
        formats: Formats of the shards.
        compressions: Compressions of the shards; None stands for uncompressed.
        hashes: Hash algorithms of the files.
        columns: Columns of the shards: one tuple if all shards have the same ones.
        num_shards: Number of shards.
        num_samples: Number of samples.
        raw_bytes: Size of the uncompressed files, in bytes.
        stored_bytes: Size of the files as stored, in bytes.
        least_samples: Samples in the smallest shard.
        most_samples: Samples in the largest shard.
    """

    formats: tuple[str, ...]
    compressions: tuple[str | None, ...]
    hashes: tuple[str, ...]
    columns: tuple[tuple[Column, ...], ...]
    num_shards: int
    num_samples: int
    raw_bytes: int
    stored_bytes: int
    least_samples: int
    most_samples: int


def summary_of(directory: Path, entries: Sequence[ShardEntry] | None = None) -> DatasetSummary:
    """Return the summary of a dataset. Read the index only, unless its shards are given.

    Raises:
        ShardNotFoundError: The index does not exist.
        ShardCorruptError: The index is invalid.
    """
    entries = read_index(directory / INDEX_NAME) if entries is None else entries
    counts = [entry.samples for entry in entries]
    return DatasetSummary(
        tuple(dict.fromkeys(entry.format for entry in entries)),
        tuple(dict.fromkeys(entry.compression for entry in entries)),
        tuple(dict.fromkeys(name for entry in entries for name in entry.hashes)),
        tuple(dict.fromkeys(entry.columns for entry in entries)),
        len(entries),
        sum(counts),
        sum(entry.raw_bytes for entry in entries),
        sum(entry.stored_bytes for entry in entries),
        min(counts, default=0),
        max(counts, default=0),
    )


def first_samples(
    directory: Path,
    count: int,
    *,
    allow_unsafe_types: bool = False,
    entries: Sequence[ShardEntry] | None = None,
) -> list[dict[str, Any]]:
    """Return the first samples of a dataset, decoded. Decompress shards to a temporary directory.

    Args:
        directory: Directory of the index.
        count: Maximum number of samples.
        allow_unsafe_types: Whether to read pickles, which runs code of the file's author.
        entries: The shards; None: those of the index in the directory.

    Raises:
        ConfigurationError: A column holds pickles, and they are not allowed.
        ShardError: The index or a shard is missing or invalid.
    """
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fkat-inspect-") as scratch:
        for entry in read_index(directory / INDEX_NAME) if entries is None else entries:
            if len(found) >= count:
                break
            found += _samples(directory, entry, Path(scratch), count - len(found), allow_unsafe_types)
    return found


def _samples(directory: Path, entry: ShardEntry, scratch: Path, count: int, allow: bool) -> list[dict[str, Any]]:
    root = unpacked(directory, entry, scratch)
    shard = open_shard(root, entry, allow_unsafe_types=allow, writable=True)
    return shard.samples(range(min(count, entry.samples)))
