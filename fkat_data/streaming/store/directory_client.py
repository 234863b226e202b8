"""Read files of a directory of this machine."""

import os
from pathlib import Path

from fkat_data.background import in_thread
from fkat_data.streaming.formats.files import file_size

__all__ = ["DirectoryClient"]

_PIECE_BYTES = 1 << 20


class DirectoryClient:
    """A directory. A mount that hangs blocks a thread of this client and not the caller.

    Args:
        directory: The path.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, name: str, start: int, version: str, timeout_s: float) -> "_FileBody":
        """Open a file; see ``Client``."""
        return in_thread(lambda: _FileBody(self._directory / name, start if version else 0), timeout_s)

    def version(self, name: str, timeout_s: float, *, is_timed: bool = False) -> str:
        """Return the version of a file: its time, inode and size."""
        del is_timed  # the version always has the time

        def look() -> str:
            path = self._directory / name
            file_size(path)
            return _version(path.stat())

        return in_thread(look, timeout_s)

    def close(self) -> None:
        """Do nothing: nothing is open."""


class _FileBody:
    def __init__(self, path: Path, start: int) -> None:
        # Opening a pipe or a device might block without a limit.
        file_size(path)
        self._file = path.open("rb", buffering=0)
        self._is_stuck = False
        found = os.fstat(self._file.fileno())
        self.version = _version(found)
        self.size_bytes = found.st_size
        self.start = min(start, found.st_size)
        self._file.seek(self.start)

    def read(self, timeout_s: float) -> bytes:
        try:
            return in_thread(lambda: self._file.read(_PIECE_BYTES), timeout_s)
        except TimeoutError:
            # Its thread is still reading; the file closes when that thread returns.
            self._is_stuck = True
            raise

    def close(self) -> None:
        if not self._is_stuck:
            self._file.close()


def _version(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns}-{found.st_ino}-{found.st_size}"
