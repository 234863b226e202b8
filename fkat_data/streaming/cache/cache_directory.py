"""One directory of a cache: who may use it, where things are in it, and what each process does to it."""

import contextlib
import errno
import logging
import os
import platform
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.cache.locks import LockFile
from fkat_data.streaming.cache.paths import BOOKKEEPING, MAKING, StoredFile, files_below, opened_folder, parts_of
from fkat_data.streaming.cache.recency import Recency
from fkat_data.streaming.cache.system import file_system_of, is_node_local

__all__ = ["CLAIMS", "CacheDirectory", "danger_of", "directory_on_node", "make_safe"]

#: In ``BOOKKEEPING``: one file for each file that somebody is making.
CLAIMS = "claims"

_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_logger = logging.getLogger(__name__)


def danger_of(owner: int, mode: int, user: int) -> str | None:
    """Return why a directory must not be used as a cache; None if it may.

    Args:
        owner: Its owner's number.
        mode: Its type and permissions.
        user: The number of the user that this process runs as.
    """
    if not stat.S_ISDIR(mode):
        return "it is no directory"
    # Root in a container is regularly given a directory of the user who started it.
    if user not in (owner, 0) and owner != 0:
        return f"it belongs to user {owner}, who could put other data in the place of what was verified"
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return "every user may write to it and replace what was verified (mode o+w without the sticky bit)"
    return None


def directory_on_node(directory: Path, file_system: int, host: str) -> Path:
    """Return where in a directory a node keeps its files.

    Locks hold between the processes of a node. Where other nodes may see the same directory, each has a folder of its
    own: ``.node-<host>``.

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
    """A directory that may be used as a cache, made if it is not there. It pickles.

    Args:
        directory: The directory.
        is_announced: Whether the log says so if files are in a folder of this node.

    Attributes:
        given: The directory as it was given.
        path: Where files are: the same, or a folder in it where the file system is not this node's own.
        recency: When its files were last used.

    Raises:
        ConfigurationError: It is not safe to use, or its file system has no working locks.
        OSError: It cannot be made.
    """

    def __init__(self, directory: Path, *, is_announced: bool = True) -> None:
        self.given = directory
        make_safe(directory)
        self.path = directory_on_node(directory.absolute(), file_system_of(directory), platform.node())
        if self.path != directory.absolute():
            _logger.log(
                logging.WARNING if is_announced else logging.DEBUG,
                "%s is not on a disk of this machine: its cache is %s",
                directory,
                self.path,
            )
            make_safe(self.path)
        self._text = str(self.path)
        self.resolved = str(self.path.resolve())
        # Where others may put files, those of others do not count.
        self._is_open = bool(self.path.stat().st_mode & stat.S_IWOTH)
        self.recency = Recency(self.path / BOOKKEEPING / "recency")
        try:
            self.prepare()
        except OSError as error:
            # What is all there can be read; making a file says what is wrong.
            if error.errno not in _NOT_WRITABLE:
                raise

    def prepare(self) -> None:
        """Make the folders of the cache's own files.

        Raises:
            ConfigurationError: They are not safe to use, or locks do not work there.
            OSError: Nothing can be written there.
        """
        own = self.path / BOOKKEEPING
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (own, own / MAKING, own / CLAIMS):
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            danger = danger_of(found.st_uid, found.st_mode, os.geteuid())
            if danger is not None:
                raise ConfigurationError("local", str(folder), f"a directory that is safe: {danger}")
        self._check_locks(own / "probe")

    def has(self, name: str, size_bytes: int) -> bool:
        """Return whether a file is there that is as long as it should be; a symbolic link is not one.

        Raises:
            ShardCorruptError: The name leaves the directory.
        """
        return self._size(name) == size_bytes

    def remove(self, name: str) -> int:
        """Remove a file; return how many bytes it had, 0 if it is not there.

        Whoever has it open or mapped reads on; the room on the disk is free when the last of them is done.

        Raises:
            ShardCorruptError: The name leaves the directory.
        """
        *folders, last = parts_of(name)
        try:
            with opened_folder(self.path, folders) as folder:
                found = os.stat(last, dir_fd=folder, follow_symlinks=False)
                os.unlink(last, dir_fd=folder)
        except FileNotFoundError:
            return 0
        self.recency.forget(name)
        return found.st_size

    def move_in(self, temporary: Path, name: str, *, is_synced: bool) -> None:
        """Give a temporary file its name, in the place of what may have had it.

        Args:
            temporary: The file, on the same file system.
            name: Its name.
            is_synced: Whether the name is on the disk, too, when this returns.

        Raises:
            ShardCorruptError: The name leaves the directory, or a folder on its way is a symbolic link.
            OSError: A directory has the name, or nothing can be written.
        """
        *folders, last = parts_of(name)
        with opened_folder(self.path, folders, is_made=True) as folder:
            os.rename(temporary, last, dst_dir_fd=folder)
            if is_synced:
                os.fsync(folder)

    def sync(self, names: Iterable[str]) -> None:
        """Bring to the disk which of some files are there, and the folders that they are in.

        Args:
            names: Their names, relative to the directory; those of the cache's own files as well.

        Raises:
            OSError: The disk failed.
        """
        for folder in sorted({Path(name).parent for name in names} | {Path()}, reverse=True):
            with contextlib.suppress(FileNotFoundError), opened_folder(self.path, folder.parts) as descriptor:
                os.fsync(descriptor)

    def files(self, apart: frozenset[str] = frozenset()) -> Iterator[StoredFile]:
        """Yield all files, those that are being made included; what is in ``apart`` is left out."""
        return files_below(self.resolved, apart)

    def open(self, name: str, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o600) -> LockFile:
        """Open one of the cache's own files.

        Args:
            name: Its path in ``BOOKKEEPING``.
            flags: As for ``os.open``.
            mode: Permissions of a file that is made.

        Raises:
            OSError: It cannot be opened; the error has its path.
        """
        path = self.path / BOOKKEEPING / name
        try:
            return LockFile(path, flags, mode)
        except FileNotFoundError:
            # Somebody may have emptied the directory.
            self.prepare()
            return LockFile(path, flags, mode)

    def discard(self, name: str) -> None:
        """Remove one of the cache's own files, if it is there.

        Args:
            name: Its path in ``BOOKKEEPING``.
        """
        (self.path / BOOKKEEPING / name).unlink(missing_ok=True)

    def sweep(self, *folders: str) -> None:
        """Remove what dead processes left.

        Args:
            *folders: ``MAKING``, for files that they were making, and ``CLAIMS``.
        """
        for folder in folders:
            path = self.path / BOOKKEEPING / folder
            with contextlib.suppress(FileNotFoundError, PermissionError):
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
        except (FileNotFoundError, NotADirectoryError):
            return -1
        if not stat.S_ISREG(found.st_mode) or (self._is_open and found.st_uid != os.geteuid()):
            return -1
        return found.st_size

    def _check_locks(self, path: Path) -> None:
        try:
            with LockFile(path) as first, LockFile(path) as second:
                # Where another process has it, it has shown that locks exclude.
                works = not first.try_lock() or not second.try_lock()
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            works = False
        if not works:
            raise ConfigurationError("local", str(self.given), "a directory on a file system where flock(2) works")

    def __reduce__(self) -> tuple[Callable[[Path], "CacheDirectory"], tuple[Path]]:
        return _again, (self.given,)


def _again(directory: Path) -> CacheDirectory:
    # Once in a job is enough.
    return CacheDirectory(directory, is_announced=False)


def make_safe(directory: Path) -> None:
    """Make a directory, unless it is there and nobody else may replace what is in it.

    Raises:
        ConfigurationError: It is not safe to use, or no directory.
        OSError: It cannot be made.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigurationError("local", str(directory), "a directory") from error
    found = directory.stat()
    danger = danger_of(found.st_uid, found.st_mode, os.geteuid())
    if danger is not None:
        raise ConfigurationError("local", str(directory), f"a directory that is safe to use as a cache: {danger}")


def _remove_if_free(path: Path) -> None:
    try:
        with LockFile(path, os.O_RDWR) as lock:
            # Not by its age or a process's number: both may lie.
            if lock.try_lock():
                path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno == errno.ELOOP:
            path.unlink(missing_ok=True)
        elif error.errno not in (errno.EISDIR, *_NOT_WRITABLE):
            raise
