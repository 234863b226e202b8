"""The disk below a cache: paths without symbolic links, and what Python does not offer of file systems and of the machine."""

import contextlib
import ctypes
import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from fkat_data.errors import ShardCorruptError
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.machine import boot_text

#: The folder in a cache's directory for what is not a shard.
BOOKKEEPING = ".fkat_data"
#: In ``BOOKKEEPING``: the files in the making, named ``<random>.<size>``.
MAKING = "making"

_PLAIN = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
_TEMPORARY = re.compile(r"[0-9a-f]+\.([0-9]{1,18})", re.ASCII)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class StoredFile(NamedTuple):
    """One file of a cache.

    Attributes:
        name: Its path relative to the cache's directory.
        size_bytes: Its size; for a file in the making, its final size if that is more.
        changed_ns: When it was last changed, by the wall clock.
    """

    name: str
    size_bytes: int
    changed_ns: int


def parts_of(name: str) -> list[str]:
    """Return a name's folders and its last part.

    Raises:
        ShardCorruptError: It leaves the directory, or names a bookkeeping file.
    """
    parts = name.split("/")
    if not _PLAIN.fullmatch(name) and (
        "\0" in name or parts[0] == BOOKKEEPING or any(part in ("", ".", "..") for part in parts)
    ):
        raise ShardCorruptError.of_field(name, "basename", "a path within the dataset's directory", name)
    return parts


@contextlib.contextmanager
def opened_folder(root: Path, folders: Sequence[str], *, is_made: bool = False) -> Generator[int]:
    """Open a folder below a directory and yield its descriptor.

    Args:
        root: The directory; a symbolic link may lead to it.
        folders: The path from there.
        is_made: Whether to make missing folders.

    Raises:
        FileNotFoundError: The folder does not exist.
        ShardCorruptError: A part of the path is a symbolic link or not a folder.
    """
    descriptor = os.open(root, _FOLDER)
    try:
        for depth, folder in enumerate(folders, start=1):
            if is_made:
                with suppress(FileExistsError):
                    os.mkdir(folder, dir_fd=descriptor)
            try:
                below = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            except genuine(OSError) as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                path = root.joinpath(*folders[:depth])
                raise ShardCorruptError(str(path), "it is not a folder (symbolic links are not followed)") from error
            above, descriptor = descriptor, below
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def files_below(root: str, prefix: str = "") -> Iterator[StoredFile]:
    """Yield the regular files in a directory and its folders, except what belongs to a cache.

    Leaves out ``BOOKKEEPING``, folders that are caches of their own, and files that vanish meanwhile.

    Args:
        root: The directory, without symbolic links in its path.
        prefix: A prefix for the names.
    """
    try:
        entries = list(os.scandir(root))
    except genuine(FileNotFoundError, NotADirectoryError):
        return
    if prefix and any(entry.name == BOOKKEEPING for entry in entries):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name != BOOKKEEPING:
                yield from files_below(entry.path, f"{prefix}{entry.name}/")
            continue
        with suppress(FileNotFoundError):
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                yield StoredFile(prefix + entry.name, found.st_size, found.st_mtime_ns)


def counted_bytes(found: os.stat_result) -> int:
    """Return what a file counts: its size; 0 for a link or a folder."""
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def reserved_bytes(name: str) -> int:
    """Return the final size that the name of a file in the making states; 0 if it states none."""
    found = _TEMPORARY.fullmatch(name)
    return int(found[1]) if found else 0


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
