"""Shards of a store, cached in a directory that the processes of a node share."""

import logging
import os
from collections.abc import Iterable
from functools import partial
from hashlib import blake2s
from pathlib import Path
from typing import BinaryIO

from fkat_data.errors import ConfigurationError, DownloadError, ShardCorruptError, ShardError, ShardNotFoundError
from fkat_data.files.index import INDEX_NAME, parse_index, read_index
from fkat_data.files.shard import FileInfo, ShardEntry, is_part
from fkat_data.files.stored import decompress_into, directory_key
from fkat_data.runtime.interruption import genuine
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.cache_directory import suppress_unwritable
from fkat_data.streaming.cache.paths import BOOKKEEPING
from fkat_data.streaming.reading.dataset_index import DatasetIndex, FoundIndex, GeneratedIndex, digest_of
from fkat_data.streaming.reading.file_pattern import NO_DATASET
from fkat_data.streaming.reading.pinned_commits import PinnedCommit
from fkat_data.streaming.reading.shard_source import Evictable, ShardCache, ShardSource, names_of
from fkat_data.streaming.reading.stream import Stream
from fkat_data.streaming.store.store import Store


def shared_file(first: Path, first_names: Iterable[str], second: Path, second_names: Iterable[str]) -> str | None:
    """Return a name in one directory that leads to a file of another one; None if there is none.

    One directory may be in the other, and folders may be symbolic links or mounts. Folders that do not exist have no
    files in common.

    Args:
        first: The one directory.
        first_names: Paths of files in it, which need not exist.
        second: The other directory.
        second_names: Paths of files in it, which need not exist.
    """
    ours, theirs = _by_folder(first, first_names), _by_folder(second, second_names)
    for folder in ours.keys() & theirs.keys():
        last_names = {name.rpartition("/")[2] for name in theirs[folder]}
        for name in ours[folder]:
            if name.rpartition("/")[2] in last_names:
                return name
    return None


def is_linked_to(link: Path, file: Path) -> bool:
    """Return whether a path is a symbolic link to a file, which is then the only copy."""
    try:
        return link.is_symlink() and os.path.samestat(link.stat(), file.lstat())
    except genuine(OSError):
        return False


def _by_folder(directory: Path, names: Iterable[str]) -> dict[object, list[str]]:
    by_folder: dict[str, list[str]] = {}
    for name in names:
        by_folder.setdefault(name.rpartition("/")[0], []).append(name)
    by_key: dict[object, list[str]] = {}
    for folder, found in by_folder.items():
        try:
            by_key.setdefault(directory_key(directory / folder), []).extend(found)
        except genuine(OSError):
            continue
    return by_key


_logger = logging.getLogger(__name__)

#: Another process may evict a compressed file before it is opened. After this many times the limit is too small.
_MOST_FETCHES = 10


class CachedSource(ShardSource):
    """A stream's shards in a store, and the cache of all their files in a directory of this node.

    Args:
        stream: The stream.
        store: The store of its remote.
        directory: The directory of the cache, one of the budget's.
        budget: What that directory and others may take.
        evictable: Collects the files that may be evicted.
    """

    def __init__(
        self, stream: Stream, store: Store, directory: Path, budget: CacheBudget, evictable: Evictable
    ) -> None:
        self._made = ShardCache(directory, budget, evictable)
        self._index_of_store = DatasetIndex(store)
        super().__init__(self._made.files.directory, [], stream.validate_hash, self._index_of_store, self._made)
        self._store = store
        self._given = directory
        self._keep_zip = bool(stream.keep_zip)
        remote, pattern = stream.remote_directory, stream.file_pattern
        self._remote = None if remote is None else remote.absolute()
        self._is_writable = budget.directory(directory).is_writable
        self._pattern = "" if pattern is None else pattern.text
        self._is_listed = pattern is not None
        path = self.directory / BOOKKEEPING / "generated_index.json"
        self._generated = GeneratedIndex(stream, store, path)

    @property
    def location(self) -> str:
        """The URL or path of the store."""
        return self._store.url.rstrip("/")

    @property
    def index_bytes(self) -> int:
        """Size of the index in the directory."""
        path = self.directory / INDEX_NAME
        return path.stat().st_size if path.is_file() else 0

    def cached_bytes(self, entry: ShardEntry) -> int:
        """Return the most bytes that a shard takes in the directory."""
        return entry.raw_bytes + (entry.stored_bytes if entry.compression else 0)

    def read_index(self) -> list[ShardEntry]:
        """Return what the index says about the shards, in its order; make the index of files that have none.

        Uses the copy in the directory if the store reports the same version, no longer has an index, or is
        unreachable. Removes files that belong to another version of the dataset.

        Raises:
            ConfigurationError: Another process uses the directory for another version of the dataset, or it has files
                that were not fetched from the store; or files without an index have several formats, or no chosen
                column.
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
                raise ShardNotFoundError(missing.shard, f"{NO_DATASET} ({missing.reason})") from None
        except DownloadError as error:
            if error.is_refused or self._generated.cached() is None:
                raise
            return self._read_generated()

    def _read_generated(self) -> list[ShardEntry]:
        recorded, copy = self._made.dataset_version.recorded, self._copy()
        if copy is not None and (recorded is None or not _is_of(copy, recorded)):
            raise self._is_foreign()
        try:
            made = self._generated.read(self._made.dataset_version.making)
        except DownloadError as error:
            # A store that refuses is up: the configuration is wrong.
            cached = None if error.is_refused else self._generated.cached()
            if cached is None:
                raise
            _logger.warning("using the index of %s kept in %s: %s", self._store.url, self.directory, error)
            made = cached
        entries = made.entries(is_in_place=False)
        self._check_apart([*names_of(entries), INDEX_NAME])

        def names(_: str) -> list[str]:
            before = self._names_before([]) if self._copy() is not None else []
            return [*before, *filter(self.can_be_made, made.stale(self._made.dataset_version.names()))]

        self._made.dataset_version.adopt(made.version, names)
        self._note_commit(made.version)
        self._made.may_evict(names_of(entries), self.can_be_made)
        return entries

    def _read_written(self) -> list[ShardEntry]:
        # In this order: a process that replaces the files removes the index before it records another version.
        recorded, label = self._made.dataset_version.record
        copy = self._copy()
        try:
            report = "" if recorded is None or copy is None else self._index_of_store.report()
            if copy is None or not report or label != self._label(report) or not _is_of(copy, recorded):
                return self._replaced(self._index_of_store.read(), copy, recorded)
        except (DownloadError, ShardNotFoundError) as error:
            # A store that refuses is up, and a copy of another store's index says nothing: the configuration is wrong.
            is_other = label.partition(" ")[0] not in ("", self._label("").strip())
            if (isinstance(error, DownloadError) and error.is_refused) or copy is None or is_other:
                raise
            # Neither the store nor a record says that the index is of this dataset: it may be the user's own.
            if recorded is None or not _is_of(copy, recorded):
                raise self._is_foreign() from error
            _logger.warning("reading the index of %s from its copy in %s: %s", self._store.url, self.directory, error)
            report = ""
        entries = parse_index(copy, str(self.directory / INDEX_NAME))
        self._adopt(recorded or digest_of(copy), report, entries, label)
        return entries

    def cached_files(self, entry: ShardEntry) -> list[tuple[FileInfo, FileInfo | None]]:
        """Return all raw files of a shard."""
        return entry.files

    def make(self, entry: ShardEntry, raw: FileInfo, compressed: FileInfo | None, *, wait: bool) -> bool:
        """Fetch a file, and decompress it, unless it is there."""
        files = self._made.files
        if compressed is None:
            fill = partial(self._download, raw)
        else:
            fill = partial(self._decompress, raw, compressed, str(entry.compression))
        if files.get(raw.basename, raw.bytes, fill, wait=wait) is None:
            return False
        if compressed is not None and not self._keep_zip and files.has(compressed.basename, compressed.bytes):
            self._discard(compressed.basename)
        return True

    def can_be_made(self, name: str) -> bool:
        """Return whether a file of the directory is a copy, instead of what the store itself leads to."""
        return self._is_writable and (
            self._remote is None or not is_linked_to(self._remote / name, self.directory / name)
        )

    def _discard(self, name: str) -> None:
        with suppress_unwritable():
            if self.can_be_made(name):
                self._made.files.remove(name)

    def _download(self, info: FileInfo, file: BinaryIO) -> None:
        try:
            if info.origin is not None:
                self._store.download_part(info.origin, file)
                return
            self._store.download(info.basename, file, info, self._validate_hash)
        except (DownloadError, ShardCorruptError, ShardNotFoundError):
            # That the dataset was written again explains more than a wrong size or hash.
            self._index_of_store.check(at_once=True)
            raise
        self._index_of_store.check()

    def _decompress(self, raw: FileInfo, compressed: FileInfo, compression: str, file: BinaryIO) -> None:
        for _ in range(_MOST_FETCHES):
            path = self._made.files.get(compressed.basename, compressed.bytes, partial(self._download, compressed))
            try:
                decompress_into(compression, path or self.directory / compressed.basename, file, raw)
            except genuine(FileNotFoundError):
                # Another process has just evicted it; nothing is written yet.
                continue
            except ShardCorruptError:
                # The file in the cache is damaged: the next caller fetches it again.
                self._discard(compressed.basename)
                raise
            else:
                return
        raise ShardNotFoundError(
            compressed.basename, f"evicted from {self.directory} each time before it could be decompressed"
        )

    def _copy(self) -> bytes | None:
        try:
            return (self.directory / INDEX_NAME).read_bytes()
        except genuine(FileNotFoundError):
            return None

    def _replaced(self, found: FoundIndex, copy: bytes | None, recorded: str | None) -> list[ShardEntry]:
        is_own = copy in (None, found.content) or (recorded is not None and _is_of(copy or b"", recorded))
        if not is_own:
            raise self._is_foreign()
        self._adopt(found.version, found.report, found.entries, self._label(found.report))
        with suppress_unwritable():  # the copy only serves the next start
            self._made.files.get(INDEX_NAME, len(found.content), lambda file: _write(file, found.content))
        return found.entries

    def _adopt(self, version: str, report: str, entries: list[ShardEntry], label: str) -> None:
        names = names_of(entries)
        self._check_apart([*names, INDEX_NAME])

        def names_before(_: str) -> list[str]:
            return self._names_before([*names, *filter(is_part, self._made.dataset_version.names())])

        self._made.dataset_version.adopt(version, names_before, label=label)
        self._note_commit(version)
        self._made.may_evict(names, self.can_be_made)
        self._index_of_store.use(version, report)

    def _label(self, report: str) -> str:
        """Return what the directory records beside a version: a digest of where it is from, and what the store reports."""
        location = str(self._remote or self.location).encode()
        return f"{blake2s(location, digest_size=8).hexdigest()} {report}"

    def _note_commit(self, version: str) -> None:
        revision, commit = self._store.revision
        if commit:
            location = f"{self.location}/{self._pattern}".rstrip("/")
            self.read_commit = PinnedCommit(location, revision, commit, version)

    def _names_before(self, names: list[str]) -> list[str]:
        """Return the names of the files of an earlier index and of the present one: none of them may stay."""
        before: list[str] = []
        try:
            before = names_of(read_index(self.directory / INDEX_NAME))
        except ShardError as error:
            _logger.warning("files of an unreadable index stay in the cache: %s", error)
        self._check_apart(before)
        return [name for name in dict.fromkeys([*before, *names]) if self.can_be_made(name)]

    def _check_apart(self, names: list[str]) -> None:
        """Check that no file of the cache is one of the store's.

        Raises:
            ConfigurationError: One is.
        """
        if self._remote is None:
            return
        name = shared_file(self.directory, names, self._remote, names)
        if name is None and is_linked_to(self._remote / INDEX_NAME, self.directory / INDEX_NAME):
            name = INDEX_NAME
        if name is not None:
            raise ConfigurationError(
                "local",
                str(self._given),
                f"a directory without files of the remote: {name} in it is also a file of {self._remote}, maybe the "
                "only copy; pass another directory, or no local to read the remote in place",
            )

    def _is_foreign(self) -> ConfigurationError:
        return ConfigurationError(
            "local",
            str(self._given),
            f"an empty directory, or a cache of {self._store.url}: its {INDEX_NAME} was not fetched from there, or no "
            "record says so, and its files may be the only copy; pass another directory, remove them, or pass local without "
            "remote to read them as they are",
        )


def _is_of(copy: bytes, recorded: str | None) -> bool:
    """Return whether an index belongs to a recorded version; True if none is recorded, or the record is unreadable."""
    return not recorded or recorded.startswith(digest_of(copy))


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)
