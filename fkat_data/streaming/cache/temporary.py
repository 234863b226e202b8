"""A file on its way into a cache: under a random name, counted at its full size, whole before it gets its own name."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Self

from fkat_data.errors import ShardCorruptError
from fkat_data.streaming.cache.cache_directory import CacheDirectory
from fkat_data.streaming.cache.paths import BOOKKEEPING, MAKING
from fkat_data.streaming.cache.system import allocate

__all__ = ["Temporary"]

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Temporary:
    """A file that is being made. Its size is in its name, so that whoever counts the cache counts the whole of it.

    It is locked for as long as its maker lives: whoever finds one that is not locked may remove it.

    Args:
        directory: The cache's directory.
        size_bytes: The size that it will have.

    Raises:
        OSError: It cannot be made; the error has its path.
    """

    def __init__(self, directory: CacheDirectory, size_bytes: int) -> None:
        self._directory = directory
        self._size_bytes = size_bytes
        self._is_moved = False
        self._owner = os.getpid()
        while True:
            self._name = f"{MAKING}/{secrets.token_hex(8)}.{size_bytes}"
            self._lock = directory.open(self._name, _NEW, 0o666)
            # Until now it looked like a dead process's: somebody may be removing it.
            if self._lock.try_lock() and self.path.exists():
                break
            self._lock.close()

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._directory.path / BOOKKEEPING / self._name

    def fill(self, name: str, fill: Callable[[BinaryIO], None]) -> None:
        """Let somebody write it, and see to it that all of it is there and on the disk.

        Args:
            name: The name that it will have.
            fill: Writes into the open file; what it raises is raised.

        Raises:
            ShardCorruptError: It has another size than it should.
            OSError: The disk is full or failed.
        """
        allocate(self._lock.descriptor, self._size_bytes)
        # The descriptor, and the lock with it, stay when this file is closed.
        with open(self._lock.descriptor, "w+b", closefd=False) as file:
            fill(file)
        found = os.fstat(self._lock.descriptor).st_size
        if found != self._size_bytes:
            path = self._directory.path / name
            raise ShardCorruptError.of_field(path, "size in bytes", f"{self._size_bytes}, as in the index", found)
        os.fsync(self._lock.descriptor)

    def move_to(self, name: str, *, is_synced: bool) -> None:
        """Give it its name.

        Args:
            name: The name, relative to the cache's directory.
            is_synced: Whether the name is on the disk, too, when this returns.

        Raises:
            ShardCorruptError: A folder on the way is a symbolic link.
            OSError: A directory has the name, or the disk failed.
        """
        self._directory.move_in(self.path, name, is_synced=is_synced)
        self._is_moved = True

    def close(self) -> None:
        """Remove it, unless it has its name."""
        try:
            # A forked child that comes to an end here must leave it alone.
            if not self._is_moved and self._owner == os.getpid():
                self._directory.discard(self._name)
        finally:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
