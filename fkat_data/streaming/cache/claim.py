"""The exclusive right to make one file of a cache, held by one thread of one process of the node."""

import os
from hashlib import blake2b
from typing import Self

from fkat_data.streaming.cache.cache_directory import CLAIMS, CacheDirectory

__all__ = ["Claim"]

_MOST_REMOVALS = 100


class Claim:
    """The exclusive right to make one file, from ``try_take`` to ``close``.

    Each file has its own lock, so that the maker of one file can wait for another, such as its compressed form. The
    holder of the lock removes the lock's file when it closes. A lock on a removed file excludes no process, so
    ``try_take`` then opens the file again.

    Args:
        directory: The cache's directory.
        name: The file's name.
    """

    def __init__(self, directory: CacheDirectory, name: str) -> None:
        self._directory = directory
        self._name = f"{CLAIMS}/{blake2b(os.fsencode(name), digest_size=16).hexdigest()}"
        # The process that took it: a forked child must not remove the file on its way out.
        self._owner = 0
        self._lock = directory.open(self._name)

    def try_take(self) -> bool:
        """Take the right if it is free; return whether it was.

        Raises:
            OSError: The lock's file cannot be made.
        """
        # Bounded, for file systems that change inode numbers at each look; at worst, a file is made twice.
        for _ in range(_MOST_REMOVALS):
            if not self._lock.try_lock():
                return False
            if self._lock.is_there:
                break
            self._lock.close()
            self._lock = self._directory.open(self._name)
        self._owner = os.getpid()
        return True

    def close(self) -> None:
        """Give the right back, if this process took it."""
        try:
            if self._owner == os.getpid():
                self._directory.discard(self._name)
        finally:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
