"""One directory of a node's cache: one process makes each file for all, and a file under its name is whole."""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from fkat_data.errors import CacheFullError, arguments
from fkat_data.runtime.interruption import genuine
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.cache_directory import CLAIMS
from fkat_data.streaming.cache.locks import Owned, pauses
from fkat_data.streaming.cache.mapped_files import MappedFiles
from fkat_data.streaming.cache.paths import MAKING, parts_of

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST_ATTEMPTS = 3
_MOST_ATTEMPTS = 20


class Cache:
    """A directory of files that the threads, processes and jobs of a node share.

    The cache writes a file under a temporary name, checks its size, syncs it to the disk and renames it, so a file
    under its own name is always whole. A caller that asks for a file in the making waits for it, and makes it if its
    maker dies. Any process may evict a file that is not in ``mapped_files``. A reader that has it open keeps it; a reader that
    finds it missing calls ``get`` again.

    It pickles if its budget does, works after a fork, and needs no closing.

    Args:
        directory: The directory, one of the budget's.
        budget: How many bytes the files may take.

    Attributes:
        directory: Where the files are: ``directory``, or this node's folder in it if other nodes may see
            ``directory``.
        mapped_files: The register of mapped files. A file that is in it is not evicted; one that is only open may be.

    Raises:
        ConfigurationError: The budget does not cover the directory.
    """

    def __init__(self, directory: Path, budget: CacheBudget) -> None:
        self._directory = budget.directory(directory)
        self._budget = budget
        self.directory: Path = self._directory.path
        self.mapped_files: MappedFiles = self._directory.mapped_files
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
        """Return the path of a whole file, make it if it is missing, and mark it as used now.

        Args:
            name: The file's name; the cache makes the folders in it.
            size_bytes: The file's size.
            fill: Writes the content into an open, empty file, or raises. One thread of one process of the node calls
                it at a time, and again with an empty file after a full disk was relieved. It may get other files.
            wait: Whether to wait while another thread or process makes the file.
            is_cancelled: Returns whether to give up; called many times a second during a wait.

        Returns:
            The path; None if another process makes the file and this call does not wait, or was cancelled.

        Raises:
            ShardCorruptError: ``fill`` wrote more or less than ``size_bytes``; the name leaves the directory; or a
                folder in the name is a symbolic link.
            CacheFullError: The disk is full, and evicting files did not help.
            ConfigurationError: The limit is too small for this file beside those that may not be evicted.
            OSError: The directory is not writable; the error has the path.
            Exception: Whatever ``fill`` raised. Nothing of the file is left, and the next ``get`` tries again.
        """
        arguments.integer("size_bytes", size_bytes, minimum=0)
        arguments.function("fill", fill)
        path = self.directory.joinpath(*parts_of(name))
        if self._is_used(name, size_bytes):
            return path
        with self._claim(name) as claim:
            for pause_s in pauses():
                is_taken = claim.try_take()
                # The last owner of the claim may have made it.
                if self._is_used(name, size_bytes):
                    return path
                if is_taken:
                    break
                if not wait or (is_cancelled is not None and is_cancelled()):
                    return None
                time.sleep(pause_s)
            is_on_top = self._make(name, size_bytes, fill)
        if is_on_top:
            self._budget.trim(self._directory, name)
        return path

    def has(self, name: str, size_bytes: int) -> bool:
        """Return whether a file exists and has this size.

        Raises:
            ShardCorruptError: The name leaves the directory.
        """
        return self._directory.has(name, size_bytes)

    def touch(self, name: str) -> None:
        """Mark a file as used now."""
        self._directory.access_times.touch(name)

    def remove(self, name: str) -> int:
        """Remove a file; return its size in bytes, 0 if it does not exist.

        Raises:
            ShardCorruptError: The name leaves the directory.
            OSError: The file cannot be removed.
        """
        return self._directory.remove(name)

    def _is_used(self, name: str, size_bytes: int) -> bool:
        """Return whether a whole file is there, and mark it as used."""
        is_there = self.has(name, size_bytes)
        if is_there:
            self.touch(name)
        return is_there

    def _claim(self, name: str) -> Owned:
        """Return what holds the exclusive right to make a file, once it is taken.

        Each file has its own lock, so that the maker of one file can wait for another, such as its compressed form.
        """
        claim = f"{CLAIMS}/{blake2b(os.fsencode(name), digest_size=16).hexdigest()}"
        opened = partial(self._directory.open, claim)
        try:
            return Owned(opened)
        except genuine(OSError) as error:
            if error.errno not in _FULL or not self._budget.evict(1):
                raise
        return Owned(opened)

    def _make(self, name: str, size_bytes: int, fill: Callable[[BinaryIO], None]) -> bool:
        """Make a file; return whether it came on top of the limit."""
        for attempt in range(_MOST_ATTEMPTS):
            try:
                return self._write(name, size_bytes, fill)
            except genuine(OSError) as error:
                if error.errno not in _FULL:
                    error.add_note(f"while making {self.directory / name}, {size_bytes} bytes")
                    raise
                free_bytes = shutil.disk_usage(self.directory).free
                if not self._can_try_again(size_bytes, attempt, free_bytes, error.errno):
                    raise CacheFullError(str(self.directory / name), size_bytes, free_bytes, str(error)) from error
        raise RuntimeError("the last attempt returns or raises")

    def _can_try_again(self, size_bytes: int, attempt: int, free_bytes: int, number: int) -> bool:
        """Evict files from a full disk, or wait for other makers; return whether that may have helped."""
        # With this much space, another disk is full, or this one is out of inodes: evicting files does not help.
        is_another = number == errno.ENOSPC and free_bytes > 2 * size_bytes and attempt >= _LEAST_ATTEMPTS
        if is_another or attempt == _MOST_ATTEMPTS - 1:
            return False
        if self._budget.evict(max(1, size_bytes)):
            return True
        if not self._budget.is_making() and attempt >= _LEAST_ATTEMPTS:
            return False
        # Two makers that do not fit beside each other need different pauses, so that one comes first.
        time.sleep(0.01 + secrets.randbelow(50 * (attempt + 1)) / 1000)
        return True

    def _write(self, name: str, size_bytes: int, fill: Callable[[BinaryIO], None]) -> bool:
        reserved, is_on_top = self._budget.reserve(self._directory, size_bytes)
        with reserved as temporary:
            temporary.fill(name, fill)
            # Before it has its name: a file without a recorded use is evicted first.
            self.touch(name)
            self._directory.move_in(temporary.path, name)
        return is_on_top
