"""The open shards that a process keeps between two reads."""

import os
from pathlib import Path

from fkat_data.interruption import genuine
from fkat_data.streaming.cache.idle_maps import register_map_owner
from fkat_data.streaming.formats.reader import ShardReader
from fkat_data.streaming.formats.watched_files import WatchedFiles

__all__ = ["KeptReaders", "share_of_disk"]

#: With more of the disk free than this part, what is mapped does no harm.
_PART_FREE = 8


class KeptReaders:
    """Open shards by their numbers, in the order of their last use.

    One thread reads. Any thread may have all be closed, so each method is one operation on a dict at a time. A reader
    in use stays open until its user drops it.
    """

    def __init__(self) -> None:
        self._readers: dict[int, tuple[ShardReader, WatchedFiles, int]] = {}

    @classmethod
    def of_cached_shards(cls) -> "KeptReaders":
        """Return one whose readers are closed when a cache of this process needs their space, and in forked children."""
        made = cls()
        register_map_owner(made)
        return made

    def __contains__(self, shard: int) -> bool:
        return shard in self._readers

    def use(self, shard: int) -> tuple[ShardReader, WatchedFiles] | None:
        """Return an open shard and its files, and count it as used now; None if it is not open."""
        found = self._readers.pop(shard, None)
        if found is None:
            return None
        self._readers[shard] = found
        return found[:2]

    def keep(self, shard: int, reader: ShardReader, files: WatchedFiles, size_bytes: int) -> None:
        """Keep an open shard, as used now."""
        self._readers[shard] = reader, files, size_bytes

    def drop(self, shard: int) -> None:
        """Close a shard if it is open."""
        self._readers.pop(shard, None)

    def close_coldest(self, most: int, most_bytes: int | None) -> None:
        """Close the shards that were used longest ago until at most ``most`` are left, of ``most_bytes`` together."""
        num_bytes = 0 if most_bytes is None else sum(size_bytes for *_, size_bytes in list(self._readers.values()))
        for shard in list(self._readers):
            if len(self._readers) <= most and (most_bytes is None or num_bytes <= most_bytes):
                return
            found = self._readers.pop(shard, None)
            num_bytes -= 0 if found is None else found[2]

    def give_back(self) -> None:
        """Close all shards that are not being read."""
        self._readers.clear()


def share_of_disk(directory: Path, num_processes: int) -> int | None:
    """Return how many bytes a process may keep mapped of a directory's files; None: any number.

    The files of a full disk can only be evicted if no process keeps them mapped.

    Args:
        directory: The directory.
        num_processes: The processes that read its files.
    """
    try:
        disk = os.statvfs(directory)
    except genuine(OSError):
        return None
    return None if disk.f_bavail * _PART_FREE >= disk.f_blocks else disk.f_bavail * disk.f_frsize // (2 * num_processes)
