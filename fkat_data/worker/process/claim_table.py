"""A table in shared memory: which worker of a group has claimed which microbatch.

A worker claims the next microbatch of a shard when it is free to make one, so no plan says who makes what, and a slow
microbatch holds up one worker alone. The table is guarded by a lock on its file. The kernel releases it when its holder
dies, and the order of the writes below keeps the table right at each instant at which that may happen. The trainer only
reads, and never locks: a worker that is stopped while it holds the lock cannot stop the trainer.
"""

import contextlib
import fcntl
import os
import sys
from collections.abc import Generator
from enum import Enum
from typing import NamedTuple, Self

from fkat_data.transport.anonymous import anonymous_file
from fkat_data.transport.record_locks import holder_pid
from fkat_data.transport.segment import Segment
from fkat_data.worker.fetch import MOST_PREFETCHED
from fkat_data.worker.messages import NUM_TASKS
from fkat_data.worker.microbatch_source import DrawSummary

# For each worker: the task's id + 1 and the index of what it makes, and of each microbatch that it has reserved for later.
_WORKER = 2 + 2 * MOST_PREFETCHED
# A row: its task's id + 1, the next microbatch, the first one that the shard does not have, its sole worker + 1; and of what
# workers have drawn: the digest of the first batch, how many there are at least, and how many there are, + 1.
_TASK_ID, _NEXT, _END, _SOLE_WORKER, _DIGEST, _KNOWN, _COUNT = range(7)
_ROW = 7
_UNKNOWN_END = sys.maxsize


class Claim(NamedTuple):
    """What a worker makes.

    Attributes:
        task_id: The task.
        microbatch_index: Its index in the shard.
    """

    task_id: int
    microbatch_index: int


class Refusal(Enum):
    """Why there is no microbatch to make."""

    NOT_ALLOWED = "the next one is beyond the limit"
    OVER = "the shard has no other, or another worker makes all that it has"


class ClaimTable:
    """A table in shared memory of which worker of a group makes which microbatch.

    Args:
        descriptor: The table's file; stays open for as long as this object is used, and stays the caller's.
        num_workers: Workers of the group.
        worker: The worker's index in the group; -1 in the trainer.
    """

    def __init__(self, descriptor: int, num_workers: int, worker: int = -1) -> None:
        self._descriptor = descriptor
        self.worker = worker
        """The worker's index in the group; -1 in the trainer."""
        self._num_workers = num_workers
        self._claims_start = _ROW * NUM_TASKS
        size_bytes = 8 * (self._claims_start + _WORKER * num_workers)
        self._table = Segment(0, descriptor, size_bytes, is_written=True).view.cast("q")

    @classmethod
    def create(cls, num_workers: int) -> tuple[Self, int]:
        """Return a new table for the trainer, and its descriptor."""
        descriptor = anonymous_file()
        try:
            os.truncate(descriptor, 8 * (_ROW * NUM_TASKS + _WORKER * num_workers))
            return cls(descriptor, num_workers), descriptor
        except BaseException:
            os.close(descriptor)
            raise

    def claim(self, task_id: int, first: int, limit: int) -> int | Refusal:
        """Claim the next microbatch of a task, and return its index; or return why there is none.

        Args:
            task_id: The task.
            first: The task's first microbatch.
            limit: The first microbatch that may not be made yet.
        """
        with self._locked():
            row = self._row(task_id, first)
            if row is None:
                return Refusal.OVER
            reservation = self._first_reservation(task_id)
            table, index = (
                self._table,
                self._table[row + _NEXT] if reservation is None else self._table[reservation + 1],
            )
            if index >= table[row + _END] or table[row + _SOLE_WORKER] not in (0, self.worker + 1):
                return Refusal.OVER
            if index >= limit:
                return Refusal.NOT_ALLOWED
            # In this order: a worker that dies between the two has claimed nothing, or still has a reservation of what it has claimed.
            self.write_claim(task_id, index)
            if reservation is None:
                table[row + _NEXT] = index + 1
            else:
                table[reservation] = 0
            return index

    def reserve(self, task_id: int) -> int | None:
        """Reserve the next microbatch of a task, which this worker will claim later and no other does; return its index.

        The successor of a worker that dies has its reservations.

        Returns:
            The index; None: the shard has no other, another worker makes all of it, or this worker has reservations enough.
        """
        with self._locked():
            row, table = self._find(task_id), self._table
            free = next((slot for slot in self._reservations(self.worker) if table[slot] != task_id + 1), None)
            if row is None or free is None or table[row + _SOLE_WORKER]:
                return None
            index = table[row + _NEXT]
            if index >= table[row + _END]:
                return None
            # The task's id last, and then the next: a worker that dies between has a reservation of what another one claims, too.
            table[free] = 0
            table[free + 1] = index
            table[free] = task_id + 1
            table[row + _NEXT] = index + 1
            return index

    def next_claim(self, task_id: int) -> int:
        """Return the microbatch of a task that this worker claims next, if nothing changes."""
        reservation = self._first_reservation(task_id)
        return self.next_index(task_id) if reservation is None else self._table[reservation + 1]

    def num_reserved(self, task_id: int) -> int:
        """Return how many microbatches of a task this worker has reserved."""
        return sum(self._table[slot] == task_id + 1 for slot in self._reservations(self.worker))

    def reserved_by(self, task_id: int, index: int) -> int | None:
        """Return the worker that has reserved a microbatch for later, by its index in the group; None: none has."""
        table = self._table
        for worker in range(self._num_workers):
            if any((table[slot], table[slot + 1]) == (task_id + 1, index) for slot in self._reservations(worker)):
                return worker
        return None

    def claim_all(self, task_id: int, first: int) -> bool:
        """Claim all microbatches of a task; return whether no other worker has claimed all of them before."""
        with self._locked():
            row = self._row(task_id, first)
            if row is None or self._table[row + _SOLE_WORKER] not in (0, self.worker + 1):
                return False
            self.write_claim(task_id, first)
            self._table[row + _SOLE_WORKER] = self.worker + 1
            return True

    def end(self, task_id: int, index: int) -> None:
        """Let no worker claim the microbatch at ``index``, nor one behind it: the shard does not have it."""
        with self._locked():
            row = self._find(task_id)
            if row is not None:
                self._table[row + _END] = min(self._table[row + _END], index)

    def agrees(self, task_id: int, summary: DrawSummary) -> bool:
        """Return whether what this worker knows of a task's batches is what the others do, who compare with it from now on."""
        with self._locked():
            row, table = self._find(task_id), self._table
            if row is None:
                return True
            digest, count = (
                table[row + _DIGEST] or summary.digest,
                table[row + _COUNT] or summary.is_whole * (summary.num_known + 1),
            )
            known = max(table[row + _KNOWN], summary.num_known)
            table[row + _DIGEST], table[row + _KNOWN], table[row + _COUNT] = digest, known, count
            is_same = summary.digest in (0, digest) and (not count or known < count)
            return is_same and (not summary.is_whole or count == summary.num_known + 1)

    def next_index(self, task_id: int) -> int:
        """Return the task's first microbatch that no worker has claimed; 0 if none has begun it."""
        row = self._find(task_id)
        return 0 if row is None else self._table[row + _NEXT]

    def sole_worker(self, task_id: int) -> int | None:
        """Return the worker that makes all of a task, by its index in the group; None: they make it together."""
        row = self._find(task_id)
        return None if row is None or not self._table[row + _SOLE_WORKER] else self._table[row + _SOLE_WORKER] - 1

    def claim_of(self, worker: int) -> Claim | None:
        """Return what a worker makes, or has made last."""
        start = self._claims_start + _WORKER * worker
        task_id, index = self._table[start], self._table[start + 1]
        return Claim(task_id - 1, index) if task_id else None

    def holder_pid(self) -> int | None:
        """Return the process that holds the lock now; None if none does."""
        return holder_pid(self._descriptor)

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def write_claim(self, task_id: int, index: int) -> None:
        """Note what this worker makes; it may be what a dead worker had claimed."""
        start = self._claims_start + _WORKER * self.worker
        # The index first: with a new index, the old id is one that was done.
        self._table[start] = 0
        self._table[start + 1] = index
        self._table[start] = task_id + 1

    def _reservations(self, worker: int) -> range:
        """Return where a worker's reservations are."""
        start = self._claims_start + _WORKER * worker
        return range(start + 2, start + _WORKER, 2)

    def _first_reservation(self, task_id: int) -> int | None:
        """Return where this worker's first reservation of a task is; None: it has none. Forget those that were claimed."""
        table, start = self._table, self._claims_start + _WORKER * self.worker
        found: int | None = None
        for slot in self._reservations(self.worker):
            if table[slot] != task_id + 1:
                continue
            if table[start] == task_id + 1 and table[slot + 1] <= table[start + 1]:
                table[slot] = 0  # a worker has died when it had claimed it
            elif found is None or table[slot + 1] < table[found + 1]:
                found = slot
        return found

    def _row(self, task_id: int, first: int) -> int | None:
        """Return where a task's row begins; None if a later task has taken its place: this one is no longer wanted."""
        row = _ROW * (task_id % NUM_TASKS)
        table = self._table
        if table[row + _TASK_ID] > task_id + 1:
            return None
        if table[row + _TASK_ID] < task_id + 1:
            # The task's id last: a worker that dies before has begun nothing.
            table[row + _NEXT], table[row + _END], table[row + _SOLE_WORKER] = first, _UNKNOWN_END, 0
            table[row + _DIGEST] = table[row + _KNOWN] = table[row + _COUNT] = 0
            table[row + _TASK_ID] = task_id + 1
        return row

    def _find(self, task_id: int) -> int | None:
        row = _ROW * (task_id % NUM_TASKS)
        return row if self._table[row + _TASK_ID] == task_id + 1 else None
