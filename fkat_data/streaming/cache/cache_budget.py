"""A limit on the bytes of several cache directories together, and the eviction of files when there is too little space."""

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.streaming.cache.cache_directory import CacheDirectory, Temporary, suppress_unwritable
from fkat_data.streaming.cache.locks import pauses
from fkat_data.streaming.cache.mapped_files import give_back_idle_maps
from fkat_data.streaming.cache.paths import MAKING, StoredFile
from fkat_data.streaming.cache.usage_ledger import Counts, UsageLedger

_logger = logging.getLogger(__name__)

#: How long to wait for other processes to unmap files, and how long not to wait again if they did not.
_PATIENCE_S = 5.0
_REST_S = 60.0


class _Candidate(NamedTuple):
    """A file that may be evicted. The smallest is the coldest.

    Attributes:
        last_use: When it was last used, as ``AccessTimes`` reports it.
        changed_ns: When it was last changed, by the wall clock.
        name: Its path in the directory.
    """

    last_use: int
    changed_ns: int
    name: str


class _Stock:
    """A directory's files, locked until ``close``.

    To find the coldest files, all have to be looked at. So this process keeps the list of them. What was used since it
    was listed is passed over: it is hotter than all that are listed. The list is made again when it ends. Each file in
    it is evicted, or was used, or is gone. So a listing costs each eviction, and each use, a constant time.

    Args:
        directory: The directory.
        is_evictable: Returns whether a file of a name may be evicted; None: none may.
        listed: What is left of this process's last listing, the coldest at its end.

    Raises:
        OSError: The lock cannot be taken.
    """

    def __init__(
        self, directory: CacheDirectory, is_evictable: Callable[[str], bool] | None, listed: list[_Candidate]
    ) -> None:
        self._directory = directory
        self._is_evictable = is_evictable
        self._listed = listed
        self._ledger: UsageLedger | None = None
        self._is_whole = False
        self._mapped: dict[str, _Candidate] = {}
        with suppress_unwritable():  # no process adds files there
            self._ledger = directory.ledger()

    @property
    def total_bytes(self) -> int:
        """The bytes that the files take, without those in the making."""
        ledger = self._ledger
        if ledger is not None and ledger.counts is not None and not ledger.is_due:
            return ledger.counts.total_bytes
        # Files that no cache made are listed, too.
        self._listed.clear()
        return self.count()

    @property
    def making_bytes(self) -> int:
        """The bytes that the files in the making will take."""
        return sum(file.size_bytes for file in self._directory.being_made())

    def sweep(self) -> None:
        """Remove what dead makers left."""
        self._directory.sweep(MAKING)

    def count(self) -> int:
        """Count the files, record what they take, and return it."""
        return self._record(list(self._directory.files()))

    def coldest(self) -> _Candidate | None:
        """Return the file to evict next; None if no more files may go."""
        is_evictable = self._is_evictable
        while is_evictable is not None and (self._listed or self._list(is_evictable)):
            candidate = self._listed[-1]
            if candidate.name in self._mapped or not is_evictable(candidate.name):
                self._listed.pop()
            elif candidate.last_use == self._directory.access_times.last_use(candidate.name):
                return candidate
            else:
                # It was used since it was listed. If only such files are left, they are listed again.
                self._is_whole = False
                self._listed.pop()
        return None

    def evict_coldest(self) -> int | None:
        """Evict what ``coldest`` returned; return its size in bytes, None if it is mapped.

        Raises:
            OSError: The file cannot be removed.
        """
        if self._ledger is None:
            raise RuntimeError("nothing can be evicted from a directory that is not writable")
        size_bytes = self._directory.evict(self._listed[-1].name, self._ledger)
        if size_bytes is not None:
            self._listed.pop()
        return size_bytes

    def pass_over(self) -> None:
        """Have ``coldest`` return the next file, and this one not again as long as the lock is held."""
        candidate = self._listed.pop()
        self._mapped[candidate.name] = candidate

    def close(self) -> None:
        """Release the lock."""
        self._listed += reversed(self._mapped.values())
        if self._ledger is not None:
            self._ledger.close()

    def _record(self, files: list[StoredFile]) -> int:
        total_bytes = sum(file.size_bytes for file in files)
        if self._ledger is not None:
            self._ledger.replace(Counts(total_bytes, len(files), time.monotonic_ns()))
        return total_bytes

    def _list(self, is_evictable: Callable[[str], bool]) -> bool:
        """Count the files, and list those that may go; return whether there are any.

        Nothing is listed again as long as the lock is held, except what was used meanwhile.
        """
        if self._is_whole or self._ledger is None:
            return False
        files = list(self._directory.files())
        found = sorted(
            (
                _Candidate(self._directory.access_times.last_use(file.name), file.changed_ns, file.name)
                for file in files
                if file.name not in self._mapped and is_evictable(file.name)
            ),
            reverse=True,
        )
        self._is_whole = True
        self._listed += found
        self._record(files)
        return bool(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CacheBudget:
    """A limit on the bytes that several directories take together.

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
        self._listed: list[list[_Candidate]] = [[] for _ in self._directories]

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
        self, stocks: list[_Stock], directory: CacheDirectory, size_bytes: int, limit_bytes: int, *, is_last: bool
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
                    "the cache in %s exceeds its limit of %d bytes by %d: processes of this node keep %d "
                    "evictable files mapped without reading them",
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
    def _locked(self) -> Generator[list[_Stock]]:
        with contextlib.ExitStack() as stack:
            stocks: list[_Stock] = []
            for directory, listed in zip(self._directories, self._listed, strict=True):
                is_evictable = None if self._is_evictable is None else partial(self._is_evictable, directory.given)
                stocks.append(stack.enter_context(_Stock(directory, is_evictable, listed)))
            yield stocks

    def __getstate__(self) -> Mapping[str, object]:
        nothing: list[list[_Candidate]] = [[] for _ in self._directories]
        return self.__dict__ | {"_listed": nothing}


def _evict(num_bytes: int, stocks: list[_Stock], spared: tuple[int, str] | None = None) -> tuple[int, int]:
    """Evict the coldest files; return the bytes that went, and how many files stay because they are mapped."""
    freed_bytes = num_mapped = 0
    has_given_back = False
    while freed_bytes < num_bytes:
        coldest = [(candidate, index) for index, stock in enumerate(stocks) if (candidate := stock.coldest())]
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
