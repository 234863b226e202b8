"""Files that are there, and are files."""

import stat
from pathlib import Path

from fkat_data.errors import ShardCorruptError, ShardNotFoundError

__all__ = ["file_size"]


def file_size(path: Path) -> int:
    """Return a regular file's size in bytes; opening anything else might wait for ever.

    Raises:
        ShardNotFoundError: There is no such file.
        ShardCorruptError: It is a directory, a pipe or a device.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ShardNotFoundError(str(path), "no such file") from error
    if not stat.S_ISREG(found.st_mode):
        raise ShardCorruptError(str(path), "it is no regular file")
    return found.st_size
