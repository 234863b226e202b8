"""Locks on bytes of a file, by the system's ``struct flock``: its fields have another order on macOS than on Linux."""

import errno
import fcntl
import os
import struct
import sys

from fkat_data.runtime.interruption import suppress

# Linux: type, what the start counts from, start, length, process id. macOS: start, length, process id, and these two.
_LINUX, _DARWIN = struct.Struct("@hhqqi0q"), struct.Struct("@qqihh")


def lock_byte(descriptor: int, kind: int, offset: int) -> None:
    """Set a lock on one byte, which belongs to the open file and not to the process; do not wait for it.

    Args:
        descriptor: The open file.
        kind: ``fcntl.F_RDLCK``, ``fcntl.F_WRLCK`` or ``fcntl.F_UNLCK``.
        offset: The byte.

    Raises:
        OSError: Another open file's lock excludes it, or the file or the system has no such locks.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _packed(kind, offset, 1))


def holder_pid(descriptor: int) -> int | None:
    """Return the process that locks any part of a file by ``fcntl.lockf``; None if no other process does."""
    with suppress(OSError, struct.error):
        found = fcntl.fcntl(descriptor, fcntl.F_GETLK, _packed(fcntl.F_WRLCK, 0, 0))
        if sys.platform == "darwin":
            _, _, pid, kind, _ = _DARWIN.unpack(found)
        else:
            kind, _, _, _, pid = _LINUX.unpack(found)
        return pid if kind != fcntl.F_UNLCK and pid > 0 else None
    return None


def _packed(kind: int, start: int, length: int) -> bytes:
    if sys.platform == "darwin":
        return _DARWIN.pack(start, length, 0, kind, os.SEEK_SET)
    return _LINUX.pack(kind, os.SEEK_SET, start, length, 0)
