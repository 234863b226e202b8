"""The shards of all streams, and the shard and row of each sample."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.files.formats import check_safe
from fkat_data.files.shard import ShardEntry
from fkat_data.files.tar import with_decoders
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.order.spans import Spanner
from fkat_data.streaming.reading.shard_source import ShardSource, check_apart, entries_of, sources_of
from fkat_data.streaming.reading.stream import ReadCommit, Stream

_Integers = npt.NDArray[np.int64]

#: As in the reference: one shard that is read, one that is fetched, and two more.
_SHARDS_AT_LEAST = 4


class Catalog:
    """The shards of all streams, numbered consecutively.

    Args:
        streams: The streams, with every setting filled in.
        allow_unsafe_types: Whether columns of pickles may be read.
        cache_limit: Bytes that the shards cached on this node may take; None: no limit.

    Raises:
        ConfigurationError: A shard has a column of pickles, and they are not allowed; a shard lacks a chosen column, or is no tar
            file and has decoders; the index lacks the hash to compare files with; a directory cannot be a cache; or the
            limit is too small.
        ShardNotFoundError: A stream has no index.
        ShardCorruptError: An index is malformed, or a stream has no samples.
        DownloadError: A store does not deliver its index.

    Attributes:
        sources: The source of each stream's shards.
        cache_budget: What the shards cached on this node take; None if all are read in place.
        indices_bytes: What the indices take.
        entries: What the indices say about each shard.
        stream_per_shard: The stream of each shard.
        samples_per_shard: Samples of each shard.
        shards_per_stream: Shards of each stream.
        spanner: Maps a sample's number to its shard and row.
    """

    def __init__(self, streams: Sequence[Stream], *, allow_unsafe_types: bool, cache_limit: int | None = None) -> None:
        sources, cache_budget = sources_of(streams)
        self.sources: list[ShardSource] = sources
        self.cache_budget: CacheBudget | None = cache_budget
        self.entries: list[ShardEntry] = []
        per_stream: list[list[ShardEntry]] = []
        for stream, source in zip(streams, self.sources, strict=True):
            entries = entries_of(stream, source)
            if not sum(entry.samples for entry in entries):
                raise ShardCorruptError(str(source.directory), "the dataset has no samples")
            if stream.decode is not None:
                entries = with_decoders(entries, stream.decode)
            if not allow_unsafe_types:
                _check_safe(entries)
            _check_hashes(entries, stream.validate_hash)
            self.entries += entries if stream.columns is None else _with_columns(entries, stream.columns)
            per_stream.append(entries)
        check_apart(self.sources, per_stream)
        counts = [len(entries) for entries in per_stream]
        self.shards_per_stream: _Integers = np.array(counts, np.int64)
        self.stream_per_shard: _Integers = np.repeat(np.arange(len(counts)), counts)
        self.samples_per_shard: _Integers = np.array([entry.samples for entry in self.entries], np.int64)
        self.spanner: Spanner = Spanner(self.samples_per_shard)
        self.indices_bytes: int = sum(source.index_bytes for source in self.sources)
        if self.cache_budget is not None and cache_limit is not None:
            self._check_limit(cache_limit)
            # Not before: the check of the limit needs the indices.
            self.cache_budget.limit_bytes = cache_limit

    @property
    def commits(self) -> list[ReadCommit | None]:
        """What each stream is read of, if its store has commits; else None."""
        return [source.read_commit for source in self.sources]

    @property
    def is_immediate(self) -> bool:
        """Whether no shard needs fetching."""
        return all(source.is_immediate for source in self.sources)

    def shards_of(self, sample_ids: _Integers) -> list[int]:
        """Return the shards of samples, each once, in the order of their first samples."""
        shards, _ = self.spanner.locate(sample_ids)
        return list(dict.fromkeys(shards.tolist()))

    def source_of(self, shard: int) -> ShardSource:
        """Return the source of a shard."""
        return self.sources[int(self.stream_per_shard[shard])]

    @property
    def num_samples(self) -> int:
        """Number of samples in all streams."""
        return self.spanner.size

    @property
    def shard_offset_per_stream(self) -> _Integers:
        """The first shard of each stream."""
        return np.cumsum(self.shards_per_stream) - self.shards_per_stream

    @property
    def sample_offset_per_shard(self) -> _Integers:
        """The first sample of each shard."""
        return self.spanner.starts

    @property
    def samples_per_stream(self) -> _Integers:
        """Samples of each stream."""
        return np.array([sizes.sum() for sizes in self.shard_sizes], np.int64)

    @property
    def sample_offset_per_stream(self) -> _Integers:
        """The first sample of each stream."""
        return np.cumsum(self.samples_per_stream) - self.samples_per_stream

    @property
    def shard_sizes(self) -> tuple[_Integers, ...]:
        """For each stream, the samples of its shards."""
        edges = np.concatenate(([0], np.cumsum(self.shards_per_stream))).tolist()
        return tuple(self.samples_per_shard[start:stop] for start, stop in pairwise(edges))

    def _check_limit(self, limit_bytes: int) -> None:
        kept = [self.source_of(shard).kept_bytes(entry) for shard, entry in enumerate(self.entries)]
        largest_bytes = max(kept)
        needed_bytes = self.indices_bytes + _SHARDS_AT_LEAST * largest_bytes
        if limit_bytes < needed_bytes:
            raise ConfigurationError(
                "cache_limit",
                limit_bytes,
                f"at least {needed_bytes}: the indices and {_SHARDS_AT_LEAST} times the largest shard, "
                f"{self.entries[kept.index(largest_bytes)].raw_data.basename} of {largest_bytes} bytes",
            )


def _check_hashes(entries: Sequence[ShardEntry], algorithm: str | None) -> None:
    if algorithm is None:
        return
    for entry in entries:
        for info in (info for pair in entry.files for info in pair if info is not None):
            if algorithm not in info.hashes:
                known = ", ".join(info.hashes) or "none"
                raise ConfigurationError(
                    "validate_hash", algorithm, f"a hash that the index has for {info.basename} ({known})"
                )


def _with_columns(entries: Sequence[ShardEntry], columns: tuple[str, ...]) -> list[ShardEntry]:
    """Return shards of which only some columns are read.

    Raises:
        ConfigurationError: A shard lacks a column.
    """
    for entry in entries:
        present = [column.name for column in entry.columns]
        for name in columns:
            if name not in present:
                raise ConfigurationError("columns", name, f"columns of {entry.name}: {', '.join(present)}")
    return [replace(entry, chosen=columns) for entry in entries]


def _check_safe(entries: Sequence[ShardEntry]) -> None:
    last = None
    for entry in entries:
        # Shards with equal columns share one object.
        if entry.columns is not last:
            check_safe(entry)
            last = entry.columns
