"""Read files of a directory of this machine."""

import errno
import os
import stat
from functools import partial
from pathlib import Path

from fkat_data.background import in_thread
from fkat_data.files.stored import file_size
from fkat_data.interruption import genuine
from fkat_data.location import LOST_AND_FOUND, pass_over_unreadable
from fkat_data.streaming.store.client import ListedFile, joined_version

_PIECE_BYTES = 1 << 20


class DirectoryClient:
    """A directory. A mount that hangs blocks a thread of this client and not the caller.

    Args:
        directory: The path.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, name: str, start: int, version: str, timeout_s: float, stop: int | None = None) -> "_FileBody":
        """Open a file; see ``Client``."""
        first = start if version or stop is not None else 0
        return in_thread(lambda: _FileBody(self._directory / name, first, stop), timeout_s)

    def version(self, name: str, timeout_s: float, *, is_timed: bool = False) -> str:
        """Return the version of a file: its inode, size and time."""
        del is_timed  # the version always has the time

        def look() -> str:
            path = self._directory / name
            file_size(path)
            return version_of(path.stat())

        return in_thread(look, timeout_s)

    def listing(self, prefix: str, timeout_s: float) -> list[ListedFile]:
        """Return the files whose names begin with ``prefix``; see ``Client``. Symbolic links are followed.

        Left out are ``lost+found``, and hidden folders that may not be read, unless ``prefix`` names them.
        """
        found: list[ListedFile] = []
        seen: set[tuple[int, int]] = set()
        folders = [prefix.rpartition("/")[0]]
        while folders:
            below, files, identity = in_thread(partial(self._folder, folders.pop(), prefix), timeout_s)
            # A link may lead to a folder above it.
            if identity not in seen:
                seen.add(identity)
                folders += below
                found += files
        return found

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _folder(self, folder: str, prefix: str) -> tuple[list[str], list[ListedFile], tuple[int, int]]:
        """Return the folders and the files of a folder whose names begin with a prefix, and the folder's identity."""
        below: list[str] = []
        files: list[ListedFile] = []
        try:
            status = (self._directory / folder).stat()
            entries = list(os.scandir(self._directory / folder))
        except genuine(FileNotFoundError, NotADirectoryError):
            return below, files, (-1, -1)
        except genuine(PermissionError) as error:
            if prefix.startswith(folder):
                raise
            pass_over_unreadable(str(self._directory / folder), error)
            return below, files, (-1, -1)
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if not name.startswith(prefix):
                continue
            try:
                found = entry.stat()
            except genuine(OSError) as error:
                # A link that leads nowhere, or in a circle, is no file.
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
                continue
            if stat.S_ISDIR(found.st_mode):
                if entry.name != LOST_AND_FOUND or prefix.startswith(name):
                    below.append(name)
            else:
                files.append(ListedFile(name, found.st_size, str(found.st_mtime_ns)))
        return below, files, (status.st_dev, status.st_ino)


class _FileBody:
    def __init__(self, path: Path, start: int, stop: int | None) -> None:
        # Opening a pipe or a device might block without a limit.
        file_size(path)
        self._file = path.open("rb", buffering=0)
        self._is_stuck = False
        found = os.fstat(self._file.fileno())
        # Some mounts give one file another inode number at each look, and the parts of a file are read one by one.
        whole = version_of(found)
        self.version: str = whole if stop is None else whole.partition("-")[2]
        self.size_bytes: int = found.st_size
        self.start: int = min(start, found.st_size)
        self._file.seek(self.start)
        self._left = (found.st_size if stop is None else min(stop, found.st_size)) - self.start

    def read(self, timeout_s: float) -> bytes:
        try:
            piece = in_thread(lambda: self._file.read(min(_PIECE_BYTES, self._left)), timeout_s)
        except TimeoutError:
            # Its thread is still reading; the file closes when that thread returns.
            self._is_stuck = True
            raise
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        if not self._is_stuck:
            self._file.close()


def version_of(found: os.stat_result) -> str:
    """Return the version of a file, given what ``stat`` found: its inode, size and time."""
    return joined_version(f"{found.st_ino}-{found.st_size}", found.st_mtime_ns)
