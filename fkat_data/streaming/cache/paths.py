"""Paths below a directory, without symbolic links."""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fkat_data.errors import ShardCorruptError
from fkat_data.interruption import genuine, suppress

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


def files_in_the_making(root: str) -> Iterator[StoredFile]:
    """Yield the files that a cache's processes are making, at their final sizes.

    Args:
        root: The cache's directory.
    """
    # Another user's: this one cannot make files there.
    with suppress(PermissionError):
        for file in files_below(f"{root}/{BOOKKEEPING}/{MAKING}", f"{BOOKKEEPING}/{MAKING}/"):
            size_bytes = max(file.size_bytes, reserved_bytes(file.name.rpartition("/")[2]))
            yield file._replace(size_bytes=size_bytes)


def counted_bytes(found: os.stat_result) -> int:
    """Return what a file counts: its size; 0 for a link or a folder."""
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def reserved_bytes(name: str) -> int:
    """Return the final size that the name of a file in the making states; 0 if it states none."""
    found = _TEMPORARY.fullmatch(name)
    return int(found[1]) if found else 0
