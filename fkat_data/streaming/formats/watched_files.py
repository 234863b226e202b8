"""The mapped files of an open shard, to notice that one is changed in place."""

import os
from pathlib import Path

from fkat_data.errors import ShardCorruptError
from fkat_data.interruption import genuine
from fkat_data.streaming.formats.mapping import MapRegister


class WatchedFiles:
    """The files that a reader maps: a ``MapRegister`` that also remembers what each was when it was mapped.

    A file that shrinks ends the process at the next access to the missing bytes, and a file that is written in place
    mixes two contents. A file that is removed or replaced by another one does neither: the map keeps the old content.

    Args:
        register: Records the maps; None: they are not recorded.
    """

    def __init__(self, register: MapRegister | None) -> None:
        self._register = register
        self._mapped: list[tuple[str, os.stat_result]] = []

    def enter(self, path: Path, found: os.stat_result) -> object | None:
        """Record that this process maps a file; see ``MapRegister``."""
        lives_with_map = None if self._register is None else self._register.enter(path, found)
        self._mapped.append((str(path), found))
        return lives_with_map

    def check(self) -> None:
        """Check that no file was changed in place. Takes one look at each.

        Raises:
            ShardCorruptError: One was.
        """
        for path, before in self._mapped:
            try:
                now = os.stat(path)  # noqa: PTH116 - a Path takes longer
            except genuine(OSError):
                continue
            # Some mounts give one file another inode number at each look.
            is_same_file = now.st_ino == before.st_ino
            if now.st_size != before.st_size or (is_same_file and now.st_mtime_ns != before.st_mtime_ns):
                raise ShardCorruptError(
                    path,
                    f"the file was changed while it was in use: it had {before.st_size} bytes, and now has "
                    f"{now.st_size}; the dataset was written again, or the file is damaged",
                )
