"""The size of a regular file, and whether two paths lead to one file."""

import os
import stat
from pathlib import Path

from fkat_data.errors import ShardCorruptError, ShardNotFoundError
from fkat_data.interruption import genuine


def file_size(path: Path) -> int:
    """Return a regular file's size in bytes. Refuse pipes and devices, which could block forever when opened.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The path is a directory, a pipe or a device.
    """
    try:
        found = path.stat()
    except genuine(FileNotFoundError, NotADirectoryError) as error:
        raise ShardNotFoundError(str(path), "no such file") from error
    if not stat.S_ISREG(found.st_mode):
        raise ShardCorruptError(str(path), "not a regular file")
    return found.st_size


def is_same_place(first: Path, second: Path) -> bool:
    """Return whether two paths lead to one file or directory, whatever their spelling, even before it exists.

    Symbolic links, relative paths and bind mounts do not matter: what exists is compared by device and inode.
    """
    try:
        return first.samefile(second)
    except genuine(OSError):
        # Unlike Path.resolve, this does not raise for links that lead in a circle.
        first, second = Path(os.path.realpath(first)), Path(os.path.realpath(second))
    if first == second:
        return True
    if first.name != second.name or first.parent == first or second.parent == second:
        return False
    return is_same_place(first.parent, second.parent)
