"""A register of the files of a cache that are mapped into memory, by this process and by the others of the node."""

import contextlib
import errno
import fcntl
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.lifetime import WeakTable, on_collected
from fkat_data.streaming.cache.locks import LockFile
from fkat_data.transport.record_locks import lock_byte

# Held during a fork: otherwise a child could inherit a set that another thread was changing.
_guard = threading.RLock()


class MapOwner(Protocol):
    """An object that keeps files mapped between two uses."""

    def give_back(self) -> None:
        """Drop the maps that no thread reads at this moment. Any thread may call it."""
        ...


_owners: WeakTable[int, MapOwner] = WeakTable()


def register_map_owner(owner: MapOwner) -> None:
    """Have an object give its maps back when a cache needs their space, and in each forked child.

    A child holds no locks on the files that it inherited mapped.

    Args:
        owner: The object; it is not kept alive.
    """
    with _guard:
        _owners[id(owner)] = owner


def give_back_idle_maps() -> None:
    """Have all objects of this process give their maps back."""
    with _guard:
        owners = _owners.values()
    for owner in owners:
        owner.give_back()


def _give_back_in_child() -> None:
    _guard.release()
    give_back_idle_maps()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_give_back_in_child)


_LARGEST_OFFSET = (1 << 62) - 1
_BUSY = (errno.EAGAIN, errno.EACCES)
#: The file system or the directory does not allow it.
_NOT_POSSIBLE = (
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT),
    *(errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
)


class _Entry:
    """A map in a register: it lives as long as the map."""

    __slots__ = ("__weakref__",)


class _EntryEnd(weakref.ref[_Entry]):
    """A weak reference that goes to a deque at its entry's end, which may come in any statement: no Python code runs then."""

    __slots__ = ("lock", "offset", "register")
    register: "MappedFiles"
    lock: LockFile
    offset: int


# The ends to come, and those that have come, of all registers of this process.
_awaited: dict[int, _EntryEnd] = {}
_left: deque[_EntryEnd] = deque()


class MappedFiles:
    """A register of the files of a directory that are mapped, by this process and by the others of the node.

    A process that maps a file holds a shared lock on one byte of a register, which is an empty file: the byte at the
    position of the file's inode number. The kernel releases it when the process dies. Who evicts a file locks that
    byte exclusively first. So the space of a file that was evicted is free, and no list can be out of date.

    A forked child holds no locks and has to drop the maps that it inherited. Files that are only opened do not count.
    Where the register cannot be locked, no file counts as mapped.

    It is thread-safe and pickles.

    Args:
        path: The register; made at the first use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owner = 0
        self._lock: LockFile | None = None
        self._counts: Counter[int] = Counter()

    def enter(self, path: Path, found: os.stat_result) -> object | None:
        """Record that this process has mapped a file; return what is to live as long as the map does.

        Args:
            path: The file's path.
            found: What ``fstat`` returned for the open file.

        Raises:
            FileNotFoundError: Another process has evicted the file, or is about to.
        """
        offset = found.st_ino & _LARGEST_OFFSET
        entry = _Entry()
        with _guard:
            _settle()
            lock = self._opened()
            if lock is None:
                return None
            if not self._counts[offset] and not _lock(lock, fcntl.F_RDLCK, offset):
                raise FileNotFoundError(errno.ENOENT, "it is being evicted", str(path))
            end = _EntryEnd(entry, _left.append)
            end.register, end.lock, end.offset = self, lock, offset
            # In this order: where a signal's handler raises between them, a file that is not mapped counts as mapped.
            self._counts[offset] += 1
            _awaited[id(end)] = end
        try:
            # Who evicts a file holds its lock until the name is gone. Some file systems change inode numbers at each
            # look: there, nothing is known, and no file is protected.
            named = os.lstat(path)
            if not os.path.samestat(named, found) and os.path.samestat(named, os.lstat(path)):
                raise FileNotFoundError(errno.ENOENT, "it was replaced", str(path))
        except BaseException:
            _left.append(end)
            _settle()
            raise
        # For other processes: this one asks for the ends before it looks at the register.
        on_collected(entry, _settle)
        return entry

    @contextlib.contextmanager
    def claimed(self, inode: int) -> Generator[bool]:
        """Keep a file from being mapped meanwhile; yield False if a process of the node has it mapped.

        Args:
            inode: The file's inode number.
        """
        _settle()
        # Another description of the register: the locks of this process exclude it, too. It is made if it is missing:
        # a process that made it meanwhile would lock another file.
        lock = self._made()
        if lock is None:
            yield True
            return
        with lock:
            yield _lock(lock, fcntl.F_WRLCK, inode & _LARGEST_OFFSET)

    def leave(self, lock: LockFile, offset: int) -> None:
        """Release the lock of what was unmapped. The caller holds the guard."""
        # After a fork, and after the directory was emptied, this process holds other locks.
        if lock is self._lock and self._owner == os.getpid():
            self._counts[offset] -= 1
            if not self._counts[offset]:
                del self._counts[offset]
                _lock(lock, fcntl.F_UNLCK, offset)

    def _opened(self) -> LockFile | None:
        lock = self._lock
        # The user may have emptied the directory.
        if lock is None or self._owner != os.getpid() or os.fstat(lock.descriptor).st_nlink == 0:
            self._owner = os.getpid()
            self._counts = Counter()
            lock = self._lock = self._made()
        return lock

    def _made(self) -> LockFile | None:
        try:
            return LockFile(self._path)
        except genuine(OSError) as error:
            if error.errno not in _NOT_POSSIBLE:
                raise
            return None

    def __getstate__(self) -> dict[str, object]:
        return {"_path": self._path, "_owner": 0, "_lock": None, "_counts": Counter()}


def _settle() -> None:
    """Release the locks of what was unmapped."""
    with _guard:
        while _left:
            end = _left.popleft()
            if _awaited.pop(id(end), None) is not None:
                end.register.leave(end.lock, end.offset)


def _lock(lock: LockFile, kind: int, offset: int) -> bool:
    """Set a lock; return False if another process's excludes it."""
    try:
        lock_byte(lock.descriptor, kind, offset)
    except genuine(OSError) as error:
        if error.errno in _BUSY:
            return False
        if error.errno not in (*_NOT_POSSIBLE, errno.EBADF):
            raise
    return True
