"""Locks that the kernel keeps: whoever holds one and dies, however it dies, has let go of it."""

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

# A fork between the opening of a file and its entry here would leave the child with a lock that nobody knows of.
_guard = threading.RLock()
_descriptors: set[int] = set()


class LockFile:
    """An open file, and a lock on it for as long as it is open.

    The lock belongs to this object: another one on the same file excludes it, in this process, in another thread or
    elsewhere. A forked child does not keep it, so that the lock ends with the process that took it.

    Args:
        path: The file; a symbolic link is not followed.
        flags: As for ``os.open``.
        mode: Permissions of a file that is made.

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
        """The open file's descriptor; -1 once it is closed."""
        return self._descriptor

    @property
    def is_there(self) -> bool:
        """Whether the path still is this file's: a lock on one that was removed excludes nobody."""
        # Not by the number of names: NFS and FUSE rename what is removed while it is open.
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self._path))
        except FileNotFoundError:
            return False

    def try_lock(self, *, shared: bool = False) -> bool:
        """Take the lock if nobody has it; return whether it was taken.

        A lock that this object had already is changed to the other kind, or lost where that fails.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self, *, shared: bool = False) -> None:
        """Take the lock, waiting for as long as a living process has it; signals are handled meanwhile."""
        for pause_s in pauses():
            if self.try_lock(shared=shared):
                return
            time.sleep(pause_s)

    def close(self) -> None:
        """Close the file, which gives the lock back."""
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
        # An interrupt may fall between a lock and the statement that would give it back.
        if not is_finalizing():
            self.close()


def pauses() -> Iterator[float]:
    """Yield, without end, how many seconds to sleep between looks: from 1 ms, growing to 50 ms."""
    pause_s = _SHORTEST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _let_go_in_child() -> None:
    # Closing is enough: the parent's own descriptors keep its locks. The numbers stay taken, by a file that does
    # nothing, since objects of threads that the child does not have may still write to them.
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


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_let_go_in_child)
