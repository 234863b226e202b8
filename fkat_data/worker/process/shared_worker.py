"""A neighbour's side of workers that several ranks share: messages and segments come from the first rank.

Each rank has its own plan, position and delivery. What a message is of stands in it: the iteration, epoch, task and number.
Where the first rank does not send what this one needs next, because an interruption or a call of this rank's alone has
put it elsewhere, this rank goes on with workers of its own: order is arithmetic, so these make the same.
"""

import logging
import os
import pickle
import select
import socket
import struct
import time
from collections import deque
from functools import partial
from typing import Any, Literal

from fkat_data.errors import WorkerError
from fkat_data.observe.sink import EventSink
from fkat_data.observe.stages import StageClock, new_page
from fkat_data.plan.position import Position, ShardFingerprint, Task
from fkat_data.runtime.distributed import named_ranks
from fkat_data.runtime.lifetime import WeakTable
from fkat_data.transport.channel import Channel, ChannelClosed, Frame
from fkat_data.transport.segment import Lease, SegmentLeases
from fkat_data.worker.messages import (
    END,
    FAILURE,
    ITEM,
    NO_SEGMENT,
    End,
    Failure,
    Message,
    TaskReports,
    remember_fingerprint,
    unpack_failure,
)
from fkat_data.worker.process.process_client import read_item
from fkat_data.worker.process.shared_workers import BEGIN, OF_TASK, RETURNED, SHARED_SEGMENT, TAKEN, SharedKind
from fkat_data.worker.worker import WorkerReport

_logger = logging.getLogger(__name__)

_DEATH_S = 2.0

_links: "WeakTable[int, ProducerLink]" = WeakTable()

# An iteration, epoch and task index.
_Key = tuple[int, int, int]


class ProducerLink:
    """The connection to the first rank.

    Args:
        rank: The first rank.
        pid: Its process.
        sock: Connected to it.
    """

    is_first: Literal[False] = False

    def __init__(self, rank: int, pid: int, sock: socket.socket) -> None:
        self.rank = rank
        self.pid = pid
        self.why_left: str = ""
        """Why this rank makes its own microbatches; empty: it does not."""
        self.lost: WorkerError | None = None
        """What to raise where the next microbatch would be: the first rank has ended."""
        self._process = os.pidfd_open(pid)
        self._channel = Channel(sock)
        self._channel.watch(self._process)
        self._ended: deque[Lease] = deque()
        self._segments: dict[int, SegmentLeases] = {}
        # Workers that have ended, whose segments are needed as long as messages refer to them.
        self._over: set[int] = set()
        self._iteration = self._iteration_of_first = 0
        # In which the first rank numbers microbatches otherwise since.
        self._renumbered = -1
        self._begun_at: dict[int, tuple[int, ...]] = {}
        self._position: tuple[int, ...] = ()
        self._arrived: dict[_Key, dict[int, tuple[int, int, bytes]]] = {}
        self._next: dict[_Key, int] = {}
        self._num_taken = 0
        self.fingerprints: dict[tuple[int, int], ShardFingerprint] = {}
        """What was reported of tasks' payloads, by epoch and index."""
        _links[id(self)] = self

    @property
    def is_waiting(self) -> bool:
        """Whether the last call was interrupted while it waited."""
        return self._channel.is_waiting

    def end_wait(self) -> None:
        """Record that the interrupted wait is over."""
        self._channel.end_wait()

    @property
    def is_open(self) -> bool:
        """Whether more may come."""
        return not self.why_left and self.lost is None

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the segments that are mapped."""
        return sum(segments.mapped_bytes for segments in self._segments.values())

    def begin(self, position: Position) -> None:
        """Begin an iteration at a position."""
        self._iteration += 1
        self._position = position[:4]
        self._next.clear()
        self.fingerprints.clear()
        for key in [key for key in self._arrived if key[0] < self._iteration]:
            for message in self._arrived.pop(key).values():
                self._drop(message)
        self._check_begin()

    def key_of(self, task: Task) -> _Key:
        """Return what says which messages are a task's."""
        return self._iteration, task.epoch, task.task_index

    def begin_task(self, task: Task) -> None:
        """Go on with a task where it begins."""
        if task.first_microbatch < self._next.setdefault(self.key_of(task), task.first_microbatch):
            self.leave("it goes back to what it has had")

    def num_ready(self, tasks: "deque[Task]") -> int:
        """Return the messages of tasks that have arrived."""
        return sum(len(self._arrived.get(self.key_of(task), ())) for task in list(tasks))

    def take(self, task: Task, index: int, timeout_s: float | None) -> tuple[int, int, bytes] | None:
        """Return kind, worker and content of the message at an index of a task; None: it has not come within the time.

        Args:
            task: The task.
            index: The number of the microbatch, or of the task's end behind the last one.
            timeout_s: Seconds to wait; None: as long as it takes.
        """
        key = self.key_of(task)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self.is_open:
            self.collect()
            if (found := self._arrived.get(key, {}).pop(index, None)) is not None:
                self._next[key] = index + 1
                if found[0] == SharedKind.ITEM:
                    self._num_taken += 1
                    self._channel.post(SharedKind.TAKEN, TAKEN.pack(self._num_taken))
                return found
            is_past = self._iteration_of_first > self._iteration or self._renumbered == self._iteration
            if is_past or self._arrived.get(key):
                self.leave("the first rank is past what comes next here")
                return None
            try:
                frame = self._channel.receive()
                if frame is not None:
                    self._store(frame)
                    continue
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                if left_s == 0 or not self._channel.wait(left_s):
                    if self._is_dead(0.0):
                        self._end()
                    return None
            except ChannelClosed:
                self._end()
        return None

    def collect(self) -> None:
        """Give back the segments that nothing views any more."""
        if self._ended:
            for segments in list(self._segments.values())[:1]:
                segments.collect()  # of all, which share the deque
            self._channel.flush()

    def lease(self, serial: int, segment: int) -> Any:
        """Return the memory of a segment until the last view of it dies."""
        return self._segments[serial].lease(segment)

    def leave(self, reason: str) -> None:
        """Go on without the first rank's workers. Any number of calls."""
        if self.is_open:
            self.why_left = reason
            _logger.warning(
                "this rank makes its own microbatches from here on, without %s: %s", named_ranks([self.rank]), reason
            )
        self._channel.hang_up()
        self._arrived.clear()

    def share(self) -> None:
        """Before a fork: mark what the child inherits, as it must not be written again."""
        for segments in self._segments.values():
            segments.share()

    def abandon(self) -> None:
        """In a forked child: close what is this process's alone."""
        self._channel.abandon()

    def close(self) -> None:
        """End the connection. Any number of calls."""
        self.why_left = self.why_left or "its loader was closed"
        self._channel.close()
        process, self._process = self._process, -1
        if process >= 0:
            os.close(process)

    def _is_dead(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def _end(self) -> None:
        if self._is_dead(_DEATH_S):
            self.lost = WorkerError(
                f"rank {self.rank} (process {self.pid}) has ended, whose workers make the microbatches of this rank. Ranks "
                "that share workers end with it: start the job again, or pass share_workers=False"
            )
        else:
            self.leave("the first rank has ended the connection")

    def _check_begin(self) -> None:
        begun_at = self._begun_at.pop(self._iteration, None)
        if begun_at is not None and begun_at != tuple(self._position):
            self.leave(f"the first rank has begun at {begun_at}, this one at {tuple(self._position)}")

    def _store(self, frame: Frame) -> None:
        body = frame.body
        if frame.kind in (SharedKind.SEGMENT, SharedKind.RETIRE, SharedKind.FORGET):
            self._change_segments(frame.kind, *SHARED_SEGMENT.unpack(body))
        elif frame.kind == SharedKind.BEGIN:
            self._iteration_of_first, *position = BEGIN.unpack(body)
            self._begun_at[self._iteration_of_first] = tuple(position)
            if self._iteration_of_first == self._iteration:
                self._check_begin()
        elif frame.kind == SharedKind.RENUMBER:
            self._renumbered = self._iteration_of_first
        else:
            self._store_message(frame.kind, OF_TASK.unpack_from(body), body[OF_TASK.size :])

    def _change_segments(self, kind: int, serial: int, index: int, size_bytes: int) -> None:
        if kind == SharedKind.FORGET:
            self._over.add(serial)
            self._forget_over()
            return
        segments = self._segments.get(serial)
        if segments is None:
            give = partial(self._give_back, serial)
            segments = SegmentLeases(partial(give, False), partial(give, True), self._ended)
            self._segments[serial] = segments
        if kind == SharedKind.SEGMENT:
            segments.add(index, self._channel.take_descriptor(), size_bytes)
        else:
            segments.remove(index)

    def _give_back(self, serial: int, is_spoiled: bool, index: int, size_bytes: int) -> None:
        self._channel.defer(SharedKind.CREDIT, RETURNED.pack(serial, index, is_spoiled))

    def _forget_over(self) -> None:
        in_use = {serial for of_task in self._arrived.values() for _, serial, _ in of_task.values()}
        for serial in self._over - in_use:
            self._over.discard(serial)
            if (segments := self._segments.pop(serial, None)) is not None:
                segments.clear()

    def _store_message(self, kind: int, header: tuple[int, int, int, int], body: bytes) -> None:
        iteration, epoch, task_index, serial = header
        key, message = (iteration, epoch, task_index), (kind, serial, body)
        if kind == SharedKind.FINGERPRINT:
            if iteration == self._iteration:
                self.fingerprints[epoch, task_index] = ShardFingerprint(*pickle.loads(body))
            return
        structure: struct.Struct = {SharedKind.ITEM: ITEM, SharedKind.END: END}.get(SharedKind(kind), FAILURE)
        index = structure.unpack_from(body)[1]
        of_task = self._arrived.setdefault(key, {})
        # The first rank sends again what it makes again after an interruption.
        is_old = iteration < self._iteration or iteration == self._renumbered
        if is_old or index < self._next.get(key, 0) or index in of_task:
            self._drop(message)
        else:
            of_task[index] = message

    def _drop(self, message: tuple[int, int, bytes]) -> None:
        kind, serial, body = message
        self._num_taken += kind == SharedKind.ITEM
        segment = ITEM.unpack_from(body)[3] if kind == SharedKind.ITEM else NO_SEGMENT
        if segment != NO_SEGMENT:
            self._give_back(serial, False, segment, 0)


class SharedWorker(TaskReports):
    """A worker of the first rank's, as a group of this rank's loader sees it.

    Args:
        link: The connection.
        sink: Gets the waits, and a range for each decoding.
        is_zero_copy: Whether microbatches are views of shared memory, or copies.
    """

    works_ahead: bool = True

    def __init__(self, link: ProducerLink, sink: EventSink, *, is_zero_copy: bool) -> None:
        super().__init__()
        self._link = link
        self._sink = sink
        self._is_zero_copy = is_zero_copy
        self._tasks: deque[Task] = deque()
        self._index = 0
        self._num_received = 0
        self._clock = StageClock(new_page())

    @property
    def pid(self) -> int:
        """The first rank's process."""
        return self._link.pid

    @property
    def is_alive(self) -> bool:
        """Whether microbatches still come."""
        return self._link.is_open

    @property
    def is_waiting(self) -> bool:
        """Whether the last call was interrupted while it waited for a message."""
        return self._link.is_waiting

    @property
    def num_ready(self) -> int:
        """Microbatches that have come, and were not received."""
        return self._link.num_ready(self._tasks)

    def assign(self, task: Task, limit: int) -> None:
        """Expect a task's messages behind those of the tasks before; the first rank says how far it is made."""
        if not self._tasks:
            self._index = task.first_microbatch
        self._tasks.append(task)
        self._link.begin_task(task)

    def allow(self, task_id: int, limit: int, *, is_ahead: bool = False) -> None:
        """Do nothing: the first rank says how far a task is made."""

    def give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        """Do nothing: the first rank's workers have them."""

    def cancel(self, task_id: int) -> None:
        """Drop every task with an id below this one."""
        while self._tasks and self._tasks[0].task_id < task_id:
            self._tasks.popleft()
        if self._tasks:
            self._index = self._tasks[0].first_microbatch

    def receive(self, *, timeout_s: float | None) -> Message | None:
        """Return the next message, or None if none comes within ``timeout_s``; None: wait without a limit."""
        if not self._tasks:
            return None
        task, link = self._tasks[0], self._link
        began_s = time.perf_counter()
        found = link.take(task, self._index, timeout_s)
        if timeout_s != 0:
            self._sink.waited(began_s, time.perf_counter())
        if found is None:
            return None if link.lost is None else Failure(task.task_id, link.lost, self._index)
        if (fingerprint := link.fingerprints.get((task.epoch, task.task_index))) is not None:
            remember_fingerprint(self._fingerprints, task.task_id, fingerprint)
        message = self._read(task, *found)
        self._index += 1
        if isinstance(message, (End, Failure)) or getattr(message, "is_last", False):
            self._tasks.popleft()
            if self._tasks:
                self._index = self._tasks[0].first_microbatch
        return message

    def _read(self, task: Task, kind: int, serial: int, body: bytes) -> Message:
        if kind == SharedKind.ITEM:
            self._num_received += 1
            item = read_item(body, partial(self._link.lease, serial), self._sink, is_zero_copy=self._is_zero_copy)
            return item._replace(task_id=task.task_id)
        if kind == SharedKind.END:
            return End(task.task_id, END.unpack(body)[1])
        return Failure(task.task_id, unpack_failure(body[FAILURE.size :]), FAILURE.unpack_from(body)[1])

    def end_wait(self) -> None:
        """Record that an interrupted wait is over."""
        self._link.end_wait()

    def has_begun(self, task_id: int) -> bool:
        """Return whether messages of a task have come."""
        return any(task.task_id == task_id and self._link.num_ready(deque([task])) for task in list(self._tasks))

    def report(self) -> WorkerReport:
        """Return what has come; the times are the first rank's."""
        return WorkerReport(self._clock.times(), self._num_received, segment_bytes=self._link.mapped_bytes)

    def stack(self) -> str:
        """Return whom this rank waits for."""
        return f"(rank {self._link.rank}, process {self.pid}, whose workers make the microbatches of this rank, has not sent it)"

    def hang_up(self) -> None:
        """Do nothing: the connection stays for the next iteration."""

    def kill(self) -> None:
        """Wait for the first rank no longer."""
        self._link.leave("the first rank has sent nothing for stall_timeout_s")

    def close(self, timeout_s: float) -> None:
        """Forget the tasks; the connection stays for the next iteration."""
        self._tasks.clear()


def _share_segments() -> None:
    for link in _links.values():
        link.share()


def _abandon_links() -> None:
    for link in _links.values():
        link.abandon()
    _links.clear()


os.register_at_fork(before=_share_segments, after_in_child=_abandon_links)
