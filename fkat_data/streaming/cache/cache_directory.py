"""One directory of a cache: whether it is safe to use, where its files are, and what a process does to them."""

import errno
import logging
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.streaming.cache.access_times import AccessTimes
from fkat_data.streaming.cache.locks import SHORTEST_PAUSE_S, LockFile, Owned, locked
from fkat_data.streaming.cache.mapped_files import MappedFiles
from fkat_data.streaming.cache.paths import (
    BOOKKEEPING,
    MAKING,
    StoredFile,
    allocate,
    counted_bytes,
    file_system_of,
    files_below,
    is_node_local,
    opened_folder,
    parts_of,
    reserved_bytes,
)
from fkat_data.streaming.cache.usage_ledger import UsageLedger

#: In ``BOOKKEEPING``: one lock's file for each file in the making.
CLAIMS = "claims"

#: Errors of a cache that this process may only read; the last two: a file is where the bookkeeping should be.
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR)
_logger = logging.getLogger(__name__)

_File = TypeVar("_File", bound=LockFile)


class suppress_unwritable(suppress):  # noqa: N801 - as the one that it narrows
    """As ``suppress``, of the errors of a cache that this process may only read."""

    def __init__(self) -> None:
        super().__init__(OSError)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return isinstance(error, OSError) and error.errno in NOT_WRITABLE and super().__exit__(kind, error, traceback)


def danger_of(owner: int, mode: int, user: int) -> str | None:
    """Return why a directory is not safe as a cache; None if it is.

    Args:
        owner: The user id of its owner.
        mode: Its type and permissions.
        user: The user id of this process.
    """
    if not stat.S_ISDIR(mode):
        return "it is not a directory"
    # Root in a container often gets a directory of the user who started the container.
    if user not in (owner, 0) and owner != 0:
        return f"it belongs to user {owner}, who could replace verified data"
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return "every user may write to it and replace verified data (mode o+w without the sticky bit)"
    return None


def directory_on_node(directory: Path, file_system: int, host: str) -> Path:
    """Return where in a directory a node keeps its files.

    Locks hold between the processes of one node. If other nodes may see the directory, each uses its own folder,
    ``.node-<host>``.

    Args:
        directory: The directory.
        file_system: The number of its file system.
        host: The node's name.
    """
    if is_node_local(file_system):
        return directory
    name = ".node-" + (re.sub(r"[^\w.-]", "_", host)[:200] or "unnamed")
    return directory if directory.name == name else directory / name


class CacheDirectory:
    """A directory that is safe to use as a cache; made if it is missing. It pickles.

    One that this process cannot write to serves the files that it has.

    Args:
        directory: The directory.
        is_announced: Whether to log a warning if the files go to this node's own folder.

    Attributes:
        given: The directory as the caller passed it.
        path: Where the files are: the same, or this node's folder in it if other nodes may see it.
        access_times: When its files were last used.
        mapped_files: Which of its files the processes of the node have mapped.

    Raises:
        ConfigurationError: It is not safe to use, or locks do not work on its file system.
        OSError: It cannot be made.
    """

    def __init__(self, directory: Path, *, is_announced: bool = True) -> None:
        self.given = directory
        make_safe(directory)
        self.path: Path = directory_on_node(directory.absolute(), file_system_of(directory), platform.node())
        if self.path != directory.absolute():
            self._use_folder_of_node(logging.WARNING if is_announced else logging.DEBUG)
        self._text = str(self.path)
        self.resolved: str = str(self.path.resolve())
        # Other users may put files into such a directory: only this user's count.
        self._is_open = bool(self.path.stat().st_mode & stat.S_IWOTH)
        self.access_times: AccessTimes = AccessTimes(self.path / BOOKKEEPING / "recency")
        self.mapped_files: MappedFiles = MappedFiles(self.path / BOOKKEEPING / "mapped")
        with suppress_unwritable():  # whole files can still be read; making one raises what is wrong
            self.prepare()

    @property
    def is_writable(self) -> bool:
        """Whether this process may make and remove files in it."""
        return all(os.access(path, os.W_OK | os.X_OK) for path in (self.path, self.path / BOOKKEEPING / MAKING))

    def prepare(self) -> None:
        """Make the folders for the cache's bookkeeping.

        Raises:
            ConfigurationError: They are not safe to use, or locks do not work there.
            OSError: The directory is not writable.
        """
        own = self.path / BOOKKEEPING
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (own, own / MAKING, own / CLAIMS):
            folder.mkdir(mode=0o700, exist_ok=True)
            _check_safe(folder, folder.lstat())
        self._check_locks(own / "probe")

    def has(self, name: str, size_bytes: int) -> bool:
        """Return whether a regular file exists and has this size; a symbolic link does not count.

        Raises:
            ShardCorruptError: The name leaves the directory.
        """
        return self._size(name) == size_bytes

    def remove(self, name: str) -> int:
        """Remove a file; return its size in bytes, 0 if it does not exist.

        A process that has it open or mapped can still read it; the disk's space is free when the last one closes it.

        Raises:
            ShardCorruptError: The name leaves the directory.
        """
        parts_of(name)
        try:
            # Not lexists(): it takes every error for a missing file, whose content would then pass for a new version.
            os.lstat(f"{self._text}/{name}")
        except genuine(FileNotFoundError, NotADirectoryError):
            return 0
        with self.ledger() as ledger:
            return self._remove(name, ledger) or 0

    def evict(self, name: str, ledger: UsageLedger) -> int | None:
        """Remove a file that no process of the node has mapped.

        Args:
            name: The file's name.
            ledger: What ``ledger`` returned.

        Returns:
            Its size in bytes, 0 if it does not exist; None if it is mapped.

        Raises:
            OSError: The file cannot be removed.
        """
        return self._remove(name, ledger, is_kept_if_mapped=True)

    def ledger(self) -> UsageLedger:
        """Lock the directory's files and return the record of what they take. All that adds or removes files has it.

        Raises:
            OSError: The directory is not writable.
        """
        return locked(partial(self._opened, UsageLedger, "budget"))

    def _remove(self, name: str, ledger: UsageLedger, *, is_kept_if_mapped: bool = False) -> int | None:
        *folders, last = parts_of(name)
        try:
            with opened_folder(self.path, folders) as folder:
                found = os.stat(last, dir_fd=folder, follow_symlinks=False)
                claim = self.mapped_files.claimed(found.st_ino) if is_kept_if_mapped else nullcontext(True)
                with claim as is_claimed:
                    if not is_claimed:
                        return None
                    with ledger.changing(-counted_bytes(found)):
                        os.unlink(last, dir_fd=folder)
        except genuine(FileNotFoundError):
            return 0
        self.access_times.forget(name)
        return found.st_size

    def move_in(self, temporary: Path, name: str) -> None:
        """Rename a temporary file to its name, replacing a file of that name.

        Args:
            temporary: The file, on the same file system.
            name: Its name.

        Raises:
            ShardCorruptError: The name leaves the directory, or a folder in it is a symbolic link.
            OSError: A directory has this name, or the directory is not writable.
        """
        *folders, last = parts_of(name)
        with opened_folder(self.path, folders, is_made=True) as folder, self.ledger() as ledger:
            before_bytes = 0
            with suppress(FileNotFoundError):
                before_bytes = counted_bytes(os.stat(last, dir_fd=folder, follow_symlinks=False))
            with ledger.changing(counted_bytes(temporary.lstat()) - before_bytes):
                os.rename(temporary, last, dst_dir_fd=folder)

    def sync(self, names: Iterable[str]) -> None:
        """Sync to the disk which of some files exist, and their folders.

        Args:
            names: Their paths in the directory, bookkeeping included.

        Raises:
            OSError: The disk failed.
        """
        for folder in sorted({Path(name).parent for name in names} | {Path()}, reverse=True):
            with suppress(FileNotFoundError), opened_folder(self.path, folder.parts) as descriptor:
                os.fsync(descriptor)

    def files(self) -> Iterator[StoredFile]:
        """Yield all files, except those in the making and those of another cache below this one."""
        return files_below(self.resolved)

    def being_made(self) -> Iterator[StoredFile]:
        """Yield the files in the making, at their final sizes."""
        # Another user's: this one cannot make files there.
        with suppress(PermissionError):
            for file in files_below(f"{self.resolved}/{BOOKKEEPING}/{MAKING}", f"{BOOKKEEPING}/{MAKING}/"):
                size_bytes = max(file.size_bytes, reserved_bytes(file.name.rpartition("/")[2]))
                yield file._replace(size_bytes=size_bytes)

    def open(self, name: str, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o600) -> LockFile:
        """Open a bookkeeping file.

        Args:
            name: Its path in ``BOOKKEEPING``.
            flags: As for ``os.open``.
            mode: Permissions of a new file.

        Raises:
            OSError: It cannot be opened; the error has its path.
        """
        return self._opened(LockFile, name, flags, mode)

    def _opened(self, kind: type[_File], name: str, *how: int) -> _File:
        # Not a Path: this runs several times for each file that is made.
        path = f"{self._text}/{BOOKKEEPING}/{name}"
        try:
            return kind(path, *how)
        except genuine(FileNotFoundError):
            # The user may have emptied the directory.
            self.prepare()
            return kind(path, *how)

    def sweep(self, *folders: str) -> None:
        """Remove what dead processes left behind.

        Args:
            *folders: ``MAKING`` for unfinished files, ``CLAIMS`` for their claims.
        """
        for folder in folders:
            path = self.path / BOOKKEEPING / folder
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                for left in list(path.iterdir()):
                    _remove_if_free(left)

    def _size(self, name: str) -> int:
        *folders, _ = parts_of(name)
        folder = self._text
        try:
            for part in folders:
                folder += f"/{part}"
                if not stat.S_ISDIR(os.lstat(folder).st_mode):
                    return -1
            found = os.lstat(f"{self._text}/{name}")
        except genuine(FileNotFoundError, NotADirectoryError):
            return -1
        if not stat.S_ISREG(found.st_mode) or (self._is_open and found.st_uid != os.geteuid()):
            return -1
        return found.st_size

    def _use_folder_of_node(self, level: int) -> None:
        try:
            make_safe(self.path)
        except genuine(OSError) as error:
            if error.errno not in NOT_WRITABLE:
                raise
            # No node can add files, so all may share those that are there.
            self.path = self.given.absolute()
        else:
            _logger.log(level, "%s is not on a disk of this machine; this node caches in %s", self.given, self.path)

    def _check_locks(self, path: Path) -> None:
        try:
            with LockFile(path) as first, LockFile(path) as second:
                # If another process has the lock, locks exclude.
                works = not first.try_lock() or not second.try_lock()
        except genuine(OSError) as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            works = False
        if not works:
            raise ConfigurationError("local", str(self.given), "a directory on a file system that supports flock(2)")

    def __reduce__(self) -> tuple[Callable[[Path], "CacheDirectory"], tuple[Path]]:
        return _again, (self.given,)


def _again(directory: Path) -> CacheDirectory:
    # The process that made it has logged the warning.
    return CacheDirectory(directory, is_announced=False)


def make_safe(directory: Path) -> None:
    """Make a directory if it is missing, and check that no other user may replace its files.

    Raises:
        ConfigurationError: It is not safe to use, or not a directory.
        OSError: It cannot be made.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except genuine(FileExistsError) as error:
        raise ConfigurationError("local", str(directory), "a directory") from error
    _check_safe(directory, directory.stat())


def _check_safe(directory: Path, found: os.stat_result) -> None:
    danger = danger_of(found.st_uid, found.st_mode, os.geteuid())
    if danger is not None:
        raise ConfigurationError("local", str(directory), f"a directory that is safe to use as a cache: {danger}")


def _remove_if_free(path: Path) -> None:
    try:
        with LockFile(path, os.O_RDWR) as lock:
            # Only the lock says so: ages and process ids mislead.
            if lock.try_lock():
                path.unlink(missing_ok=True)
    except genuine(FileNotFoundError):
        pass
    except genuine(OSError) as error:
        if error.errno == errno.ELOOP:
            path.unlink(missing_ok=True)
        elif error.errno not in (errno.EISDIR, *NOT_WRITABLE):
            raise


class Temporary(Owned):
    """A file in the making. Its name states its final size, at which every process counts it.

    Args:
        directory: The cache's directory.
        size_bytes: Its final size.

    Attributes:
        path: Its temporary path.

    Raises:
        OSError: It cannot be made; the error has its path.
    """

    def __init__(self, directory: CacheDirectory, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._directory = directory
        name = f"{MAKING}/{secrets.token_hex(8)}.{size_bytes}"
        self.path: Path = directory.path / BOOKKEEPING / name
        super().__init__(partial(directory.open, name, mode=0o666))
        # Unlocked until now, it looked like a dead process's: another one may hold it for a moment, and removes it.
        while not self.try_take():
            time.sleep(SHORTEST_PAUSE_S)

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
