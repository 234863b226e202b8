"""The size of a regular file."""

import stat
from pathlib import Path

from fkat_data.errors import ShardCorruptError, ShardNotFoundError

__all__ = ["file_size"]


def file_size(path: Path) -> int:
    """Return a regular file's size in bytes. Refuse pipes and devices, which could block forever when opened.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The path is a directory, a pipe or a device.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ShardNotFoundError(str(path), "no such file") from error
    if not stat.S_ISREG(found.st_mode):
        raise ShardCorruptError(str(path), "not a regular file")
    return found.st_size
