"""File locks that the kernel releases when their holder dies, even by SIGKILL."""

import contextlib
import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

__all__ = ["LockFile", "pauses"]

_SHORTEST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05

# Held during a fork: otherwise a child could inherit an open file that is not listed here yet, and its lock.
_guard = threading.RLock()
_descriptors: set[int] = set()


class LockFile:
    """An open file, and the lock that this object may hold on it until it is closed.

    Two objects on the same file exclude each other, also within one process. A forked child does not keep the lock,
    which ends with the process that took it.

    Args:
        path: The file; a symbolic link is an error.
        flags: As for ``os.open``.
        mode: Permissions of a new file.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o600) -> None:
        self._descriptor = -1
        self._path = path
        with _guard:
            self._descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
            _descriptors.add(self._descriptor)

    @property
    def descriptor(self) -> int:
        """The open file's descriptor; -1 after ``close``."""
        return self._descriptor

    @property
    def is_there(self) -> bool:
        """Whether the path still leads to this file; a lock on a removed file excludes no process."""
        # The link count does not tell: NFS and FUSE rename an open file instead of removing it.
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self._path))
        except FileNotFoundError:
            return False

    def try_lock(self, *, shared: bool = False) -> bool:
        """Take the lock if it is free; return whether it was.

        A lock that this object holds changes to the other kind, or is lost if that fails.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self, *, shared: bool = False) -> None:
        """Wait for the lock and take it; signal handlers run meanwhile."""
        if threading.current_thread() is not threading.main_thread():
            # They run in the main thread. A thread that asked again and again would take time from the others.
            fcntl.flock(self._descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            return
        for pause_s in pauses():
            if self.try_lock(shared=shared):
                return
            time.sleep(pause_s)

    def close(self) -> None:
        """Close the file and release its lock."""
        with _guard:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                _descriptors.discard(descriptor)
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # An interrupt may come between a lock and the statement that would release it.
        if not is_finalizing():
            self.close()


def pauses() -> Iterator[float]:
    """Yield seconds to sleep between attempts: from 1 ms, doubling up to 50 ms, without end."""
    pause_s = _SHORTEST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _release_in_child() -> None:
    # Closing is enough: the parent's descriptors keep its locks. /dev/null takes the numbers, since an object of a
    # thread that the child does not have may still write to them.
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) if _descriptors else -1
        for descriptor in _descriptors:
            os.dup2(null, descriptor, inheritable=False)
        if null >= 0:
            os.close(null)
    except OSError:
        for descriptor in _descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    finally:
        _descriptors.clear()
        _guard.release()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_release_in_child)
