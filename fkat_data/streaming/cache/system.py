"""Two calls of the kernel that Python does not offer, and what they tell."""

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["allocate", "file_system_of", "is_node_local"]

_C = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE = 1
_STATFS_BYTES = 256  # more than any kernel's structure

#: Numbers of file systems that only one kernel has mounted, as statfs(2) gives them.
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
    """Return whether a file system is known to be mounted by one machine alone.

    NFS, Lustre, GPFS, Ceph, BeeGFS, SMB and everything in user space (FUSE) are not, nor is what is unknown: a lock
    there may hold between processes of one machine only, or be seen late.

    Args:
        file_system: Its number, from ``file_system_of``.
    """
    return file_system in _NODE_LOCAL


def file_system_of(path: Path) -> int:
    """Return the number of the file system that a path is on.

    Raises:
        OSError: The path cannot be looked at.
    """
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    _call(path, _C.statfs, os.fsencode(path), found)
    # A word of the machine, which some kernels sign-extend.
    return int.from_bytes(found.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF


def allocate(descriptor: int, size_bytes: int) -> None:
    """Reserve room on the disk for an open file, whose size stays as it is; nothing where that is not offered.

    Raises:
        OSError: There is not so much room.
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
