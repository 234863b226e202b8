"""What Python does not offer: two system calls, and the id of this start of the machine."""

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path

__all__ = ["allocate", "boot_id", "file_system_of", "is_node_local"]

_C = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE = 1
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STATFS_BYTES = 256  # more than any kernel's structure

#: File systems that only one kernel mounts, by their numbers in statfs(2).
_NODE_LOCAL = frozenset(
    {
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # XFS
        0x9123683E,  # Btrfs
        0x01021994,  # tmpfs
        0x858458F6,  # ramfs
        0x794C7630,  # overlayfs
        0x2FC12FC1,  # ZFS
        0xF2F52010,  # F2FS
        0xCA451A4E,  # bcachefs
        0x3153464A,  # JFS
        0x52654973,  # ReiserFS
        0xF15F,  # eCryptfs
    }
)


def is_node_local(file_system: int) -> bool:
    """Return whether only one machine mounts a file system of this kind.

    False for NFS, Lustre, GPFS, Ceph, BeeGFS, SMB, user space (FUSE) and unknown kinds: there, a lock may hold on one
    machine only, or reach others late.

    Args:
        file_system: Its number, from ``file_system_of``.
    """
    return file_system in _NODE_LOCAL


def file_system_of(path: Path) -> int:
    """Return the number of the file system that a path is on.

    Raises:
        OSError: The path does not exist, or is not accessible.
    """
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    _call(path, _C.statfs, os.fsencode(path), found)
    # A machine word, which some kernels sign-extend.
    return int.from_bytes(found.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF


@cache
def boot_id() -> int:
    """Return a number of 64 bits that changes when the machine restarts; a constant where the kernel has no such id."""
    try:
        text = _BOOT.read_bytes()
    except OSError:
        text = b""
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def allocate(descriptor: int, size_bytes: int) -> None:
    """Reserve disk space for an open file without changing its size, where the file system supports it.

    Raises:
        OSError: The disk has not enough space.
    """
    if size_bytes == 0:
        return
    try:
        _call(None, _C.fallocate, descriptor, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size_bytes))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def _call(path: Path | None, function: Callable[..., int], *arguments: object) -> None:
    while function(*arguments) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), *([] if path is None else [str(path)]))
