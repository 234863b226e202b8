"""The source of a stream's shards: a directory that is read in place, or one with a cache around it."""

from collections.abc import Callable, Iterable
from pathlib import Path

from fkat_data.files.shard import FileInfo, MapRegister, ShardEntry, is_part
from fkat_data.files.stored import validate_file
from fkat_data.streaming.cache.cache import Cache
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.dataset_version import DatasetVersion
from fkat_data.streaming.cache.mapped_files import give_back_idle_maps
from fkat_data.streaming.reading.dataset_index import DatasetIndex
from fkat_data.streaming.reading.pinned_commits import PinnedCommit


class Evictable:
    """The files of a cache that may be evicted: those of shards, which can be made again, and no index."""

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}
        self._can_be_made: dict[str, Callable[[str], bool]] = {}

    def add(self, directory: Path, names: Iterable[str], can_be_made: Callable[[str], bool]) -> None:
        """Allow the eviction of files of a directory.

        Args:
            directory: The directory, as the budget has it.
            names: The files.
            can_be_made: Returns whether one of them, or a part of a stored file, can be made again now; it pickles.
        """
        self._names[str(directory)] = frozenset(names)
        self._can_be_made[str(directory)] = can_be_made

    def __call__(self, directory: Path, name: str) -> bool:
        """Return whether a file may be evicted."""
        key = str(directory)
        names = self._names.get(key)
        # Another job may have fetched parts with other columns.
        return names is not None and (name in names or is_part(name)) and self._can_be_made[key](name)


class ShardCache:
    """A directory of this node with files of shards that can be made again.

    Args:
        directory: The directory, one of the budget's.
        budget: What that directory and others may take.
        evictable: Collects the files that may be evicted.

    Attributes:
        files: Makes, keeps and evicts the files.
        dataset_version: The version of the dataset that they are of.
    """

    def __init__(self, directory: Path, budget: CacheBudget, evictable: Evictable) -> None:
        self.files: Cache = Cache(directory, budget)
        self.dataset_version: DatasetVersion = DatasetVersion(directory)
        self._given = directory
        self._evictable = evictable

    def may_evict(self, names: Iterable[str], can_be_made: Callable[[str], bool]) -> None:
        """Allow the eviction of files, see ``Evictable.add``."""
        self._evictable.add(self._given, names, can_be_made)


class ShardSource:
    """The shards of a directory of this machine, read in place: nothing is written or deleted.

    A subclass has a cache around it, which gives files that are not as they are to be read. A source pickles; threads
    and processes may share it.

    Args:
        directory: The directory.
        entries: What its index says about the shards.
        validate_hash: The hash of the index to compare files with; None: compare their sizes alone.
        index: The index that the entries are of, in the version in use; None: the directory has none.
        cache: A cache around it; None: all files are read in place.

    Attributes:
        directory: The directory.
        read_commit: What ``read_index`` has read, if that is from a store that has commits; else None.
    """

    def __init__(
        self,
        directory: Path,
        entries: list[ShardEntry],
        validate_hash: str | None,
        index: DatasetIndex | None = None,
        cache: ShardCache | None = None,
    ) -> None:
        self.directory: Path = directory
        self.read_commit: PinnedCommit | None = None
        self._entries = entries
        self._validate_hash = validate_hash
        self._index = index
        self._cache = cache
        self._validated: set[str] = set()

    @property
    def is_in_place(self) -> bool:
        """Whether shards are read in place: none needs fetching or decompressing."""
        return self._cache is None

    @property
    def map_register(self) -> MapRegister | None:
        """Records which files of the cache are mapped: those are not evicted. None: there is no cache."""
        return None if self._cache is None else self._cache.files.mapped_files

    @property
    def index_bytes(self) -> int:
        """Size of the index in the cache."""
        return 0

    def read_index(self) -> list[ShardEntry]:
        """Return what the index says about the shards, in its order."""
        return self._entries

    def cached_bytes(self, entry: ShardEntry) -> int:
        """Return the most bytes that a shard takes in the cache."""
        return 0

    def cached_files(self, entry: ShardEntry) -> list[tuple[FileInfo, FileInfo | None]]:
        """Return the raw files of a shard that the cache gives, each with what it is decompressed from; none: it is read in place."""
        return []

    def can_be_made(self, name: str) -> bool:
        """Return whether a file of the cache can be made again, so that it may be removed."""
        return False

    def make(self, entry: ShardEntry, raw: FileInfo, compressed: FileInfo | None, *, wait: bool) -> bool:
        """Have the cache make a raw file of a shard unless it is there; return False where another process still makes it.

        Raises:
            Exception: See ``fetch``.
        """
        raise NotImplementedError

    def fetch(self, entry: ShardEntry, *, wait: bool = True) -> Path | None:
        """Make a shard's raw files in the cache unless they are there, or read in place; return their directory.

        Args:
            entry: The shard.
            wait: Whether to wait while another process makes one of them; if not, None is returned instead.

        Raises:
            ConfigurationError: The index lacks the hash to compare files with; or the cache's limit is too small.
            ShardNotFoundError: A file is missing.
            ShardCorruptError: A file differs from what the index says; or the dataset was written again.
            DownloadError: The shard did not arrive.
            CacheFullError: The disk is full.
            OSError: A file cannot be read or written.
        """
        cached = self.cached_files(entry)
        if self._cache is None or not cached:
            for raw, _ in entry.files:
                self._validate(self.directory / raw.basename, raw)
            return self.directory
        self._cache.dataset_version.hold()
        is_whole = all(self.make(entry, raw, compressed, wait=wait) for raw, compressed in cached)
        return self._cache.files.directory if is_whole else None

    def check_unchanged(self, entry: ShardEntry) -> None:
        """Check, once a shard is open, that the index is the one that was read; files of a cache are of one version.

        Raises:
            ShardCorruptError: The dataset was written again.
        """
        if self._index is not None and not self.cached_files(entry):
            self._index.check_in_place(self.directory)

    def touch(self, entry: ShardEntry) -> None:
        """Mark a shard's files in the cache as used now."""
        if self._cache is not None:
            for raw, _ in self.cached_files(entry):
                self._cache.files.touch(raw.basename)

    def is_there(self, entry: ShardEntry) -> bool:
        """Return whether a shard's raw files are there, and none is evicted."""
        return self._cache is None or all(
            self._cache.files.has(raw.basename, raw.bytes) for raw, _ in self.cached_files(entry)
        )

    def evict(self, entry: ShardEntry) -> int:
        """Remove a shard's files from the cache, except those that cannot be made again; return their size in bytes.

        Raises:
            OSError: A file cannot be removed.
        """
        if self._cache is None:
            return 0
        give_back_idle_maps()
        return sum(self._cache.files.remove(name) for name in names_of([entry]) if self.can_be_made(name))

    def _validate(self, path: Path, info: FileInfo) -> None:
        # Once in a process. Each opening compares the size.
        if self._validate_hash is not None and str(path) not in self._validated:
            validate_file(path, info, self._validate_hash)
            self._validated.add(str(path))


def names_of(entries: Iterable[ShardEntry]) -> list[str]:
    """Return the names of all files of shards."""
    return [info.basename for entry in entries for pair in entry.files for info in pair if info is not None]
