"""Compressed shards of a directory, decompressed into a cache of this node."""

import logging
import re
from functools import partial
from hashlib import blake2s
from pathlib import Path
from typing import BinaryIO, cast

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.files.shard import FileInfo, ShardEntry
from fkat_data.files.stored import decompress_into, validate_file
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.cache_directory import CacheDirectory, make_safe
from fkat_data.streaming.cache.dataset_version import remove_if_unused
from fkat_data.streaming.cache.paths import BOOKKEEPING
from fkat_data.streaming.reading.dataset_index import DatasetIndex, FoundIndex
from fkat_data.streaming.reading.shard_source import Evictable, ShardCache, ShardSource
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


class DecompressedSource(ShardSource):
    """Shards of a directory that is read in place, some of them compressed, and a cache of what they decompress to.

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
    """

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
        self._made = ShardCache(folder, budget, evictable)
        super().__init__(directory.absolute(), found.entries, validate_hash, index, self._made)
        self._found = found
        self._written = index
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
        self._made.dataset_version.adopt(found.version, lambda _: ())
        self._written.use(found.version, found.report)
        pairs = [pair for entry in found.entries for pair in entry.files]
        self._compressed = {raw.basename: compressed.basename for raw, compressed in pairs if compressed is not None}
        self._made.may_evict(self._compressed, self.can_be_made)
        return found.entries

    def cached_files(self, entry: ShardEntry) -> list[tuple[FileInfo, FileInfo | None]]:
        """Return the files that are decompressed; none where the raw ones are there, and nothing that they could be older than."""
        is_in_place = all(
            compressed is None
            or (not (self.directory / compressed.basename).exists() and (self.directory / raw.basename).exists())
            for raw, compressed in entry.files
        )
        return [] if is_in_place else [pair for pair in entry.files if pair[1] is not None]

    def can_be_made(self, name: str) -> bool:
        """Return whether a decompressed file can be made again: its compressed file exists."""
        compressed = self._compressed.get(name)
        return compressed is not None and (self.directory / compressed).is_file()

    def make(self, entry: ShardEntry, raw: FileInfo, compressed: FileInfo | None, *, wait: bool) -> bool:
        """Decompress a file unless it is there, and compare it with its hash."""
        files = self._made.files
        fill = partial(self._decompress, raw, cast("FileInfo", compressed), str(entry.compression))
        is_damaged = False
        for _ in range(_MOST_TRIES):
            path = files.get(raw.basename, raw.bytes, fill, wait=wait)
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
                files.remove(raw.basename)
            else:
                return True
        raise ShardNotFoundError(raw.basename, f"evicted from {files.directory} each time before it was read")

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
