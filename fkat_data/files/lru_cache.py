"""Least-recently-used caches of a process: of open files, and of decoded row groups."""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from fkat_data.errors import arguments

_T = TypeVar("_T")


class _MadeOnce(Generic[_T]):
    """An object that one thread makes, and others wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[_T] = []

    def get(self, make: Callable[[], _T]) -> _T:
        if not self._made:
            with self._lock:
                if not self._made:
                    self._made.append(make())
        return self._made[0]


class LruCache(Generic[_T]):
    """A thread-safe LRU cache of objects that this process made. A forked process, or one that unpickles it, begins with none.

    What one thread makes, the others wait for, and nothing is made twice at the same time.

    Args:
        capacity: The most objects that it holds.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._entries: OrderedDict[object, _MadeOnce[_T]] = OrderedDict()
        self._process_id = os.getpid()

    def get(self, key: object, make: Callable[[], _T]) -> _T:
        """Return an object; make it if it is not there, after the least recently used one has been dropped.

        Raises:
            Exception: Whatever ``make`` raises.
        """
        if self._process_id != os.getpid():
            # A forked child shares its parent's file offsets and connections, so it opens its own.
            self.__init__(self._capacity)
        with self._lock:
            entry = self._entries.pop(key, None)
            while len(self._entries) >= self._capacity:
                self._entries.popitem(last=False)
            entry = self._entries[key] = _MadeOnce[_T]() if entry is None else entry
        return entry.get(make)

    def __contains__(self, key: object) -> bool:
        """Return whether an object is there, or is being made."""
        return key in self._entries and self._process_id == os.getpid()

    def __reduce__(self) -> tuple[type["LruCache[_T]"], tuple[int]]:
        return type(self), (self._capacity,)


_logger = logging.getLogger(__name__)

#: Parsed footers to hold.
_MOST_FOOTERS = 256
#: After this many row groups were decoded again, a warning says so.
_NUM_AGAIN = 64


class RowGroupCache:
    """An LRU cache of the decoded row groups of open shards, limited by bytes, and of their parsed footers. Thread-safe.

    Args:
        limit_bytes: What the row groups may take together; the latest one stays in any case.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = arguments.integer("limit_bytes", limit_bytes, minimum=1)
        self._footers: LruCache[Any] = LruCache(_MOST_FOOTERS)
        self._process_id = os.getpid()
        self._groups: OrderedDict[object, tuple[Any, int]] = OrderedDict()  # what was decoded, and its size in bytes
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._dropped: set[object] = set()
        self._num_again = 0

    @contextmanager
    def _locked(self) -> Generator[None]:
        if self._process_id != os.getpid():
            # A thread of the parent may have held the lock when this process was forked.
            self.__init__(self._limit_bytes)
        with self._lock:
            yield

    def group(self, key: object, decode: Callable[[], tuple[Any, int]]) -> Any:
        """Return a decoded row group.

        Args:
            key: What identifies it.
            decode: Called unless the cache has it; returns it, and its size in bytes.

        Raises:
            Exception: Whatever ``decode`` raises.
        """
        with self._locked():
            found = self._groups.get(key)
            if found is not None:
                self._groups.move_to_end(key)
                return found[0]
        value, size_bytes = decode()
        with self._locked():
            if key not in self._groups:
                self._groups[key] = value, size_bytes
                self._held_bytes += size_bytes
                while self._held_bytes > self._limit_bytes and len(self._groups) > 1:
                    dropped, (_, dropped_bytes) = self._groups.popitem(last=False)
                    self._held_bytes -= dropped_bytes
                    self._dropped.add(dropped)
                self._count(key, size_bytes)
        return value

    def footer(self, key: object, parse: Callable[[], Any]) -> Any:
        """Return a parsed footer; ``parse`` is called unless the cache has it.

        Raises:
            Exception: Whatever ``parse`` raises.
        """
        return self._footers.get(key, parse)

    def drop(self, key: object) -> None:
        """Release a row group; nothing happens if the cache has it not."""
        with self._locked():
            found = self._groups.pop(key, None)
            if found is not None:
                self._held_bytes -= found[1]

    def _count(self, key: object, size_bytes: int) -> None:
        """Warn once if the same row groups are decoded again and again."""
        if key not in self._dropped:
            return
        self._dropped.discard(key)
        self._num_again += 1
        if self._num_again == _NUM_AGAIN:
            _logger.warning(
                "row groups (of tar files: the headers) are decoded again and again: those in use take more than decoded_limit = %d bytes (one "
                "takes %d); raise decoded_limit, lower shuffle_block_size, or write smaller row groups",
                self._limit_bytes,
                size_bytes,
            )

    def __reduce__(self) -> tuple[type["RowGroupCache"], tuple[int]]:
        return type(self), (self._limit_bytes,)
