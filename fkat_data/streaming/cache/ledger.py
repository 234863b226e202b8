"""What the files of a cache's directory take: one record that every process changes under a lock."""

import contextlib
import os
import struct
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Self

from fkat_data.interruption import genuine, suppress
from fkat_data.streaming.cache.locks import LockFile
from fkat_data.streaming.cache.system import boot_id

_MAGIC = 0x31676C2E74666B
_RECORD = struct.Struct("<2Q6q")
_DIGEST_BYTES = 8
_MOST_REOPENED = 100
#: Files that no cache made or removed are found at the latest then.
_LONGEST_NS = 600 * 10**9
_LEAST_CHANGES = 10_000


@dataclass(frozen=True)
class Counts:
    """What the files of a directory took when they were counted, and the changes since.

    Attributes:
        total_bytes: The sum of the files' sizes now, without the files in the making.
        num_files: Files when they were counted.
        num_changes: Files made and removed since.
        counted_at_ns: When they were counted, by the monotonic clock.
        queue_start: Where the rest of the list of evictable files begins; see ``Stock``.
        queue_end: Where it ends.
    """

    total_bytes: int
    num_files: int
    num_changes: int
    counted_at_ns: int
    queue_start: int = 0
    queue_end: int = 0


class Ledger:
    """A directory's lock, and under it the record of what its files take.

    A change is a record that says "unknown", the change of the files, and the new record. So a process that dies
    meanwhile leaves no wrong number: the next one that needs it counts the files. After a restart of the machine it
    counts them, too, as the disk may have kept other writes than these.

    Args:
        opened: Opens the record's file. It raises OSError if the directory is not writable, and the error is passed on.

    Attributes:
        counts: What the files take; None: unknown.
    """

    def __init__(self, opened: Callable[[], LockFile]) -> None:
        self._lock = opened()
        self.counts: Counts | None = None
        try:
            # Bounded, for file systems that change inode numbers at each look.
            for _ in range(_MOST_REOPENED):
                self._lock.lock()
                if self._lock.is_there:
                    break
                # The user has emptied the directory.
                self._lock.close()
                self._lock = opened()
            self.counts = self._read()
        except BaseException:
            self._lock.close()
            raise

    @property
    def is_due(self) -> bool:
        """Whether the files should be counted again.

        At most once for each file that was made or removed since, so that counting costs each a constant time.
        """
        counts = self.counts
        if counts is None:
            return True
        age_ns = time.monotonic_ns() - counts.counted_at_ns
        return not 0 <= age_ns < _LONGEST_NS or counts.num_changes > max(_LEAST_CHANGES, counts.num_files)

    @contextlib.contextmanager
    def changing(self, change_bytes: int) -> Generator[None]:
        """Record that the files will take ``change_bytes`` more, or less, after the ``with`` block.

        An exception in the block leaves "unknown".

        Raises:
            OSError: The disk failed before the block began.
        """
        counts = self.counts
        if counts is None:
            yield
            return
        self._invalidate()
        yield
        self.replace(replace(counts, total_bytes=counts.total_bytes + change_bytes, num_changes=counts.num_changes + 1))

    @contextlib.contextmanager
    def unknown(self) -> Generator[None]:
        """Have the record say "unknown" while the caller changes what belongs to it."""
        self._invalidate()
        yield

    def replace(self, counts: Counts) -> None:
        """Write a new record. If the disk refuses it, the record says "unknown" for the next process."""
        self.counts = counts
        content = _RECORD.pack(
            *(_MAGIC, boot_id(), counts.total_bytes, counts.num_files, counts.num_changes, counts.counted_at_ns),
            *(counts.queue_start, counts.queue_end),
        )
        with suppress(OSError):
            os.pwrite(self._lock.descriptor, content + _digest_of(content), 0)

    def pass_over(self, queue_start: int) -> None:
        """Move the start of the list on; the next change writes it."""
        if self.counts is not None:
            self.counts = replace(self.counts, queue_start=min(queue_start, self.counts.queue_end))

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def _read(self) -> Counts | None:
        content = os.pread(self._lock.descriptor, _RECORD.size + _DIGEST_BYTES, 0)
        record, digest = content[: _RECORD.size], content[_RECORD.size :]
        if len(record) < _RECORD.size or digest != _digest_of(record):
            return None
        magic, boot, *numbers = _RECORD.unpack(record)
        return Counts(*numbers) if (magic, boot) == (_MAGIC, boot_id()) else None

    def _invalidate(self) -> None:
        self.counts = None
        try:
            os.pwrite(self._lock.descriptor, bytes(_DIGEST_BYTES), _RECORD.size)
        except genuine(OSError):
            # It needs no space; if it fails, too, the files must not change.
            os.ftruncate(self._lock.descriptor, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _digest_of(record: bytes) -> bytes:
    return blake2b(record, digest_size=_DIGEST_BYTES).digest()
