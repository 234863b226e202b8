"""The exclusive right to write a dataset, which ends with the process that holds it."""

import os
import tempfile
from collections.abc import Iterable
from hashlib import blake2s
from pathlib import Path
from typing import Self

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import suppress
from fkat_data.streaming.cache.locks import LockFile

__all__ = ["LOCK_NAME", "WriterLock"]

#: The file in a directory that is being written; readers and ``merge_index`` ignore it.
LOCK_NAME = ".fkat_data.writing"
_MOST_REMOVALS = 100


class WriterLock:
    """The exclusive right to write to one or more places, from the constructor to ``close``.

    Each place has a lock in this node's temporary directory. A local directory also has one of its own, so that it
    excludes writers on other nodes where the file system has locks across nodes. A place that cannot have a lock, such
    as a directory on a file system without locks, has none.

    Args:
        shown: The place, for messages.
        keys: A text for each place, equal for equal places.
        directory: The local directory, which exists; None if there is none.

    Raises:
        ConfigurationError: Another writer holds the right.
    """

    def __init__(self, shown: str, keys: Iterable[str], directory: Path | None) -> None:
        self._owner = os.getpid()
        self._held: list[tuple[LockFile, Path]] = []
        paths = [_of_this_node(key) for key in sorted(set(keys))]
        try:
            for path in [*paths, *([] if directory is None else [directory / LOCK_NAME])]:
                with suppress(OSError):
                    if not self._take(path):
                        raise ConfigurationError("out", shown, "a place that no other writer is writing to")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the right back, if this process took it."""
        while self._held:
            lock, path = self._held.pop()
            # A file that cannot be removed, as the directory is gone or read-only, is no lock once it is closed.
            with lock, suppress(OSError):
                if os.getpid() == self._owner:
                    path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, path: Path) -> bool:
        # The holder removes the file when it closes, and a lock on a removed file excludes no process.
        for _ in range(_MOST_REMOVALS):
            lock = LockFile(path)
            if not lock.try_lock():
                lock.close()
                return False
            if lock.is_there:
                self._held.append((lock, path))
                break
            lock.close()
        return True


def _of_this_node(key: str) -> Path:
    digest = blake2s(os.fsencode(key), digest_size=16).hexdigest()
    return Path(tempfile.gettempdir(), f"fkat_data-{os.geteuid()}-{digest}.writing")
