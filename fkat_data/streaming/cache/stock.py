"""One directory of a cache under its lock: what its files take, and which of them goes next."""

import os
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Self

from fkat_data.interruption import genuine, suppress
from fkat_data.streaming.cache.cache_directory import NOT_WRITABLE, CacheDirectory
from fkat_data.streaming.cache.ledger import Counts, Ledger
from fkat_data.streaming.cache.paths import MAKING, StoredFile

#: In ``BOOKKEEPING``: evictable files, the coldest first, with their last uses when they were listed.
_QUEUE = "coldest"
_MOST_LISTED = 8192
#: Some entries, as most evictions take one; and more than the longest entry.
_CHUNKS_BYTES = (1 << 8, 1 << 14)
#: Below this, it takes less time to look up each file's last use than to read the whole table.
_FEW_FILES = 500
_NEVER = -(1 << 63)


class Candidate(NamedTuple):
    """A file that may be evicted. The smallest is the coldest.

    Attributes:
        last_use: When it was last used, as ``Recency`` reports it.
        changed_ns: When it was last changed, by the wall clock.
        name: Its path in the directory.
    """

    last_use: int
    changed_ns: int
    name: str


class Stock:
    """A directory's files, locked until ``close``.

    To find the coldest files, all have to be looked at. So the first process that evicts lists many of them in a file,
    and each process takes the next one. What was used since it was listed is passed over: it is hotter than all that
    are listed. The list is made again when it ends. Each file in it is evicted, or was used, or is gone. So a listing
    costs each eviction, and each use, a constant time.

    Args:
        directory: The directory.
        is_evictable: Returns whether a file of a name may be evicted; None: none may.

    Raises:
        OSError: The lock cannot be taken.
    """

    def __init__(self, directory: CacheDirectory, is_evictable: Callable[[str], bool] | None) -> None:
        self._directory = directory
        self._is_evictable = is_evictable
        self._ledger: Ledger | None = None
        # What was read of the list, with the positions in the file behind each.
        self._listed: deque[tuple[Candidate, int]] = deque()
        self._is_whole = False
        self._mapped: set[str] = set()
        try:
            self._ledger = directory.ledger()
        except genuine(OSError) as error:
            # In a directory that is not writable, no process adds files.
            if error.errno not in NOT_WRITABLE:
                raise

    @property
    def total_bytes(self) -> int:
        """What the files take, without those in the making."""
        ledger = self._ledger
        if ledger is None or ledger.is_due or ledger.counts is None:
            # With another list, too, for files that no cache made.
            return self._record(list(self._directory.files()))
        return ledger.counts.total_bytes

    @property
    def making_bytes(self) -> int:
        """What the files in the making will take."""
        return sum(file.size_bytes for file in self._directory.being_made())

    def sweep(self) -> None:
        """Remove what dead makers left."""
        self._directory.sweep(MAKING)

    def count(self) -> int:
        """Count the files, record what they take, and return it."""
        counts = None if self._ledger is None else self._ledger.counts
        return self._record(
            list(self._directory.files()), *(() if counts is None else (counts.queue_start, counts.queue_end))
        )

    def coldest(self) -> Candidate | None:
        """Return the file to evict next; None if no more files may go."""
        ledger = self._ledger
        if self._is_evictable is None or ledger is None:
            return None
        while self._listed or self._read() or self._list():
            candidate = self._listed[0][0]
            if candidate.name in self._mapped or not self._is_evictable(candidate.name):
                self._next()
            elif candidate.last_use == self._last_use(candidate.name):
                return candidate
            else:
                # It was used since it was listed. If only such files are left, they are listed again.
                self._is_whole = False
                self._next()
        return None

    def evict_coldest(self) -> int | None:
        """Evict what ``coldest`` returned; return its size in bytes, None if it is mapped.

        Raises:
            OSError: The file cannot be removed.
        """
        if self._ledger is None:
            raise RuntimeError("nothing can be evicted from a directory that is not writable")
        size_bytes = self._directory.evict(self._listed[0][0].name, self._ledger)
        if size_bytes is not None:
            self._next()
        return size_bytes

    def pass_over(self) -> None:
        """Have ``coldest`` return the next file, and never this one again."""
        self._mapped.add(self._listed[0][0].name)
        self._next()

    def close(self) -> None:
        """Release the lock."""
        if self._ledger is not None:
            self._ledger.close()

    def _record(self, files: list[StoredFile], queue_start: int = 0, queue_end: int = 0) -> int:
        total_bytes = sum(file.size_bytes for file in files)
        if self._ledger is not None:
            self._ledger.replace(Counts(total_bytes, len(files), 0, time.monotonic_ns(), queue_start, queue_end))
        return total_bytes

    def _read(self) -> bool:
        """Read the next part of the list; return whether there was one."""
        counts = None if self._ledger is None else self._ledger.counts
        if counts is None or counts.queue_start >= counts.queue_end:
            return False
        start, lines = counts.queue_start, list[bytes]()
        try:
            with self._directory.open(_QUEUE, os.O_RDONLY) as file:
                for chunk_bytes in _CHUNKS_BYTES:
                    *lines, _ = os.pread(file.descriptor, min(chunk_bytes, counts.queue_end - start), start).split(
                        b"\0"
                    )
                    if lines:
                        break
        except genuine(OSError):
            return False
        for line in lines:
            start += len(line) + 1
            with suppress(ValueError):
                last_use, changed_ns, name = line.split(b" ", 2)
                self._listed.append((Candidate(int(last_use), int(changed_ns), os.fsdecode(name)), start))
        return bool(self._listed)

    def _list(self) -> bool:
        """Count the files, and list the coldest that may go; return whether there are any.

        Nothing is listed again behind a list that had all of them.
        """
        is_evictable, ledger = self._is_evictable, self._ledger
        if self._is_whole or is_evictable is None or ledger is None:
            return False
        files = list(self._directory.files())
        uses = self._directory.recency.last_uses() if len(files) > _FEW_FILES else None
        candidates = sorted(
            Candidate(self._last_use(file.name, uses), file.changed_ns, file.name)
            for file in files
            if file.name not in self._mapped and is_evictable(file.name)
        )
        self._is_whole = len(candidates) <= _MOST_LISTED
        del candidates[_MOST_LISTED:]
        end = 0
        lines: list[bytes] = []
        for candidate in candidates:
            lines.append(b"%d %d %s\0" % (*candidate[:2], os.fsencode(candidate.name)))
            end += len(lines[-1])
            self._listed.append((candidate, end))
        with ledger.unknown():
            is_saved = self._save(b"".join(lines))
            self._record(files, 0, end if is_saved else 0)
        return bool(candidates)

    def _next(self) -> None:
        _, start = self._listed.popleft()
        if self._ledger is not None:
            self._ledger.pass_over(start)

    def _save(self, content: bytes) -> bool:
        try:
            with self._directory.open(_QUEUE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
                return os.write(file.descriptor, content) == len(content)
        except genuine(OSError):
            # The disk may be full: this process goes on with what it has listed.
            return False

    def _last_use(self, name: str, uses: dict[int, int] | None = None) -> int:
        recency = self._directory.recency
        found = recency.last_use(name) if uses is None else uses.get(recency.key_of(name))
        return _NEVER if found is None else found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
