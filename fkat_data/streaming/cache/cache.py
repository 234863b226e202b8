"""One directory of a node's cache: files are made once, by one process for all, and are whole when they are there."""

import errno
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fkat_data import arguments
from fkat_data.errors import CacheFullError
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.cache_directory import CLAIMS
from fkat_data.streaming.cache.claim import Claim
from fkat_data.streaming.cache.locks import pauses
from fkat_data.streaming.cache.paths import MAKING, parts_of

__all__ = ["Cache"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST_ATTEMPTS = 3
_MOST_ATTEMPTS = 20


class Cache:
    """A directory of files that any number of threads, processes and jobs of a node share.

    A file is there under its name only when it is whole: it is written under another name, compared with its size,
    brought to the disk and renamed. Whoever asks for a file that somebody else is making waits for it, and makes it if
    that process dies. What is there may be removed at any time to make room, by any process: whoever has a file open
    or mapped reads on, and whoever finds it gone before it was opened asks again.

    It pickles if its room does, may be used after a fork, and needs not be closed.

    Args:
        directory: The directory, one of the room's.
        room: How much there may be.
        is_name_synced: Whether a new file's name is brought to the disk as well: after a loss of power a file that
            was there is there. Without it such a file may be missing, but never torn.

    Attributes:
        directory: Where the files are: ``directory``, or a folder of this node in it where its file system is not
            this node's own.

    Raises:
        ConfigurationError: The directory is none of the room's.
    """

    def __init__(self, directory: Path, room: CacheBudget, *, is_name_synced: bool = False) -> None:
        self._directory = room.directory(directory)
        self._room = room
        self._is_name_synced = arguments.boolean("is_name_synced", is_name_synced)
        self.directory = self._directory.path
        self._directory.sweep(MAKING, CLAIMS)

    def get(
        self,
        name: str,
        size_bytes: int,
        fill: Callable[[BinaryIO], None],
        *,
        wait: bool = True,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> Path | None:
        """Return the path of a whole file, which is made if it is not there, and mark it as used now.

        Args:
            name: Its name; folders in it are made.
            size_bytes: Its size.
            fill: Writes it into an open file, empty and positioned at its start, or raises. It is called by one
                thread of one process of the node at a time, and again, with an empty file, if the disk was full and
                could be relieved. It may ask for other files of the cache.
            wait: Whether to wait while another thread or process makes it.
            is_cancelled: Asked many times a second while waiting, whether to give up.

        Returns:
            The path; None if it is being made elsewhere and was not waited for, or no longer.

        Raises:
            ShardCorruptError: ``fill`` wrote more or less than ``size_bytes``; the name leaves the directory; or a
                folder on the way is a symbolic link.
            CacheFullError: The disk is full, and removing what may be removed did not help.
            ConfigurationError: The limit is too small for this file and for what may not be removed.
            OSError: The directory cannot be written to; the error has the path.
            Exception: Whatever ``fill`` raised. Nothing of the file is left, and the next one to ask tries again.
        """
        arguments.integer("size_bytes", size_bytes, minimum=0)
        arguments.function("fill", fill)
        path = self.directory.joinpath(*parts_of(name))
        if self.has(name, size_bytes):
            self.touch(name)
            return path
        with self._claim(name) as claim:
            for pause_s in pauses():
                if claim.try_take():
                    break
                if self.has(name, size_bytes):
                    self.touch(name)
                    return path
                if not wait or (is_cancelled is not None and is_cancelled()):
                    return None
                time.sleep(pause_s)
            # Whoever had the claim before may have made it.
            is_made = not self.has(name, size_bytes)
            if is_made:
                self._make(name, size_bytes, fill)
            else:
                self.touch(name)
        if is_made:
            self._room.trim()
        return path

    def has(self, name: str, size_bytes: int) -> bool:
        """Return whether a file is there and as long as it should be.

        Raises:
            ShardCorruptError: The name leaves the directory.
        """
        return self._directory.has(name, size_bytes)

    def touch(self, name: str) -> None:
        """Mark a file as used now."""
        self._directory.recency.touch(name)

    def remove(self, name: str) -> int:
        """Remove a file; return how many bytes it had, 0 if it is not there.

        Raises:
            ShardCorruptError: The name leaves the directory.
            OSError: It cannot be removed.
        """
        return self._directory.remove(name)

    def _claim(self, name: str) -> Claim:
        try:
            return Claim(self._directory, name)
        except OSError as error:
            if error.errno not in _FULL or not self._room.evict(1):
                raise
        return Claim(self._directory, name)

    def _make(self, name: str, size_bytes: int, fill: Callable[[BinaryIO], None]) -> None:
        for attempt in range(_MOST_ATTEMPTS):
            try:
                self._write(name, size_bytes, fill)
            except OSError as error:
                if error.errno not in _FULL:
                    error.add_note(f"while making {self.directory / name}, {size_bytes} bytes")
                    raise
                free_bytes = shutil.disk_usage(self.directory).free
                if not self._can_try_again(size_bytes, attempt, free_bytes, error.errno):
                    raise CacheFullError(str(self.directory / name), size_bytes, free_bytes, str(error)) from error
            else:
                return

    def _can_try_again(self, size_bytes: int, attempt: int, free_bytes: int, number: int) -> bool:
        """Make room on a full disk, or give others the time to be done; return whether that may have helped."""
        # With so much room it is another disk that is full, or one that has no names left: our files are not in the way.
        is_another = number == errno.ENOSPC and free_bytes > 2 * size_bytes and attempt >= _LEAST_ATTEMPTS
        if is_another or attempt == _MOST_ATTEMPTS - 1:
            return False
        if self._room.evict(max(1, size_bytes)):
            return True
        if not self._room.is_making() and attempt >= _LEAST_ATTEMPTS:
            return False
        # Of two who found no room beside one another, each has to find it alone.
        time.sleep(0.01 + secrets.randbelow(50 * (attempt + 1)) / 1000)
        return True

    def _write(self, name: str, size_bytes: int, fill: Callable[[BinaryIO], None]) -> None:
        with self._room.reserve(self._directory, size_bytes) as temporary:
            temporary.fill(name, fill)
            # Before it has its name: what seems never to have been used is the first to go.
            self.touch(name)
            temporary.move_to(name, is_synced=self._is_name_synced)
