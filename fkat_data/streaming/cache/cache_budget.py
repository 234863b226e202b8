"""How many bytes several cache directories may take together, and which files go when there is too little space."""

import contextlib
import errno
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.cache.cache_directory import CacheDirectory
from fkat_data.streaming.cache.paths import MAKING, StoredFile
from fkat_data.streaming.cache.temporary import Temporary

__all__ = ["CacheBudget"]


class _Found(NamedTuple):
    directory: CacheDirectory
    file: StoredFile


class CacheBudget:
    """How many bytes several directories may take together.

    The budget counts the files on the disk before each new one: other jobs' files, files in the making at their final
    size, and files that no cache made. It leaves out the cache's own bookkeeping. It adds up file sizes, which may
    differ from the space that the disk uses.

    It is thread-safe, and processes may use the same directories with different limits. It pickles if
    ``is_evictable`` does.

    Args:
        directories: The directories; missing ones are made, with mode 0700.
        limit_bytes: What they may take together, without the files in the making; None: all that the disk has.
        is_evictable: Returns whether a file may be evicted because it can be fetched again; called with one of
            ``directories`` and a name, for every file. None: no file may.

    Attributes:
        limit_bytes: The limit; a change holds from the next file on.

    Raises:
        ConfigurationError: ``directories`` is empty, a directory is not safe to use, or the limit is no positive
            number.
        OSError: A directory cannot be made.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        limit_bytes: int | None,
        is_evictable: Callable[[Path, str], bool] | None = None,
    ) -> None:
        if not directories:
            raise ConfigurationError("directories", directories, "at least one directory")
        if limit_bytes is not None:
            limit_bytes = arguments.integer("limit_bytes", limit_bytes, minimum=1)
        self.limit_bytes = limit_bytes
        self._is_evictable = is_evictable
        found = {directory.resolved: directory for directory in map(CacheDirectory, dict.fromkeys(directories))}
        # One order for all: two processes that lock the same directories cannot deadlock.
        self._directories = [found[resolved] for resolved in sorted(found)]

    @property
    def usage_bytes(self) -> int:
        """Bytes that the files take now."""
        return sum(file.size_bytes for _, file in self._files())

    def directory(self, path: Path) -> CacheDirectory:
        """Return one of the directories.

        Raises:
            ConfigurationError: The budget does not cover this path.
        """
        for directory in self._directories:
            if path in (directory.given, directory.path) or str(path.resolve()) == directory.resolved:
                return directory
        given = ", ".join(str(directory.given) for directory in self._directories)
        raise ConfigurationError("directory", str(path), f"one of the directories that the budget covers: {given}")

    def evict_coldest(self) -> int:
        """Remove the least recently used file; return its size in bytes, 0 if no file may go.

        Raises:
            OSError: The file cannot be removed.
        """
        return self.evict(1)

    def evict(self, num_bytes: int) -> int:
        """Remove files, the least recently used first, until at least ``num_bytes`` are gone.

        Returns:
            The bytes removed: less than ``num_bytes`` if no more files may go.

        Raises:
            OSError: A file cannot be removed.
        """
        with self._locked():
            return _evict(num_bytes, self._coldest_first(list(self._files())))

    def reserve(self, directory: CacheDirectory, size_bytes: int) -> Temporary:
        """Evict files until a new one fits, and return it, empty; it counts at its full size from now on.

        Args:
            directory: Where the file will be.
            size_bytes: Its final size.

        Raises:
            ConfigurationError: The limit is too small for this file beside those that may not be evicted.
            OSError: The file cannot be made.
        """
        if self.limit_bytes is None:
            return Temporary(directory, size_bytes)
        with self._locked():
            self._make_room(directory, size_bytes, self.limit_bytes)
            return Temporary(directory, size_bytes)

    def trim(self) -> int:
        """Evict what exceeds the limit, after a file was made on top of it; return how many bytes went.

        Raises:
            OSError: A file cannot be removed.
        """
        limit_bytes = self.limit_bytes
        if limit_bytes is None:
            return 0
        with self._locked():
            files = list(self._files())
            excess_bytes = sum(file.size_bytes for _, file in files if not file.is_being_made) - limit_bytes
            return _evict(excess_bytes, self._coldest_first(files)) if excess_bytes > 0 else 0

    def is_making(self) -> bool:
        """Return whether any process makes a file."""
        return any(file.is_being_made for _, file in self._files())

    def _files(self) -> Iterator[_Found]:
        # One directory may be in another: its files are its own.
        apart = frozenset(directory.resolved for directory in self._directories)
        for directory in self._directories:
            for file in directory.files(apart):
                yield _Found(directory, file)

    def _make_room(self, directory: CacheDirectory, size_bytes: int, limit_bytes: int) -> None:
        while True:
            files = list(self._files())
            excess_bytes = sum(file.size_bytes for _, file in files) + size_bytes - limit_bytes
            if excess_bytes <= 0:
                return
            may_go = self._coldest_first(files)
            if not may_go:
                break
            # Other processes may have removed some of them: count again.
            if _evict(excess_bytes, may_go) >= excess_bytes:
                return
        # Files in the making may exceed the limit: their makers trim, too.
        missing_bytes = excess_bytes - sum(file.size_bytes for _, file in files if file.is_being_made)
        if missing_bytes > 0:
            raise ConfigurationError(
                "limit_bytes",
                limit_bytes,
                f"at least {limit_bytes + missing_bytes}: {directory.path} needs {size_bytes} bytes for a file, and "
                "the other files in the cache may not be removed",
            )

    def _coldest_first(self, files: list[_Found]) -> list[_Found]:
        is_evictable = self._is_evictable
        if is_evictable is None:
            return []
        last_uses = {directory.resolved: directory.recency.last_uses() for directory in self._directories}
        never = min((min(uses.values(), default=0) for uses in last_uses.values()), default=0) - 1

        def key(found: _Found) -> tuple[int, int, str]:
            directory, file = found
            used = last_uses[directory.resolved].get(directory.recency.key_of(file.name), never)
            return used, file.changed_ns, file.name

        may_go = [
            found
            for found in files
            if not found.file.is_being_made and is_evictable(found.directory.given, found.file.name)
        ]
        return sorted(may_go, key=key)

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        with contextlib.ExitStack() as stack:
            for directory in self._directories:
                try:
                    stack.enter_context(directory.open("budget")).lock()
                except OSError as error:
                    # In a directory that is not writable, no process adds files.
                    if error.errno not in (errno.EROFS, errno.EACCES):
                        raise
            for directory in self._directories:
                directory.sweep(MAKING)
            yield


def _evict(num_bytes: int, coldest_first: list[_Found]) -> int:
    freed_bytes = 0
    for directory, file in coldest_first:
        if freed_bytes >= num_bytes:
            break
        freed_bytes += directory.remove(file.name)
    return freed_bytes
