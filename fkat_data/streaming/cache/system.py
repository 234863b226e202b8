"""What Python does not offer: the kind of a file system, room that is reserved on a disk, and this start of the machine."""

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path

from fkat_data.interruption import genuine
from fkat_data.machine import boot_text

_C = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE = 1
_STATFS_BYTES = 256  # more than any kernel's structure

#: Stands for each of ``_MAC_LOCAL_NAMES``: "APFS" in ASCII.
_MAC_LOCAL = 0x41504653
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
        _MAC_LOCAL,
    }
)
#: Those of macOS, which have names instead of numbers that stay.
_MAC_LOCAL_NAMES = frozenset({"apfs", "hfs", "exfat", "msdos", "tmpfs"})


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
    if sys.platform != "linux":
        return _MAC_LOCAL if _file_system_name(path) in _MAC_LOCAL_NAMES else 0
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    _call(path, _C.statfs, os.fsencode(path), found)
    # A machine word, which some kernels sign-extend.
    return int.from_bytes(found.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF


def _file_system_name(path: Path) -> str:
    """Return the name of the file system that a path is on; "" if the system does not tell."""
    import psutil  # noqa: PLC0415 - Linux does not need it

    path = path.resolve(strict=True)
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""


@cache
def boot_id() -> int:
    """Return a number of 64 bits that changes when the machine restarts."""
    return int.from_bytes(blake2b(boot_text().encode(), digest_size=8).digest(), "little")


def allocate(descriptor: int, size_bytes: int) -> None:
    """Reserve disk space for an open file without changing its size, where the file system supports it.

    Raises:
        OSError: The disk has not enough space.
    """
    if size_bytes == 0 or not hasattr(_C, "fallocate"):
        return
    try:
        _call(None, _C.fallocate, descriptor, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size_bytes))
    except genuine(OSError) as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def _call(path: Path | None, function: Callable[..., int], *arguments: object) -> None:
    while function(*arguments) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), *([] if path is None else [str(path)]))
