"""The bytes that the files of a cache take together, recorded for all processes of a node."""

import contextlib
import functools
import os
import struct
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from hashlib import blake2b

from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.streaming.cache.locks import LockFile
from fkat_data.streaming.cache.paths import boot_id

_TOTAL_MAGIC = 0x32676C2E74666B
_TOTAL = struct.Struct("<2Q4q")
_DIGEST_BYTES = 8
#: Files that no cache made or removed are found at the latest then.
_LONGEST_NS = 600 * 10**9
_LEAST_CHANGES = 10_000


@dataclass(frozen=True)
class Counts:
    """The bytes and files of a directory when they were counted, and the changes since.

    Attributes:
        total_bytes: The sum of the files' sizes now, without the files in the making.
        num_files: Files when they were counted.
        counted_at_ns: When they were counted, by the monotonic clock.
        num_changes: Files made and removed since.
    """

    total_bytes: int
    num_files: int
    counted_at_ns: int
    num_changes: int = 0


class UsageLedger(LockFile):
    """A directory's lock, and in its file the record of the bytes that the directory's files take.

    A change is a record that says "unknown", the change of the files, and the new record. So a process that dies
    meanwhile leaves no wrong number: the next one that needs it counts the files. After a restart of the machine it
    counts them, too, as the disk may have kept other writes than these. Who reads or writes the record has the lock.
    """

    @functools.cached_property
    def _record(self) -> list[Counts | None]:
        content = os.pread(self.descriptor, _TOTAL.size + _DIGEST_BYTES, 0)
        record = content[: _TOTAL.size]
        if len(record) < _TOTAL.size or content[_TOTAL.size :] != _digest_of(record):
            return [None]
        magic, boot, *numbers = _TOTAL.unpack(record)
        return [Counts(*numbers) if (magic, boot) == (_TOTAL_MAGIC, boot_id()) else None]

    @property
    def counts(self) -> Counts | None:
        """The bytes that the files take; None: unknown."""
        return self._record[0]

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
        self._record[0] = None
        try:
            os.pwrite(self.descriptor, bytes(_DIGEST_BYTES), _TOTAL.size)
        except genuine(OSError):
            # It needs no space; if it fails, too, the files must not change.
            os.ftruncate(self.descriptor, 0)
        yield
        self.replace(replace(counts, total_bytes=counts.total_bytes + change_bytes, num_changes=counts.num_changes + 1))

    def replace(self, counts: Counts) -> None:
        """Write a new record. If the disk refuses it, the record says "unknown" for the next process."""
        self._record[0] = counts
        content = _TOTAL.pack(
            *(_TOTAL_MAGIC, boot_id(), counts.total_bytes, counts.num_files, counts.counted_at_ns, counts.num_changes)
        )
        with suppress(OSError):
            os.pwrite(self.descriptor, content + _digest_of(content), 0)


def _digest_of(record: bytes) -> bytes:
    return blake2b(record, digest_size=_DIGEST_BYTES).digest()
