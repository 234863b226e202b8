"""What tells two contents of a file apart without reading them: its size, when it was changed, and which file it is."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from fkat_data.counted_file import VERSIONS
from fkat_data.errors import ShardCorruptError


class FileVersion(NamedTuple):
    """A file as it is at one moment.

    Attributes:
        size_bytes: Its size.
        time: When it was changed: nanoseconds, or what a store calls the content; None: unknown.
        inode: Which file of its file system it is; None for one of a store.
    """

    size_bytes: int
    time: int | str | None = None
    inode: int | None = None

    @classmethod
    def of(cls, file: int | str) -> "FileVersion":
        """Return the version of a local file.

        Args:
            file: Its path, or a descriptor.

        Raises:
            OSError: There is no such file.
        """
        found = os.stat(file)  # noqa: PTH116 - a descriptor has no Path
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)

    @classmethod
    def of_remote(cls, file: Any) -> "FileVersion":
        """Return the version of an open file of fsspec, as its store described it when it was opened."""
        details: Any = getattr(file, "details", None)
        found: Mapping[str, Any] = cast("Mapping[str, Any]", details) if isinstance(details, Mapping) else {}
        version = next((found[key] for key in VERSIONS if found.get(key)), None)
        return cls(int(found.get("size") or 0), None if version is None else str(version))

    def is_changed_from(self, before: "FileVersion") -> bool:
        """Return whether a file was written again, where both versions are of the same descriptor.

        It has the same file then, also once another one has replaced it. Some mounts give one file another inode number
        at each look.
        """
        return (self.size_bytes, self.time) != (before.size_bytes, before.time)


def changed(path: str, reason: str = "it was written again while it was in use") -> ShardCorruptError:
    """Return the error of a file that is no longer the one that a dataset was made of."""
    return ShardCorruptError(path, f"the file has changed: {reason}; make the dataset again, or restore the file")
