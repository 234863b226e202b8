"""The shards of all streams: where they come from, and the shard and row of each sample."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, DownloadError, ShardError, ShardNotFoundError
from fkat_data.errors.wording import add_note, redacted_location
from fkat_data.files.formats import LISTED_SUFFIXES, check_safe
from fkat_data.files.index import INDEX_NAME
from fkat_data.files.shard import ShardEntry
from fkat_data.files.stored import directory_key, hash_in_index
from fkat_data.files.tar import with_decoders
from fkat_data.files.token_shards import WindowsOfPart, check_windowing
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.storage.location import user_cache_file
from fkat_data.storage.patterns import wildcard_at
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.cache_directory import make_safe
from fkat_data.streaming.order.spans import Spanner
from fkat_data.streaming.reading.cached_source import CachedSource, shared_file
from fkat_data.streaming.reading.dataset_index import DatasetIndex, GeneratedIndex
from fkat_data.streaming.reading.decompressed_source import DecompressedSource, folder_of
from fkat_data.streaming.reading.file_pattern import NO_DATASET, no_stream, split_name
from fkat_data.streaming.reading.pinned_commits import PinnedCommit
from fkat_data.streaming.reading.shard_source import Evictable, ShardSource, names_of
from fkat_data.streaming.reading.stream import Stream
from fkat_data.streaming.store.store import open_store

#: Seconds after which a directory that is read in place does not answer.
_LONGEST_LOOK_S = 60.0


class _Planned(NamedTuple):
    """A source that needs a cache, before the budget of all caches is known."""

    folder: Path
    made: Callable[[CacheBudget, Evictable], ShardSource]


def sources_of(streams: Sequence[Stream]) -> tuple[list[ShardSource], CacheBudget | None]:
    """Return the source of each stream's shards, and the budget of those cached on this node; None if none are.

    Raises:
        ConfigurationError: A URL cannot be opened, or a directory cannot be a cache; or files without an index that are
            read in place have several formats, or no chosen column.
        ShardNotFoundError: A directory that is read in place has no index, and no files that need none.
        ShardCorruptError: The index of a directory that is read in place, or such a file, is malformed.
        OSError: A directory cannot be made.
    """
    caches = _cache_directories(streams)
    plans = [
        _in_place(stream) if cache is None else _cached(stream, cache)
        for stream, cache in zip(streams, caches, strict=True)
    ]
    folders = [plan.folder for plan in plans if isinstance(plan, _Planned)]
    if not folders:
        return [plan for plan in plans if not isinstance(plan, _Planned)], None
    evictable = Evictable()
    budget = CacheBudget(folders, None, evictable)
    return [plan.made(budget, evictable) if isinstance(plan, _Planned) else plan for plan in plans], budget


def entries_of(stream: Stream, source: ShardSource) -> list[ShardEntry]:
    """Return what the index of a stream says about the shards, in its order.

    Raises:
        ShardNotFoundError: The stream has no index, and no files that need none, or is a file.
        Exception: What the source's ``read_index`` raises.
    """
    try:
        return source.read_index()
    except ShardNotFoundError:
        file = None if stream.file_pattern is not None else _file_at(stream)
        if file is None:
            raise
        raise ShardNotFoundError(file, no_stream(split_name(file)[1])) from None


def _file_at(stream: Stream) -> str | None:
    """Return the location of a stream if it is a file; None if it is none, or that cannot be found out."""
    location = stream.remote_location
    if stream.remote_directory is not None:
        return location if stream.remote_directory.is_file() else None
    directory, name = split_name(location)
    if not directory:
        return None
    with suppress(ConfigurationError, DownloadError, ShardError):
        store = open_store(
            directory,
            storage_options=stream.storage_options,
            num_retries=0,
            timeout_s=stream.download_timeout or _LONGEST_LOOK_S,
        )
        if store.is_file(name):
            return f"{store.url.rstrip('/')}/{name}"
    return None


def check_apart(sources: Sequence[ShardSource], entries: Sequence[Sequence[ShardEntry]]) -> None:
    """Check that no two caches have a file in common, where one is in the other.

    Args:
        sources: The sources.
        entries: The shards of each.

    Raises:
        ConfigurationError: Two caches keep different data in one file.
    """
    caches = [
        (source, str(source.directory.resolve()), shards)
        for source, shards in zip(sources, entries, strict=True)
        if isinstance(source, CachedSource)
    ]
    for outer, path, shards in caches:
        for inner, inner_path, inner_shards in caches:
            below = inner_path.removeprefix(f"{path}/")
            if below == inner_path or f"{outer.location}/{below}" == inner.location:
                continue
            name = shared_file(outer.directory, names_of(shards), inner.directory, names_of(inner_shards))
            if name is not None:
                raise ConfigurationError(
                    "local",
                    inner_path,
                    f"another directory: {name} of {outer.location} is also written there, to {path}",
                )


def _cache_directories(streams: Sequence[Stream]) -> list[Path | None]:
    """Return each stream's cache, one spelling for each directory; None if the stream is read in place.

    Raises:
        ConfigurationError: Two streams would write the same files, or one would write into what another one reads.
    """
    originals = [stream.remote_directory for stream in streams]
    originals += [stream.local_directory for stream in streams if stream.cache_directory is None]
    read = {_directory_identity(directory) for directory in originals if directory is not None}
    known: dict[object, tuple[Path, object]] = {}
    found: list[Path | None] = []
    for stream in streams:
        directory = stream.cache_directory
        if directory is None:
            found.append(None)
            continue
        if stream.local_directory is None:
            # Below the shared temporary directory, the owner of the folder in between could replace this one.
            make_safe(directory.parent)
        make_safe(directory)
        if _directory_identity(directory) in read:
            raise ConfigurationError(
                "local", str(directory), "another directory: a stream reads it as the original of its data"
            )
        remote = (
            stream.remote_location.rstrip("/")
            if stream.remote_directory is None
            else _directory_identity(stream.remote_directory)
        )
        origin = remote, stream.file_pattern
        known_directory, known_origin = known.setdefault(_directory_identity(directory), (directory, origin))
        if known_origin != origin:
            raise ConfigurationError(
                "local", str(directory), "another directory for each remote: their files would overwrite each other"
            )
        found.append(known_directory)
    return found


def _directory_identity(path: Path) -> object:
    """Return what two paths have in common if they lead to one directory."""
    try:
        return directory_key(path)
    except genuine(OSError):
        return str(path.absolute())


def _cached(stream: Stream, directory: Path) -> _Planned:
    store = open_store(
        stream.remote_location,
        storage_options=stream.storage_options,
        num_retries=stream.download_retry or 0,
        timeout_s=stream.download_timeout or 0,
    )
    return _Planned(directory, partial(CachedSource, stream, store, directory))


def _in_place(stream: Stream) -> ShardSource | _Planned:
    directory = stream.local_directory or stream.remote_directory
    if directory is None:
        raise ConfigurationError("local", stream.local, "a directory, if there is no remote")
    timeout_s = stream.download_timeout or _LONGEST_LOOK_S
    store = open_store(directory.absolute(), storage_options=None, num_retries=0, timeout_s=timeout_s)
    pattern = stream.file_pattern
    if pattern is not None or not (directory / INDEX_NAME).exists():
        location = f"{directory.absolute()}/{pattern.text if pattern else ''}"
        generated = GeneratedIndex(stream, store, user_cache_file("indices", location))
        try:
            return ShardSource(directory, generated.read().entries(is_in_place=True), stream.validate_hash)
        except ShardNotFoundError:
            if pattern is not None:
                raise
    index = DatasetIndex(store)
    try:
        found = index.read_in_place(directory)
    except ShardNotFoundError as error:
        if directory.is_file():
            raise ShardNotFoundError(str(directory.absolute()), no_stream(directory.name)) from None
        if not directory.is_dir():
            reason = "no such directory"
            if wildcard_at(directory.name) is not None:
                reason += f", and a pattern of files ends with one of {LISTED_SUFFIXES}"
            raise ShardNotFoundError(str(directory.absolute()), reason) from None
        raise ShardNotFoundError(error.shard, NO_DATASET) from None
    if not any(entry.compression for entry in found.entries):
        index.use(found.version, found.report)
        return ShardSource(directory, found.entries, stream.validate_hash, index)
    # A remote that is read in place may be shared, and is not written to.
    folder = folder_of(directory, found.version, is_beside=stream.local_directory is not None)
    made = partial(DecompressedSource, directory, found, index, folder, validate_hash=stream.validate_hash)
    return _Planned(folder, made)


_Integers = npt.NDArray[np.int64]

_MOST_SHOWN = 4
#: What would do where samples of several streams come in one batch.
COMMON_COLUMNS = (
    "columns= that all streams have, a transform that gives all samples the same entries, a collate_fn that takes "
    "both, or batching_method='per_stream'"
)
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
        ShardCorruptError: An index is malformed.
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
        self._locations = [redacted_location(stream.remote_location or stream.local_directory) for stream in streams]
        self.entries: list[ShardEntry] = []
        per_stream: list[list[ShardEntry]] = []
        for stream, source in zip(streams, self.sources, strict=True):
            entries = entries_of(stream, source)
            if entries:
                check_windowing(stream.tokens, entries[0].format, entries[0].name)
            if entries and stream.decode is not None:
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
    def commits(self) -> list[PinnedCommit | None]:
        """The commit at which each stream is read, if its store has commits; else None."""
        return [source.read_commit for source in self.sources]

    @property
    def differing_columns(self) -> str | None:
        """The columns of each stream, in words; None if all have the same."""
        columns: dict[int, tuple[str, ...]] = {}
        firsts: list[int] = self.shard_offset_per_stream.tolist()
        for stream, first in enumerate(firsts):
            if self.shards_per_stream[stream]:
                entry = self.entries[first]
                columns[stream] = entry.chosen or tuple(entry.column_names)
        first_of = {frozenset(names): stream for stream, names in reversed(columns.items())}
        if len(first_of) <= 1:
            return None
        shown = sorted(first_of.values())[:_MOST_SHOWN]
        more = f"; {len(first_of) - len(shown)} others" if len(first_of) > len(shown) else ""
        found = (f"stream {stream} ({self._locations[stream]}) has {', '.join(columns[stream])}" for stream in shown)
        return f"{'; '.join(found)}{more}"

    def note_columns(self, error: Exception) -> None:
        """Note on an error of a batch that the streams its samples are from have other columns, if they have."""
        differing = self.differing_columns
        if differing is not None:
            add_note(error, f"Streams: {differing}. A batch of samples of both needs {COMMON_COLUMNS}")

    @cached_property
    def _token_files(self) -> dict[tuple[int, str], int]:
        entries = zip(self.entries, self.stream_per_shard.tolist(), strict=True)
        return {
            (stream, entry.raw_data.origin.name): entry.part.digest_of_windows
            for entry, stream in entries
            if isinstance(entry.part, WindowsOfPart) and entry.raw_data.origin is not None
        }

    @property
    def paths(self) -> list[str]:
        """The files of tokens."""
        return [f"{name} of {self._locations[stream]}" for stream, name in self._token_files]

    def file_digests(self) -> list[int]:
        """Return a number for each of them that differs where its size, some of its content, or its windows do."""
        return list(self._token_files.values())

    @property
    def is_in_place(self) -> bool:
        """Whether shards are read in place: none needs fetching or decompressing."""
        return all(source.is_in_place for source in self.sources)

    def shards_of(self, sample_ids: _Integers) -> list[int]:
        """Return the shards of samples, each once, in the order of their first samples."""
        shards, _ = self.spanner.locate(sample_ids)
        return list(dict.fromkeys(shards.tolist()))

    def source_of(self, shard: int) -> ShardSource:
        """Return the source of a shard."""
        return self.sources[int(self.stream_per_shard[shard])]

    @cached_property
    def raw_bytes(self) -> int:
        """Size of the uncompressed files of all shards, in bytes."""
        return sum(entry.raw_bytes for entry in self.entries)

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
        sizes = [self.source_of(shard).cached_bytes(entry) for shard, entry in enumerate(self.entries)]
        largest_bytes = max(sizes, default=0)
        needed_bytes = self.indices_bytes + _SHARDS_AT_LEAST * largest_bytes
        if limit_bytes < needed_bytes:
            raise ConfigurationError(
                "cache_limit",
                limit_bytes,
                f"at least {needed_bytes}: the indices and {_SHARDS_AT_LEAST} times the largest shard, "
                f"{self.entries[sizes.index(largest_bytes)].raw_data.basename} of {largest_bytes} bytes",
            )


def _check_hashes(entries: Sequence[ShardEntry], algorithm: str | None) -> None:
    if algorithm is None:
        return
    for entry in entries:
        for info in (info for pair in entry.files for info in pair if info is not None):
            hash_in_index(info, algorithm, info.basename)


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
