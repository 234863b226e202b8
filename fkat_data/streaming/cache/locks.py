"""File locks that the kernel releases when their holder dies, even by SIGKILL."""

import fcntl
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TypeVar

from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.lifetime import WeakTable

SHORTEST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05
#: How often a lock is taken on a file that was removed meanwhile: for file systems that change inode numbers at each look.
_MOST_REMOVALS = 100

# Held during a fork: otherwise a child could inherit an open file that is not listed here yet, and its lock.
_guard = threading.RLock()
_files: "WeakTable[int, LockFile]" = WeakTable()


class LockFile(io.FileIO):
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

    # Closing it, also by "with" and by the garbage collector, is one call of C: no signal handler can raise an error in
    # the middle and leave a lock for which its own process waits forever.
    __del__: Callable[[Self], None] = io.FileIO.close

    _opened = (-1, 0, 0)
    """The descriptor, and the device and inode of the file; none before it is open."""

    def __init__(self, path: str | Path, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o600) -> None:
        self.path: str | Path = path
        with _guard:
            _files[id(self)] = self
            super().__init__(
                str(path),
                "r" if flags & os.O_ACCMODE == os.O_RDONLY else "r+",
                opener=lambda name, _: os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode),
            )
            status = os.fstat(self.fileno())
            self._opened = (self.fileno(), status.st_dev, status.st_ino)

    @property
    def descriptor(self) -> int:
        """The open file's descriptor; -1 after ``close``."""
        return -1 if self.closed else self.fileno()

    @property
    def inherited(self) -> int | None:
        """The descriptor that a forked child has to close, also where another thread was about to close it."""
        descriptor, *file = self._opened
        with suppress(OSError):
            status = os.fstat(descriptor)
            # Closed before, the number may be another file's by now.
            return descriptor if [status.st_dev, status.st_ino] == file else None
        return None

    @property
    def is_there(self) -> bool:
        """Whether the path still leads to this file; a lock on a removed file excludes no process."""
        # The link count does not tell: NFS and FUSE rename an open file instead of removing it.
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.lstat(self.path))
        except genuine(FileNotFoundError):
            return False

    def try_lock(self, *, shared: bool = False) -> bool:
        """Take the lock if it is free; return whether it was.

        A lock that this object holds changes to the other kind, or is lost if that fails.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
        except genuine(BlockingIOError):
            return False
        return True

    def lock(self, *, shared: bool = False) -> None:
        """Wait for the lock and take it; signal handlers run meanwhile."""
        if threading.current_thread() is not threading.main_thread():
            # They run in the main thread. A thread that asked again and again would take time from the others.
            fcntl.flock(self.descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            return
        for pause_s in pauses():
            if self.try_lock(shared=shared):
                return
            time.sleep(pause_s)


_Locked = TypeVar("_Locked", bound=LockFile)


def locked(opened: Callable[[], _Locked]) -> _Locked:
    """Wait for the lock of the file that a path leads to, and return the file.

    Args:
        opened: Opens the path.
    """
    for attempt in range(_MOST_REMOVALS):
        file = opened()
        try:
            file.lock()
            # The user may have removed it: such a lock excludes no process.
            if file.is_there or attempt == _MOST_REMOVALS - 1:
                return file
        except BaseException:
            file.close()
            raise
        file.close()
    raise AssertionError("the last attempt returns")


class Owned:
    """A file that this process may lock, and removes if it has.

    Any process may remove one that is not locked. It is safe against what a signal's handler raises: an object that
    has the lock is in a ``with`` block.

    Args:
        opened: Opens the file, and makes it if it is missing.
    """

    def __init__(self, opened: Callable[[], LockFile]) -> None:
        self._opened = opened
        # The process that took it: a forked child must not remove the file on its way out.
        self._owner = 0
        self._lock = opened()

    def try_take(self) -> bool:
        """Take the lock if it is free; return whether it was.

        Raises:
            OSError: The file cannot be made.
        """
        for _ in range(_MOST_REMOVALS):
            if not self._lock.try_lock():
                return False
            if self._lock.is_there:
                break
            # Its last holder has removed it: such a lock excludes no process.
            self._lock.close()
            self._lock = self._opened()
        self._owner = os.getpid()
        return True

    def close(self) -> None:
        """Remove it and release its lock, if this process took it."""
        try:
            if self._owner == os.getpid():
                with suppress(FileNotFoundError):
                    os.unlink(self._lock.path)  # noqa: PTH108 - a Path takes longer
        finally:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pauses() -> Iterator[float]:
    """Yield seconds to sleep between attempts: from 1 ms, doubling up to 50 ms, without end."""
    pause_s = SHORTEST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _release_in_child() -> None:
    # Closing is enough: the parent's descriptors keep its locks. /dev/null takes the numbers, since an object of a
    # thread that the child does not have may still write to them.
    descriptors = [number for file in _files.values() if (number := file.inherited) is not None]
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) if descriptors else -1
        for descriptor in descriptors:
            os.dup2(null, descriptor, inheritable=False)
        if null >= 0:
            os.close(null)
    except genuine(OSError):
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)
    finally:
        _files.clear()
        _guard.release()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_release_in_child)
