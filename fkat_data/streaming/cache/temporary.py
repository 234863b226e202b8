"""A file in the making: under a temporary name, counted at its final size, renamed once it is whole."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Self

from fkat_data.errors import ShardCorruptError
from fkat_data.streaming.cache.cache_directory import CacheDirectory
from fkat_data.streaming.cache.paths import BOOKKEEPING, MAKING
from fkat_data.streaming.cache.system import allocate

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Temporary:
    """A file in the making. Its name states its final size, at which every process counts it.

    Its maker holds a lock on it; any process may remove one that is not locked.

    Args:
        directory: The cache's directory.
        size_bytes: Its final size.

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
            # Unlocked until now, it looked like a dead process's: another process may have removed it.
            if self._lock.try_lock() and self.path.exists():
                break
            self._lock.close()

    @property
    def path(self) -> Path:
        """Its temporary path."""
        return self._directory.path / BOOKKEEPING / self._name

    def fill(self, name: str, fill: Callable[[BinaryIO], None]) -> None:
        """Have ``fill`` write the file, check its size, and sync it to the disk.

        Args:
            name: Its final name, for errors.
            fill: Writes into the open file.

        Raises:
            ShardCorruptError: ``fill`` wrote another number of bytes than ``size_bytes``.
            OSError: The disk is full, or failed.
            Exception: Whatever ``fill`` raised.
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
        """Rename it to its final name.

        Args:
            name: The name, relative to the cache's directory.
            is_synced: Whether to sync the name to the disk, too.

        Raises:
            ShardCorruptError: A folder in the name is a symbolic link.
            OSError: A directory has this name, or the disk failed.
        """
        self._directory.move_in(self.path, name, is_synced=is_synced)
        self._is_moved = True

    def close(self) -> None:
        """Remove it, unless it was renamed."""
        try:
            # A forked child must not remove it on its way out.
            if not self._is_moved and self._owner == os.getpid():
                self._directory.discard(self._name)
        finally:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
