"""The right to make one file of a cache, which one thread of one process of a node has at a time."""

import os
from hashlib import blake2b
from typing import Self

from fkat_data.streaming.cache.cache_directory import CLAIMS, CacheDirectory

__all__ = ["Claim"]

_MOST_REMOVALS = 100


class Claim:
    """The right to make one file, once it was taken and until it is given back.

    Each file has a lock of its own, so that whoever makes one may need another for it: the compressed file, say. The
    lock's file is removed by whoever has the lock; a lock on a file without a name counts for nothing, and is taken
    anew.

    Args:
        directory: The cache's directory.
        name: The file's name.
    """

    def __init__(self, directory: CacheDirectory, name: str) -> None:
        self._directory = directory
        self._name = f"{CLAIMS}/{blake2b(os.fsencode(name), digest_size=16).hexdigest()}"
        # The process that took it; a forked child that comes to an end here must leave it alone.
        self._owner = 0
        self._lock = directory.open(self._name)

    def try_take(self) -> bool:
        """Take the right if nobody has it; return whether it was taken.

        Raises:
            OSError: The lock's file cannot be made.
        """
        # A file system that numbers its files anew at every look ends this as well: the worst is a file made twice.
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
        """Give the right back, if it was taken."""
        try:
            if self._owner == os.getpid():
                self._directory.discard(self._name)
        finally:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
