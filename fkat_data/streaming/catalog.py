"""What the indices of all streams say, and which shard and row a sample is."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.streaming.formats.entry import ShardEntry
from fkat_data.streaming.formats.open import check_safe
from fkat_data.streaming.order.spanner import Spanner
from fkat_data.streaming.source import ShardSource, source_of
from fkat_data.streaming.stream import Stream

__all__ = ["Catalog"]

_Integers = npt.NDArray[np.int64]


class Catalog:
    """The shards of all streams, numbered through.

    Args:
        streams: The streams, with nothing left open.
        allow_unsafe_types: Whether columns of pickles may be read.

    Raises:
        ConfigurationError: A shard has a column of pickles, and they are not allowed; or the index lacks the hash
            that files are to be compared with.
        ShardNotFoundError: A stream has no index.
        ShardCorruptError: An index makes no sense, or a stream has no samples.

    Attributes:
        sources: Where each stream's shards come from.
        entries: What the indices say, shard by shard.
        stream_per_shard: The stream of each shard.
        samples_per_shard: Samples of each shard.
        shards_per_stream: Shards of each stream.
        spanner: From a sample's number to its shard and row.
    """

    def __init__(self, streams: Sequence[Stream], *, allow_unsafe_types: bool) -> None:
        self.sources: list[ShardSource] = [source_of(stream) for stream in streams]
        self.entries: list[ShardEntry] = []
        counts: list[int] = []
        for stream, source in zip(streams, self.sources, strict=True):
            entries = source.read_index()
            if not sum(entry.samples for entry in entries):
                raise ShardCorruptError(str(stream.local_directory or stream.remote_directory), "it has no samples")
            if not allow_unsafe_types:
                _check_safe(entries)
            _check_hashes(entries, stream.validate_hash)
            self.entries += entries
            counts.append(len(entries))
        self.shards_per_stream: _Integers = np.array(counts, np.int64)
        self.stream_per_shard: _Integers = np.repeat(np.arange(len(counts)), counts)
        self.samples_per_shard: _Integers = np.array([entry.samples for entry in self.entries], np.int64)
        self.spanner = Spanner(self.samples_per_shard)

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


def _check_hashes(entries: Sequence[ShardEntry], algorithm: str | None) -> None:
    if algorithm is None:
        return
    for entry in entries:
        for info in (info for pair in entry.files for info in pair if info is not None):
            if algorithm not in info.hashes:
                there = ", ".join(info.hashes) or "none"
                raise ConfigurationError(
                    "validate_hash", algorithm, f"a hash that the index has of {info.basename} ({there})"
                )


def _check_safe(entries: Sequence[ShardEntry]) -> None:
    last = None
    for entry in entries:
        # What shards have in common is one object.
        if entry.columns is not last:
            check_safe(entry)
            last = entry.columns
