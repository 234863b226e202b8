"""Read files of a directory of this machine."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fkat_data.files.stored import file_size
from fkat_data.runtime.background import in_thread
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.storage.file_identity import FileIdentity
from fkat_data.storage.folders import files_of_folders
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
            return version_of(FileIdentity.of_path(path))

        return in_thread(look, timeout_s)

    def listing(self, prefix: str, timeout_s: float, enters: Callable[[str], bool] | None = None) -> list[ListedFile]:
        """Return the files whose names begin with ``prefix``; see ``Client``. Symbolic links are followed.

        Left out are ``lost+found``, and hidden folders that may not be read, unless ``prefix`` names them. ``enters``
        says whether to list a folder, given its name; None: all are listed.
        """
        folder, slash, beginning = prefix.rpartition("/")

        def is_entered(name: str) -> bool:
            return enters is None or enters(folder + slash + name)

        walk = files_of_folders(str(self._directory / folder), beginning, is_entered)
        found: list[ListedFile] = []
        while (files := in_thread(partial(_next, walk), timeout_s)) is not None:
            found += (file._replace(name=folder + slash + file.name) for file in files)
        return found

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _next(walk: Iterator[list[tuple[str, os.DirEntry[str]]]]) -> list[ListedFile] | None:
    """Return the files of the next folder; None if there is none."""
    try:
        entries = next(walk, None)
    except genuine(FileNotFoundError, NotADirectoryError):
        return None
    if entries is None:
        return None
    found: list[ListedFile] = []
    for name, entry in entries:
        # It may be gone since.
        with suppress(FileNotFoundError):
            identity = FileIdentity.of_status(entry.stat())
            found.append(ListedFile(name, identity.size_bytes, str(identity.version)))
    return found


class _FileBody:
    def __init__(self, path: Path, start: int, stop: int | None) -> None:
        # Opening a pipe or a device might block without a limit.
        file_size(path)
        self._file = path.open("rb", buffering=0)
        self._is_stuck = False
        found = FileIdentity.of_descriptor(self._file.fileno())
        # Some mounts give one file another inode number at each look, and the parts of a file are read one by one.
        whole = version_of(found)
        self.version: str = whole if stop is None else whole.partition("-")[2]
        self.size_bytes: int = found.size_bytes
        self.start: int = min(start, found.size_bytes)
        self._file.seek(self.start)
        self._left = (found.size_bytes if stop is None else min(stop, found.size_bytes)) - self.start

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


def version_of(found: FileIdentity) -> str:
    """Return the version of a local file: its inode, size and time."""
    return joined_version(f"{found.inode}-{found.size_bytes}", found.version)
