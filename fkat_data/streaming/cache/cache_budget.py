"""How much several directories of a cache may take together, and who has to go when there is too little."""

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
    """How much several directories may take together, whoever writes to them.

    What they take is counted when it matters, from the files that are there: those of other jobs, those that are being
    made at the size that they will have, and those that no cache made. Only the cache's own few small files are left
    out. The sizes are those of the files, which may be less or more than what the disk needs for them.

    Thread-safe, and any number of processes may use the same directories with limits of their own. It pickles if
    ``is_evictable`` does.

    Args:
        directories: The directories; made, with mode 0700, where they are not there.
        limit_bytes: What they may take together; None: as much as there is room on the disk. The files that are being
            made may come on top of it.
        is_evictable: Given one of ``directories`` and a name in it, whether that file may be removed to make room,
            since it can be fetched again. It is asked about every file that is there; None: no file may.

    Attributes:
        limit_bytes: The limit; it may be changed, and holds from the next file on.

    Raises:
        ConfigurationError: There is no directory, a directory is not safe to use, or the limit is no positive number.
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
        # Always in this order: two who need the same directories cannot wait for one another.
        self._directories = [found[resolved] for resolved in sorted(found)]

    @property
    def usage_bytes(self) -> int:
        """What the files take, counted now."""
        return sum(file.size_bytes for _, file in self._files())

    def directory(self, path: Path) -> CacheDirectory:
        """Return one of the directories.

        Raises:
            ConfigurationError: It is none of them.
        """
        for directory in self._directories:
            if path in (directory.given, directory.path) or str(path.resolve()) == directory.resolved:
                return directory
        given = ", ".join(str(directory.given) for directory in self._directories)
        raise ConfigurationError("directory", str(path), f"one of the room's: {given}")

    def evict_coldest(self) -> int:
        """Remove the file that was not used for the longest time; return how many bytes it had, 0 if there is none.

        Raises:
            OSError: It cannot be removed.
        """
        return self.evict(1)

    def evict(self, num_bytes: int) -> int:
        """Remove files, those that were not used for the longest time first, until they had so many bytes together.

        Returns:
            How many bytes they had: less than was asked for if no more files may be removed, 0 if none.

        Raises:
            OSError: A file cannot be removed.
        """
        with self._locked():
            return _evict(num_bytes, self._coldest_first(list(self._files())))

    def reserve(self, directory: CacheDirectory, size_bytes: int) -> Temporary:
        """Make room for a file and return one, empty, that counts as if it had its full size already.

        Args:
            directory: Where the file will be.
            size_bytes: Its size.

        Raises:
            ConfigurationError: The limit is less than what may not be removed and the new file need.
            OSError: It cannot be made.
        """
        if self.limit_bytes is None:
            return Temporary(directory, size_bytes)
        with self._locked():
            self._make_room(directory, size_bytes, self.limit_bytes)
            return Temporary(directory, size_bytes)

    def trim(self) -> int:
        """Keep to the limit once a file was made that had come on top of it; return how many bytes went.

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
        """Return whether any file is being made."""
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
            # Some may be gone by themselves: then it is less, and is counted again.
            if _evict(excess_bytes, may_go) >= excess_bytes:
                return
        # Files that are being made may come on top: their makers keep to the limit as well.
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
                    stack.enter_context(directory.open("room")).lock()
                except OSError as error:
                    # Where nothing can be written, there is nobody who could be in the way.
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
