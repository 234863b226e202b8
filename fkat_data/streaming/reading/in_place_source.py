"""Shards of a directory that is read in place; compressed ones are decompressed into a cache of this node."""

import logging
import re
from functools import partial
from hashlib import blake2s
from pathlib import Path
from typing import BinaryIO

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.files.shard import FileInfo, MapRegister, ShardEntry
from fkat_data.files.stored import decompress_into, validate_file
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.streaming.cache.cache import Cache
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.cache_directory import CacheDirectory, make_safe
from fkat_data.streaming.cache.dataset_version import DatasetVersion, remove_if_unused
from fkat_data.streaming.cache.mapped_files import give_back_idle_maps
from fkat_data.streaming.cache.paths import BOOKKEEPING
from fkat_data.streaming.reading.cached_source import Evictable
from fkat_data.streaming.reading.dataset_index import DatasetIndex, FoundIndex
from fkat_data.streaming.reading.pinned_commits import PinnedCommit
from fkat_data.streaming.reading.stream import own_directory

_logger = logging.getLogger(__name__)

#: In ``BOOKKEEPING`` of a directory of compressed shards.
_DECOMPRESSED = "decompressed"
#: The folder of a version.
_NAME = re.compile("[0-9a-f]{32}")
#: Another process may evict a file before it is compared with its hash. After this many times the limit is too small.
_MOST_TRIES = 10


def folder_of(directory: Path, version: str, *, is_beside: bool) -> Path:
    """Return where the decompressed shards of a version of a dataset go: a folder that has nothing else in it.

    Removes the folders of other versions that no process uses.

    Args:
        directory: The directory of the dataset.
        version: The version.
        is_beside: Whether to write into the directory, where that is possible and safe; if not, the folder is one of
            this user.

    Raises:
        ConfigurationError: The folder of this user is not safe to use.
        OSError: The folder of this user cannot be made.
    """
    name = blake2s(version.encode(), digest_size=16).hexdigest()
    above = directory / BOOKKEEPING / _DECOMPRESSED
    # Folders of other versions are removed, so the way to them must not lead elsewhere.
    if is_beside and not above.parent.is_symlink() and not above.is_symlink():
        with suppress(OSError, ConfigurationError):
            make_safe(above)
            if CacheDirectory(above / name, is_announced=False).is_writable:
                return _alone(above, name)
    above = own_directory(str(directory.resolve()))
    make_safe(above.parent)
    make_safe(above)
    return _alone(above, name)


def _alone(above: Path, name: str) -> Path:
    for other in above.iterdir():
        if other.name != name and _NAME.fullmatch(other.name) and not other.is_symlink():
            try:
                remove_if_unused(other)
            except genuine(OSError, ConfigurationError) as error:
                _logger.warning("decompressed shards of an earlier version stay in %s: %s", other, error)
    return above / name


class DirectorySource:
    """Uncompressed shards in a directory of this machine, read in place. Nothing is written or deleted.

    Args:
        directory: The directory.
        entries: What its index says about the shards.
        validate_hash: The hash of the index that files are compared with; None: their sizes alone.
        index: The index that the entries are of, in the version in use; None: the directory has none.

    Attributes:
        directory: The directory.
        map_register: None.
        read_commit: None.
    """

    is_immediate: bool = True
    index_bytes = 0
    read_commit: PinnedCommit | None = None

    def __init__(
        self,
        directory: Path,
        entries: list[ShardEntry],
        validate_hash: str | None,
        index: DatasetIndex | None = None,
    ) -> None:
        self.directory = directory
        self.map_register: MapRegister | None = None
        self._entries = entries
        self._validate_hash = validate_hash
        self._index = index
        self._validated: set[str] = set()

    def cached_bytes(self, entry: ShardEntry) -> int:
        """Return 0: the cache has no copy."""
        del entry
        return 0

    def read_index(self) -> list[ShardEntry]:
        """Return what the index says about the shards, in its order."""
        return self._entries

    def fetch(self, entry: ShardEntry, *, wait: bool = True) -> Path | None:
        """Return the directory of a shard's files.

        Raises:
            ConfigurationError: The index lacks the hash to compare files with.
            ShardNotFoundError: A file is missing.
            ShardCorruptError: A file's size or hash differs from what the index says.
            OSError: A file cannot be read.
        """
        del wait
        for raw, _ in entry.files:
            self._validate(self.directory / raw.basename, raw)
        return self.directory

    def check_unchanged(self, entry: ShardEntry) -> None:
        """Check, once a shard is open, that the index is the one that was read.

        Raises:
            ShardCorruptError: The dataset was written again.
        """
        del entry
        if self._index is not None:
            self._index.check_in_place(self.directory)

    def touch(self, entry: ShardEntry) -> None:
        """Do nothing: nothing is evicted here."""

    def is_there(self, entry: ShardEntry) -> bool:
        """Return True."""
        del entry
        return True

    def evict(self, entry: ShardEntry) -> int:
        """Return 0 and remove nothing: these files may be the only copy."""
        del entry
        return 0

    def _validate(self, path: Path, info: FileInfo) -> None:
        # Once in a process. Each opening compares the size.
        if self._validate_hash is not None and str(path) not in self._validated:
            validate_file(path, info, self._validate_hash)
            self._validated.add(str(path))


class DecompressedSource(DirectorySource):
    """Shards of a directory that is read in place, some of them compressed. It pickles; processes may share it.

    The shards of the directory stay as they are. Decompressed ones are kept in a folder for this version of the
    dataset, and may be evicted while their compressed files exist.

    Args:
        directory: The directory.
        found: Its index.
        index: The same index, to see whether the dataset is written again.
        folder: The folder for the index's version, one of the budget's directories.
        budget: What the folder and others may take.
        evictable: Collects the files that may be evicted.
        validate_hash: The hash of the index that files are compared with; None: their sizes alone.

    Attributes:
        directory: The directory.
        map_register: Records which decompressed files are mapped.
        read_commit: None.
    """

    is_immediate: bool = False

    def __init__(
        self,
        directory: Path,
        found: FoundIndex,
        index: DatasetIndex,
        folder: Path,
        budget: CacheBudget,
        evictable: Evictable,
        *,
        validate_hash: str | None,
    ) -> None:
        super().__init__(directory.absolute(), found.entries, validate_hash, index)
        self._found = found
        self._written = index
        self._given = folder
        self._evictable = evictable
        self._cache = Cache(folder, budget)
        self.map_register: MapRegister | None = self._cache.mapped_files
        self._dataset_version = DatasetVersion(folder)
        self._compressed: dict[str, str] = {}

    def cached_bytes(self, entry: ShardEntry) -> int:
        """Return the most bytes that a shard takes in the folder."""
        return entry.raw_bytes if entry.compression else 0

    def read_index(self) -> list[ShardEntry]:
        """Return what the index says about the shards, in its order.

        Raises:
            OSError: The folder cannot be written.
        """
        found = self._found
        self._dataset_version.adopt(found.version, lambda _: ())
        self._written.use(found.version, found.report)
        pairs = [pair for entry in found.entries for pair in entry.files]
        self._compressed = {raw.basename: compressed.basename for raw, compressed in pairs if compressed is not None}
        self._evictable.add(self._given, self._compressed, self.can_be_made)
        return found.entries

    def fetch(self, entry: ShardEntry, *, wait: bool = True) -> Path | None:
        """Decompress a shard's files unless they are there; return the directory of the raw ones.

        Args:
            entry: The shard.
            wait: Whether to wait while another process decompresses the shard; if not, None is returned instead.

        Raises:
            ConfigurationError: The index lacks the hash to compare files with; or the cache's limit is too small.
            ShardNotFoundError: A file is missing.
            ShardCorruptError: A file differs from what the index says; or the dataset was written again.
            CacheFullError: The disk is full.
            OSError: A file cannot be read or written.
        """
        if self._is_in_place(entry):
            return super().fetch(entry)
        self._dataset_version.hold()
        for raw, compressed in entry.files:
            if compressed is not None and not self._is_made(raw, compressed, str(entry.compression), wait=wait):
                return None
        return self._cache.directory

    def check_unchanged(self, entry: ShardEntry) -> None:
        """Check that the index is the one that was read, if the shard was opened in place."""
        if self._is_in_place(entry):
            super().check_unchanged(entry)

    def touch(self, entry: ShardEntry) -> None:
        """Mark a shard as used now."""
        if entry.compression is not None:
            for raw, _ in entry.files:
                self._cache.touch(raw.basename)

    def is_there(self, entry: ShardEntry) -> bool:
        """Return whether a shard that was fetched has not been evicted."""
        return self._is_in_place(entry) or all(self._cache.has(raw.basename, raw.bytes) for raw, _ in entry.files)

    def evict(self, entry: ShardEntry) -> int:
        """Remove a shard's decompressed files while the compressed ones exist; return their size in bytes.

        Raises:
            OSError: A file cannot be removed.
        """
        give_back_idle_maps()
        names = [raw.basename for raw, compressed in entry.files if compressed is not None]
        return sum(self._cache.remove(name) for name in names if self.can_be_made(name))

    def can_be_made(self, name: str) -> bool:
        """Return whether a decompressed file can be made again: its compressed file exists."""
        compressed = self._compressed.get(name)
        return compressed is not None and (self.directory / compressed).is_file()

    def _is_in_place(self, entry: ShardEntry) -> bool:
        """Return whether a shard's raw files are in the directory, and nothing that they could be older than."""
        return all(
            compressed is None
            or (not (self.directory / compressed.basename).exists() and (self.directory / raw.basename).exists())
            for raw, compressed in entry.files
        )

    def _is_made(self, raw: FileInfo, compressed: FileInfo, compression: str, *, wait: bool) -> bool:
        fill = partial(self._decompress, raw, compressed, compression)
        is_damaged = False
        for _ in range(_MOST_TRIES):
            path = self._cache.get(raw.basename, raw.bytes, fill, wait=wait)
            if path is None:
                return False
            try:
                self._validate(path, raw)
            except ShardNotFoundError:
                # Another process has just evicted it.
                continue
            except ShardCorruptError:
                # The first time, the disk or an older release is at fault; the second time, the compressed file.
                if is_damaged or not self.can_be_made(raw.basename):
                    raise
                is_damaged = True
                self._cache.remove(raw.basename)
            else:
                return True
        raise ShardNotFoundError(raw.basename, f"evicted from {self._cache.directory} each time before it was read")

    def _decompress(self, raw: FileInfo, compressed: FileInfo, compression: str, file: BinaryIO) -> None:
        source = self.directory / compressed.basename
        try:
            validate_file(source, compressed, self._validate_hash)
            decompress_into(compression, source, file, raw)
        except (FileNotFoundError, ShardCorruptError, ShardNotFoundError):
            # That the dataset was written again explains more than a wrong size or hash.
            self._written.check(at_once=True)
            raise
        # Before the file has its name, so that it belongs to the version of its folder.
        self._written.check(at_once=True)
