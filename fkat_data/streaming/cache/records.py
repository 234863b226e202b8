"""What the processes of a node know of a cache's files: when each was last used, what all take, and which are mapped."""

import contextlib
import errno
import fcntl
import functools
import os
import struct
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from fkat_data.dropped import Descriptor, WeakTable, after_end
from fkat_data.interruption import genuine, suppress
from fkat_data.streaming.cache.locks import LockFile
from fkat_data.streaming.cache.paths import boot_id
from fkat_data.transport.record_locks import lock_byte

_HEADER = struct.Struct("<2Q")
_USES_MAGIC = 0x336365722E74666B
_USE = struct.Struct("<2Q")
_WINDOW = 16
_USES = struct.Struct(f"<{2 * _WINDOW}Q")
_NUM_USES = 1 << 19


class Recency:
    """When each file of a cache was last used: a table in a file that all processes of a node share.

    Its times are those of the monotonic clock, which the processes of a node share and which does not jump. After a
    restart of the machine, it begins again. Processes write without locks. If two meet in one entry, or the table
    (8 MiB, sparse, 524,288 entries) is full, a use may be lost: the file then counts as never used.

    It is thread-safe and pickles; each process opens the file itself.

    Args:
        path: The table's file; made at the first use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # A forked child may use it: it has no lock and no offset in use.
        self._file: Descriptor | None = None

    def touch(self, name: str) -> None:
        """Record that a file is used now; do nothing if the table is not writable."""
        self._write(name, time.monotonic_ns())

    def forget(self, name: str) -> None:
        """Clear the entry of a removed file."""
        self._write(name, 0)

    def last_use(self, name: str) -> int:
        """Return when a file was last used, in nanoseconds; 0 if it was never used."""
        with suppress(OSError):
            key, file = _key_of(name), self._opened()
            _, keys, times = _window(file.fileno(), key)
            if key in keys:
                return times[keys.index(key)]
        return 0

    def _write(self, name: str, time_ns: int) -> None:
        with suppress(OSError):
            key, file = _key_of(name), self._opened()
            offset, keys, times = _window(file.fileno(), key)
            if key in keys:
                place = keys.index(key)
            elif time_ns:
                place = keys.index(0) if 0 in keys else times.index(min(times))
            else:
                return
            entry = _USE.pack(key, time_ns) if time_ns else bytes(_USE.size)
            os.pwrite(file.fileno(), entry, offset + place * _USE.size)

    def _opened(self) -> Descriptor:
        """Return the table, open while the caller has it: another thread may put a new one in its place."""
        file = self._file
        # The user may have emptied the directory.
        if file is None or os.fstat(file.fileno()).st_nlink == 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            file = Descriptor(os.open(self._path, flags, 0o600))
            header = _HEADER.pack(_USES_MAGIC, boot_id())
            if os.pread(file.fileno(), _HEADER.size, 0) != header:
                with LockFile(self._path, os.O_RDWR) as lock:
                    lock.lock()
                    if os.pread(file.fileno(), _HEADER.size, 0) != header:
                        os.ftruncate(file.fileno(), 0)
                        os.ftruncate(file.fileno(), _HEADER.size + _NUM_USES * _USE.size)
                        os.pwrite(file.fileno(), header, 0)
            self._file = file
        return file

    def __getstate__(self) -> dict[str, object]:
        return {"_path": self._path, "_file": None}


def _key_of(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest(), "little") or 1


def _window(descriptor: int, key: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return where a key's entries begin, their keys and their times."""
    offset = _HEADER.size + key % (_NUM_USES - _WINDOW) * _USE.size
    entries = _USES.unpack(os.pread(descriptor, _USES.size, offset).ljust(_USES.size, b"\0"))
    return offset, entries[::2], entries[1::2]


_TOTAL_MAGIC = 0x32676C2E74666B
_TOTAL = struct.Struct("<2Q4q")
_DIGEST_BYTES = 8
#: Files that no cache made or removed are found at the latest then.
_LONGEST_NS = 600 * 10**9
_LEAST_CHANGES = 10_000


@dataclass(frozen=True)
class Counts:
    """What the files of a directory took when they were counted, and the changes since.

    Attributes:
        total_bytes: The sum of the files' sizes now, without the files in the making.
        num_files: Files when they were counted.
        counted_at_ns: When they were counted, by the monotonic clock.
        num_changes: Files made and removed since.
    """

    total_bytes: int
    num_files: int
    counted_at_ns: int
    num_changes: int = 0


class Ledger(LockFile):
    """A directory's lock, and in its file the record of what the directory's files take.

    A change is a record that says "unknown", the change of the files, and the new record. So a process that dies
    meanwhile leaves no wrong number: the next one that needs it counts the files. After a restart of the machine it
    counts them, too, as the disk may have kept other writes than these. Who reads or writes the record has the lock.
    """

    @functools.cached_property
    def _kept(self) -> list[Counts | None]:
        content = os.pread(self.descriptor, _TOTAL.size + _DIGEST_BYTES, 0)
        record = content[: _TOTAL.size]
        if len(record) < _TOTAL.size or content[_TOTAL.size :] != _digest_of(record):
            return [None]
        magic, boot, *numbers = _TOTAL.unpack(record)
        return [Counts(*numbers) if (magic, boot) == (_TOTAL_MAGIC, boot_id()) else None]

    @property
    def counts(self) -> Counts | None:
        """What the files take; None: unknown."""
        return self._kept[0]

    @property
    def is_due(self) -> bool:
        """Whether the files should be counted again.

        At most once for each file that was made or removed since, so that counting costs each a constant time.
        """
        counts = self.counts
        if counts is None:
            return True
        age_ns = time.monotonic_ns() - counts.counted_at_ns
        return not 0 <= age_ns < _LONGEST_NS or counts.num_changes > max(_LEAST_CHANGES, counts.num_files)

    @contextlib.contextmanager
    def changing(self, change_bytes: int) -> Generator[None]:
        """Record that the files will take ``change_bytes`` more, or less, after the ``with`` block.

        An exception in the block leaves "unknown".

        Raises:
            OSError: The disk failed before the block began.
        """
        counts = self.counts
        if counts is None:
            yield
            return
        self._kept[0] = None
        try:
            os.pwrite(self.descriptor, bytes(_DIGEST_BYTES), _TOTAL.size)
        except genuine(OSError):
            # It needs no space; if it fails, too, the files must not change.
            os.ftruncate(self.descriptor, 0)
        yield
        self.replace(replace(counts, total_bytes=counts.total_bytes + change_bytes, num_changes=counts.num_changes + 1))

    def replace(self, counts: Counts) -> None:
        """Write a new record. If the disk refuses it, the record says "unknown" for the next process."""
        self._kept[0] = counts
        content = _TOTAL.pack(
            *(_TOTAL_MAGIC, boot_id(), counts.total_bytes, counts.num_files, counts.counted_at_ns, counts.num_changes)
        )
        with suppress(OSError):
            os.pwrite(self.descriptor, content + _digest_of(content), 0)


def _digest_of(record: bytes) -> bytes:
    return blake2b(record, digest_size=_DIGEST_BYTES).digest()


# Held during a fork: otherwise a child could inherit a set that another thread was changing.
_guard = threading.RLock()


class MapOwner(Protocol):
    """Keeps files mapped between two uses."""

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


_MOST_PLACE = (1 << 62) - 1
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
    """Goes to a deque at an entry's end, which may come in any statement: no code of Python runs then."""

    __slots__ = ("lock", "place", "register")
    register: "MappedFiles"
    lock: LockFile
    place: int


# The ends to come, and those that have come, of all registers of this process.
_awaited: dict[int, _EntryEnd] = {}
_left: deque[_EntryEnd] = deque()


class MappedFiles:
    """Which files of a directory are mapped, by this process and by the others of the node.

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
        place = found.st_ino & _MOST_PLACE
        entry = _Entry()
        with _guard:
            _settle()
            lock = self._opened()
            if lock is None:
                return None
            if not self._counts[place] and not _lock(lock, fcntl.F_RDLCK, place):
                raise FileNotFoundError(errno.ENOENT, "it is being evicted", str(path))
            end = _EntryEnd(entry, _left.append)
            end.register, end.lock, end.place = self, lock, place
            # In this order: where a signal's handler raises between them, a file that is not mapped counts as mapped.
            self._counts[place] += 1
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
        after_end(entry, _settle)
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
            yield _lock(lock, fcntl.F_WRLCK, inode & _MOST_PLACE)

    def leave(self, lock: LockFile, place: int) -> None:
        """Release the lock of what was unmapped. The caller holds the guard."""
        # After a fork, and after the directory was emptied, this process holds other locks.
        if lock is self._lock and self._owner == os.getpid():
            self._counts[place] -= 1
            if not self._counts[place]:
                del self._counts[place]
                _lock(lock, fcntl.F_UNLCK, place)

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
                end.register.leave(end.lock, end.place)


def _lock(lock: LockFile, kind: int, place: int) -> bool:
    """Set a lock; return False if another process's excludes it."""
    try:
        lock_byte(lock.descriptor, kind, place)
    except genuine(OSError) as error:
        if error.errno in _BUSY:
            return False
        if error.errno not in (*_NOT_POSSIBLE, errno.EBADF):
            raise
    return True
