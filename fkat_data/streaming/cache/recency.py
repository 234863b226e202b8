"""When each file of a cache was last used, by the monotonic clock."""

import os
import struct
import time
from hashlib import blake2b
from pathlib import Path

import numpy as np

from fkat_data.dropped import Descriptor
from fkat_data.interruption import genuine, suppress
from fkat_data.streaming.cache.locks import LockFile
from fkat_data.streaming.cache.system import boot_id

_MAGIC = 0x326365722E74666B
_HEADER = struct.Struct("<QQQQ")
_ENTRY = struct.Struct("<QQ")
_WINDOW = 16
_ENTRIES = struct.Struct(f"<{2 * _WINDOW}Q")
_NUM_ENTRIES = 1 << 19
_FILE_BYTES = _HEADER.size + _NUM_ENTRIES * _ENTRY.size
_MOST = 1 << 62


class Recency:
    """When each file of a cache was last used: a table in a file that all processes of a node share.

    Its times are those of the monotonic clock, which the processes of a node share and which does not jump. The boot
    id shows a restart of the machine: uses before it are older than all after it. Processes write without locks. If
    two meet in one entry, or the table (8 MiB, sparse, 524,288 entries) is full, a use may be lost: the file then
    counts as never used.

    It is thread-safe and pickles; each process opens the file itself.

    Args:
        path: The table's file; made at the first use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: _Table | None = None

    def touch(self, name: str) -> None:
        """Record that a file is used now; do nothing if the table is not writable."""
        self._write(name, is_used=True)

    def forget(self, name: str) -> None:
        """Clear the entry of a removed file."""
        self._write(name, is_used=False)

    def last_uses(self) -> dict[int, int]:
        """Return when files were last used, in nanoseconds by their keys, without those never used.

        Values of several tables of one machine compare.
        """
        table = self._opened()
        if table is None:
            return {}
        found = np.frombuffer(os.pread(table.descriptor, _FILE_BYTES, 0)[_HEADER.size :], "<u8")
        found = found[: len(found) // 2 * 2].reshape(-1, 2)
        found = found[(found[:, 0] != 0) & (found[:, 1] < _MOST)]
        return {key: tick - table.base for key, tick in found.tolist()}

    def last_use(self, name: str) -> int | None:
        """Return when a file was last used, as in ``last_uses``; None if it was never used."""
        table = self._opened()
        if table is None:
            return None
        key = self.key_of(name)
        with suppress(OSError):
            _, keys, ticks = self._window(table, key)
            if key in keys and (tick := ticks[keys.index(key)]) < _MOST:
                return tick - table.base
        return None

    @staticmethod
    def key_of(name: str) -> int:
        """Return a file's key in the table."""
        return int.from_bytes(blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest(), "little") or 1

    def _write(self, name: str, *, is_used: bool) -> None:
        table = self._opened()
        if table is None:
            return
        key = self.key_of(name)
        with suppress(OSError):
            offset, keys, ticks = self._window(table, key)
            place = _place(key, keys, ticks, is_used=is_used)
            if place is not None:
                tick = table.base + time.monotonic_ns()
                entry = _ENTRY.pack(key, tick) if is_used else bytes(_ENTRY.size)
                os.pwrite(table.descriptor, entry, offset + place * _ENTRY.size)

    def _window(self, table: "_Table", key: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Return where a key's entries begin, their keys and their ticks."""
        offset = _HEADER.size + key % (_NUM_ENTRIES - _WINDOW) * _ENTRY.size
        seen = os.pread(table.descriptor, _ENTRIES.size, offset)
        entries = _ENTRIES.unpack(seen.ljust(_ENTRIES.size, b"\0"))
        return offset, entries[::2], entries[1::2]

    def _opened(self) -> "_Table | None":
        table = self._table
        # The user may have emptied the directory.
        if table is None or os.fstat(table.descriptor).st_nlink == 0:
            try:
                table = self._table = _Table(self._path)
            except genuine(OSError):
                return None
        return table

    def __getstate__(self) -> dict[str, object]:
        return {"_path": self._path, "_table": None}


def _place(key: int, keys: tuple[int, ...], ticks: tuple[int, ...], *, is_used: bool) -> int | None:
    if key in keys:
        return keys.index(key)
    if not is_used:
        return None
    return keys.index(0) if 0 in keys else ticks.index(min(ticks))


class _Table:
    """The open file. A forked child may use it: it has no lock and no offset in use."""

    def __init__(self, path: Path) -> None:
        self._file = Descriptor(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self.descriptor = self._file.fileno()
        base = self._base()
        if base is None:
            with LockFile(path, os.O_RDWR) as lock:
                lock.lock()
                base = self._base()
                if base is None:
                    base = self._begin()
        self.base = base

    def _base(self) -> int | None:
        """Return what to add to this boot's times; None before the first use since the boot."""
        header = os.pread(self.descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return None
        magic, boot, base, _ = _HEADER.unpack(header)
        return base if magic == _MAGIC and boot == boot_id() and base < _MOST else None

    def _begin(self) -> int:
        content = os.pread(self.descriptor, _FILE_BYTES, 0)
        base = 0
        if len(content) > _HEADER.size and _HEADER.unpack_from(content)[0] == _MAGIC:
            ticks = np.frombuffer(content[_HEADER.size : len(content) // 8 * 8], "<u8")[1::2]
            base = int(ticks[ticks < _MOST].max(initial=0)) + 1
        if not 0 < base < _MOST // 2:
            base = 0
            os.ftruncate(self.descriptor, 0)
        os.ftruncate(self.descriptor, _FILE_BYTES)
        os.pwrite(self.descriptor, _HEADER.pack(_MAGIC, boot_id(), base, 0), 0)
        return base
