"""How many bytes several cache directories may take together, and which files go when there is too little space."""

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.cache.cache_directory import CacheDirectory
from fkat_data.streaming.cache.idle_maps import give_back_idle_maps
from fkat_data.streaming.cache.locks import pauses
from fkat_data.streaming.cache.paths import MAKING
from fkat_data.streaming.cache.stock import Stock
from fkat_data.streaming.cache.temporary import Temporary

_logger = logging.getLogger(__name__)

#: How long to wait for other processes to unmap files, and how long not to wait again if they did not.
_PATIENCE_S = 5.0
_REST_S = 60.0


class CacheBudget:
    """How many bytes several directories may take together.

    The budget knows what the files take before each new one: other jobs' files, files in the making at their final
    size, and files that no cache made, from the next count on. It leaves out the cache's own bookkeeping, and a
    directory below that is another cache. It adds up file sizes, which may differ from the space that the disk uses.

    A file that a process of the node has mapped is not evicted, because the disk would keep it. Where only such files
    are left, the budget has this process unmap what it does not read at this moment, and waits for the others.

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
        self._patient_again_s = 0.0
        found = {directory.resolved: directory for directory in map(CacheDirectory, dict.fromkeys(directories))}
        # One order for all: two processes that lock the same directories cannot deadlock.
        self._directories = [found[resolved] for resolved in sorted(found)]

    @property
    def usage_bytes(self) -> int:
        """Bytes that the files take now, counted one by one."""
        with self._locked() as stocks:
            return sum(stock.count() + stock.making_bytes for stock in stocks)

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

        Waits for other processes to unmap files if no others are left.

        Returns:
            The bytes removed: less than ``num_bytes`` if no more files may go.

        Raises:
            OSError: A file cannot be removed.
        """
        for is_last in self._attempts():
            with self._locked() as stocks:
                freed_bytes, num_mapped = _evict(num_bytes, stocks)
            if freed_bytes or not num_mapped or is_last:
                return freed_bytes
        return 0

    def reserve(self, directory: CacheDirectory, size_bytes: int) -> tuple[Temporary, bool]:
        """Evict files until a new one fits, and make it, empty; it counts at its full size from now on.

        Args:
            directory: Where the file will be.
            size_bytes: Its final size.

        Returns:
            The file, and whether it comes on top of the limit: its maker then calls ``trim``.

        Raises:
            ConfigurationError: The limit is too small for this file beside those that may not be evicted.
            OSError: The file cannot be made.
        """
        limit_bytes = self.limit_bytes
        if limit_bytes is None:
            return Temporary(directory, size_bytes), False
        for is_last in self._attempts():
            with self._locked() as stocks:
                above_bytes = self._make_room(stocks, directory, size_bytes, limit_bytes, is_last=is_last)
                if above_bytes is not None:
                    return Temporary(directory, size_bytes), above_bytes > 0
        raise RuntimeError("the last attempt returns or raises")

    def trim(self, directory: CacheDirectory, name: str) -> int:
        """Evict what exceeds the limit, after a file was made on top of it; return how many bytes went.

        Args:
            directory: Where that file is.
            name: Its name; it stays, as its maker has not opened it yet.

        Raises:
            OSError: A file cannot be removed.
        """
        limit_bytes = self.limit_bytes
        if limit_bytes is None:
            return 0
        with self._locked() as stocks:
            excess_bytes = sum(stock.total_bytes for stock in stocks) - limit_bytes
            spared = self._directories.index(directory), name
            return _evict(excess_bytes, stocks, spared)[0] if excess_bytes > 0 else 0

    def is_making(self) -> bool:
        """Return whether any process makes a file."""
        for directory in self._directories:
            directory.sweep(MAKING)
        return any(True for directory in self._directories for _ in directory.being_made())

    def _make_room(
        self, stocks: list[Stock], directory: CacheDirectory, size_bytes: int, limit_bytes: int, *, is_last: bool
    ) -> int | None:
        """Evict files until a new one fits; return the bytes that it is above the limit, None if it should wait.

        Raises:
            ConfigurationError: The limit is too small.
        """
        total_bytes = sum(stock.total_bytes for stock in stocks)
        making_bytes = sum(stock.making_bytes for stock in stocks)
        if total_bytes + making_bytes + size_bytes <= limit_bytes:
            return 0
        for stock in stocks:
            stock.sweep()
        making_bytes = sum(stock.making_bytes for stock in stocks)
        excess_bytes = total_bytes + making_bytes + size_bytes - limit_bytes
        freed_bytes, num_mapped = _evict(excess_bytes, stocks)
        if freed_bytes >= excess_bytes:
            return 0
        # What users removed is still counted.
        total_bytes = sum(stock.count() for stock in stocks)
        excess_bytes = total_bytes + making_bytes + size_bytes - limit_bytes
        if num_mapped:
            if is_last and excess_bytes > 0:
                _logger.warning(
                    "the cache in %s exceeds its limit of %d bytes by %d: processes of this node keep %d evictable "
                    "files mapped and do not read",
                    *(directory.path, limit_bytes, excess_bytes, num_mapped),
                )
            return max(0, excess_bytes) if is_last or excess_bytes <= 0 else None
        # Files in the making may exceed the limit: their makers trim, too.
        missing_bytes = excess_bytes - making_bytes
        if missing_bytes > 0:
            raise ConfigurationError(
                "limit_bytes",
                limit_bytes,
                f"at least {limit_bytes + missing_bytes}: {directory.path} needs {size_bytes} bytes for a file, and "
                "the other files in the cache may not be removed",
            )
        return max(0, excess_bytes)

    def _attempts(self) -> Iterator[bool]:
        """Yield False before each attempt while other processes may unmap files, then True before the last one."""
        begun_s = time.monotonic()
        if begun_s >= self._patient_again_s:
            for pause_s in pauses():
                yield False
                if time.monotonic() - begun_s > _PATIENCE_S:
                    break
                time.sleep(pause_s)
            self._patient_again_s = time.monotonic() + _REST_S
        yield True

    @contextlib.contextmanager
    def _locked(self) -> Generator[list[Stock]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(Stock(directory, self._may_go(directory))) for directory in self._directories]

    def _may_go(self, directory: CacheDirectory) -> Callable[[str], bool] | None:
        is_evictable = self._is_evictable
        return None if is_evictable is None else partial(is_evictable, directory.given)


def _evict(num_bytes: int, stocks: list[Stock], spared: tuple[int, str] | None = None) -> tuple[int, int]:
    """Evict the coldest files; return the bytes that went, and how many files stay because they are mapped."""
    freed_bytes = num_mapped = 0
    has_given_back = False
    while freed_bytes < num_bytes:
        coldest = [(candidate, place) for place, stock in enumerate(stocks) if (candidate := stock.coldest())]
        # What was made last is the hottest: behind it there is no other.
        if not coldest or ((first := min(coldest))[1], first[0].name) == spared:
            break
        stock = stocks[first[1]]
        size_bytes = stock.evict_coldest()
        if size_bytes is None and not has_given_back:
            # This process may have it mapped.
            has_given_back = True
            give_back_idle_maps()
            size_bytes = stock.evict_coldest()
        if size_bytes is None:
            num_mapped += 1
            stock.pass_over()
        else:
            freed_bytes += size_bytes
    return freed_bytes, num_mapped
