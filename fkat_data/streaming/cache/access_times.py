"""The times at which the files of a cache were last used, for all processes of a node."""

import os
import struct
import time
from hashlib import blake2b
from pathlib import Path

from fkat_data.runtime.interruption import suppress
from fkat_data.runtime.lifetime import Descriptor
from fkat_data.streaming.cache.locks import LockFile
from fkat_data.streaming.cache.paths import boot_id

_HEADER = struct.Struct("<2Q")
_USES_MAGIC = 0x336365722E74666B
_USE = struct.Struct("<2Q")
_WINDOW = 16
_USES = struct.Struct(f"<{2 * _WINDOW}Q")
_NUM_USES = 1 << 19


class AccessTimes:
    """A table of when each file of a cache was last used, in a file that all processes of a node share.

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
                slot = keys.index(key)
            elif time_ns:
                slot = keys.index(0) if 0 in keys else times.index(min(times))
            else:
                return
            entry = _USE.pack(key, time_ns) if time_ns else bytes(_USE.size)
            os.pwrite(file.fileno(), entry, offset + slot * _USE.size)

    def _opened(self) -> Descriptor:
        """Return the table, open while the caller has it: another thread may replace it."""
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
