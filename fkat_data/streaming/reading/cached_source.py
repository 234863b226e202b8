"""Shards of a store, cached in a directory that the processes of a node share."""

import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from hashlib import blake2s
from pathlib import Path
from typing import BinaryIO

from fkat_data.background import BackgroundCall
from fkat_data.errors import DownloadError, ShardCorruptError, ShardError, ShardNotFoundError
from fkat_data.streaming.cache.cache import Cache
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.dataset_version import DatasetVersion
from fkat_data.streaming.cache.idle_maps import give_back_idle_maps
from fkat_data.streaming.cache.paths import BOOKKEEPING
from fkat_data.streaming.formats.compression import decompress_into
from fkat_data.streaming.formats.entry import FileInfo, ShardEntry
from fkat_data.streaming.formats.file_formats import is_part
from fkat_data.streaming.formats.index import INDEX_NAME, parse_index, read_index
from fkat_data.streaming.formats.mapping import MapRegister
from fkat_data.streaming.reading.file_pattern import FilePattern
from fkat_data.streaming.reading.generated_index import GeneratedIndex
from fkat_data.streaming.store.store import Store

__all__ = ["CachedSource", "Evictable", "names_of"]

_logger = logging.getLogger(__name__)

_LARGEST_INDEX_BYTES = 256 << 20
#: The shortest interval between two checks, after a download, that the dataset is still the same.
_CHECK_INTERVAL_S = 30.0
#: Another process may evict a compressed file before it is opened. After this many times the limit is too small.
_MOST_FETCHES = 10


class Evictable:
    """Decides which files of a cache may be evicted: those of shards, which can be fetched again, and no index."""

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}

    def add(self, directory: Path, entries: Iterable[ShardEntry]) -> None:
        """Allow the eviction of a directory's shards."""
        self._names[str(directory)] = frozenset(names_of(entries))

    def __call__(self, directory: Path, name: str) -> bool:
        """Return whether a file may be evicted."""
        # Another job may have fetched parts with other columns.
        return name in self._names.get(str(directory), ()) or is_part(name)


class CachedSource:
    """A stream's shards in a store, cached in a directory of this node. It pickles; threads and processes may share it.

    Args:
        store: The store.
        directory: The directory of the cache, one of the budget's.
        budget: What that directory and others may take.
        evictable: Collects the files that may be evicted.
        validate_hash: The hash of the index to compare files with; None: compare their sizes alone.
        keep_zip: Whether compressed files stay after they are decompressed.
        pattern: Which files of the store the stream consists of; None: those of its index, and all if it has none.
        columns: The columns to read of files that have no index; None: all.

    Attributes:
        directory: The directory of the files.
        map_register: Records which of them are mapped: those are not evicted.
    """

    is_immediate = False

    def __init__(
        self,
        store: Store,
        directory: Path,
        budget: CacheBudget,
        evictable: Evictable,
        *,
        validate_hash: str | None,
        keep_zip: bool,
        pattern: FilePattern | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> None:
        self._store = store
        self._given = directory
        self._evictable = evictable
        self._validate_hash = validate_hash
        self._keep_zip = keep_zip
        self._cache = Cache(directory, budget)
        self._dataset_version = DatasetVersion(directory)
        self.directory = self._cache.directory
        self.map_register: MapRegister | None = self._cache.mapped_files
        self._version = ""
        self._checked_at_s = 0.0
        self._is_listed = pattern is not None
        self._generated = GeneratedIndex(
            store, pattern or FilePattern(""), columns, self.directory / BOOKKEEPING / "generated_index.json"
        )

    def read_index(self) -> list[ShardEntry]:
        """Return what the index says about the shards, in its order; make the index of files that have none.

        Uses the copy in the directory if the store reports the same version, no longer has an index, or is
        unreachable. Removes files that belong to another version of the dataset.

        Raises:
            ConfigurationError: Another process uses the directory for another version of the dataset; or files
                without an index have several formats, or no chosen column.
            ShardNotFoundError: Neither the store nor the directory has an index, nor files that need none.
            ShardCorruptError: The index or such a file is malformed.
            DownloadError: The store does not answer, and there is no copy.
            OSError: The directory cannot be written.
        """
        if self._is_listed:
            return self._read_generated()
        try:
            return self._read_written()
        except ShardNotFoundError as missing:
            try:
                return self._read_generated()
            except ShardNotFoundError:
                raise missing from None
        except DownloadError as error:
            if error.is_refused or self._generated.kept() is None:
                raise
            return self._read_generated()

    def _read_generated(self) -> list[ShardEntry]:
        try:
            made = self._generated.read(self._dataset_version.making)
        except DownloadError as error:
            # A store that refuses is up: the configuration is wrong.
            kept = None if error.is_refused else self._generated.kept()
            if kept is None:
                raise
            _logger.warning("using the index of %s kept in %s: %s", self._store.url, self.directory, error)
            made = kept
        entries = made.entries(is_in_place=False)
        path = self.directory / INDEX_NAME

        def names(version: str) -> list[str]:
            before = _names_before(path, [], version) if path.is_file() else []
            return [*before, *made.stale(self._dataset_version.names())]

        self._dataset_version.adopt(made.version, names)
        return entries

    def _read_written(self) -> list[ShardEntry]:
        path = self.directory / INDEX_NAME
        try:
            recorded = self._dataset_version.recorded if path.is_file() else None
            version = "" if recorded is None else self._timed_version()
            if not version or recorded != version:
                return self._replaced(*self._read_twice())
        except (DownloadError, ShardNotFoundError) as error:
            # A store that refuses is up: the configuration is wrong.
            if (isinstance(error, DownloadError) and error.is_refused) or not path.is_file():
                raise
            _logger.warning("reading the index of %s from its copy in %s: %s", self._store.url, self.directory, error)
            version = ""
        entries = read_index(path)
        self._adopt(version, self._dataset_version.recorded or _digest_of(path.read_bytes()), entries)
        return entries

    def fetch(self, entry: ShardEntry, *, wait: bool = True) -> Path | None:
        """Fetch a shard's raw files unless they are there; return their directory.

        Args:
            entry: The shard.
            wait: Whether to wait while another process fetches the shard; if not, None is returned instead.

        Raises:
            ConfigurationError: The index lacks the hash to compare files with; or the cache's limit is too small.
            ShardNotFoundError: The store does not have the shard.
            ShardCorruptError: A file differs from what the index says; or the dataset was written again.
            DownloadError: The shard did not arrive.
            CacheFullError: The disk is full.
            OSError: A file cannot be written.
        """
        self._dataset_version.hold()
        for raw, compressed in entry.files:
            if compressed is None:
                fill = partial(self._download, raw)
            else:
                fill = partial(self._decompress, raw, compressed, str(entry.compression))
            if self._cache.get(raw.basename, raw.bytes, fill, wait=wait) is None:
                return None
            if compressed is not None and not self._keep_zip and self._cache.has(compressed.basename, compressed.bytes):
                self._cache.remove(compressed.basename)
        return self.directory

    def touch(self, entry: ShardEntry) -> None:
        """Mark a shard as used now."""
        for raw, _ in entry.files:
            self._cache.touch(raw.basename)

    def is_there(self, entry: ShardEntry) -> bool:
        """Return whether a shard's raw files are in the directory."""
        return all(self._cache.has(raw.basename, raw.bytes) for raw, _ in entry.files)

    def evict(self, entry: ShardEntry) -> int:
        """Remove a shard's files from this node; return their size in bytes.

        Raises:
            OSError: A file cannot be removed.
        """
        give_back_idle_maps()
        return sum(self._cache.remove(name) for name in names_of([entry]))

    def _download(self, info: FileInfo, file: BinaryIO) -> None:
        try:
            if info.origin is not None:
                self._store.download_part(info.origin, file)
                return
            self._store.download(info.basename, file, info, self._validate_hash)
        except (DownloadError, ShardCorruptError, ShardNotFoundError):
            # That the dataset was written again explains more than a wrong size or hash.
            self._check_version(at_once=True)
            raise
        self._check_version()

    def _decompress(self, raw: FileInfo, compressed: FileInfo, compression: str, file: BinaryIO) -> None:
        for _ in range(_MOST_FETCHES):
            path = self._cache.get(compressed.basename, compressed.bytes, partial(self._download, compressed))
            try:
                decompress_into(compression, path or self.directory / compressed.basename, file, raw)
            except FileNotFoundError:
                # Another process has just evicted it; nothing is written yet.
                continue
            except ShardCorruptError:
                # The file in the cache is damaged: the next caller fetches it again.
                self._cache.remove(compressed.basename)
                raise
            else:
                return
        raise ShardNotFoundError(
            compressed.basename, f"evicted from {self.directory} each time before it could be decompressed"
        )

    def _check_version(self, *, at_once: bool = False) -> None:
        """Return if the store still reports the version of the index, or cannot be asked.

        Raises:
            ShardCorruptError: The dataset was written again.
        """
        now_s = time.monotonic()
        if not self._version or (now_s - self._checked_at_s < _CHECK_INTERVAL_S and not at_once):
            return
        self._checked_at_s = now_s
        try:
            version = self._timed_version()
        except DownloadError:
            return
        except ShardNotFoundError:
            version = "no index"
        if version != self._version:
            raise ShardCorruptError.of_field(
                f"{self._store.url}/{INDEX_NAME}",
                "version",
                f"{self._version}, from before the dataset was written again",
                version,
            )

    def _read_twice(self) -> tuple[bytes, str]:
        """Return the index and its version.

        Nothing states the index's own size or hash, and a changed byte may turn a number into another one. So it is
        read twice at the same time, until both copies agree.
        """
        read = partial(self._store.read, INDEX_NAME, _LARGEST_INDEX_BYTES)
        for _ in range(_MOST_FETCHES):
            # Not in a pool: a store that does not answer must not keep the process alive.
            second, version = BackgroundCall(read), BackgroundCall(self._timed_version)
            first = read()
            if first == second.result() and (timed_version := version.result()).startswith(first[1]):
                return first[0], timed_version
        raise ShardCorruptError(f"{self._store.url}/{INDEX_NAME}", f"{_MOST_FETCHES} pairs of downloads differ")

    def _timed_version(self) -> str:
        return self._store.version(INDEX_NAME, is_timed=True)

    def _replaced(self, content: bytes, version: str) -> list[ShardEntry]:
        entries = parse_index(content, f"{self._store.url}/{INDEX_NAME}")
        path = self.directory / INDEX_NAME
        if self._dataset_version.recorded is None and path.is_file() and path.read_bytes() != content:
            # The files belong to an index whose version no process has recorded.
            self._dataset_version.adopt(_digest_of(path.read_bytes()), partial(_names_before, path, entries))
        self._adopt(version, version or _digest_of(content), entries)
        self._cache.get(INDEX_NAME, len(content), lambda file: _write(file, content))
        return entries

    def _adopt(self, version: str, recorded: str, entries: list[ShardEntry]) -> None:
        def names(version: str) -> list[str]:
            parts = filter(is_part, self._dataset_version.names())
            return [*_names_before(self.directory / INDEX_NAME, entries, version), *parts]

        self._dataset_version.adopt(recorded, names)
        self._evictable.add(self._given, entries)
        self._version = version
        self._checked_at_s = time.monotonic()

    def __getstate__(self) -> Mapping[str, object]:
        return self.__dict__ | {"_checked_at_s": 0.0}


def names_of(entries: Iterable[ShardEntry]) -> list[str]:
    """Return the names of all files of shards."""
    return [info.basename for entry in entries for pair in entry.files for info in pair if info is not None]


def _names_before(path: Path, entries: list[ShardEntry], version: str) -> list[str]:
    """Return the names of the files of an earlier index and of the present one: none of them may stay."""
    del version
    before: list[ShardEntry] = []
    try:
        before = read_index(path)
    except ShardError as error:
        _logger.warning("files of an unreadable index stay in the cache: %s", error)
    return list(dict.fromkeys(names_of([*before, *entries])))


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def _digest_of(content: bytes) -> str:
    return f"blake2s {blake2s(content, digest_size=16).hexdigest()}"
