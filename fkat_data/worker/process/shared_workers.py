"""The first rank's side of workers that several ranks share: what they make goes to its neighbours as well.

A neighbour gets each segment's descriptor once, and envelopes over a Unix socket. A segment goes back to its worker when
this rank and all neighbours have released it; one whose neighbour is gone is not written again, as views of it may live.
A thread for each neighbour sends and receives, so that what interrupts the caller's thread tears no message.
"""

import itertools
import logging
import os
import pickle
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any, Literal

from fkat_data.plan.position import Position, ShardFingerprint, Task
from fkat_data.runtime.background import BackgroundCall
from fkat_data.runtime.distributed import named_ranks
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.lifetime import WeakTable
from fkat_data.runtime.machine import call_in_forks
from fkat_data.transport.channel import Channel, ChannelClosed, TornFrameError
from fkat_data.worker.messages import END, FAILURE, End, Failure, Item, Kind, pack_failure

_logger = logging.getLogger(__name__)


class SharedKind(IntEnum):
    """The kinds of frames between ranks that share workers."""

    # to a neighbour
    SEGMENT = 1
    RETIRE = 2
    FORGET = 3
    BEGIN = 4
    ITEM = 5
    END = 6
    FAILURE = 7
    FINGERPRINT = 8
    RENUMBER = 9
    # from a neighbour
    CREDIT = 16
    TAKEN = 17


# a worker's serial number, segment index, bytes
SHARED_SEGMENT = struct.Struct("<QiQ")
# the iteration, and the first four fields of its position
BEGIN = struct.Struct("<Qqqqq")
# the iteration, epoch, task index, a worker's serial number
OF_TASK = struct.Struct("<QqqQ")
# a worker's serial number, segment index, whether it must not be written again
RETURNED = struct.Struct("<Qi?")
# microbatches that a neighbour's loader has taken
TAKEN = struct.Struct("<Q")
# What may wait for a neighbour; it goes on with workers of its own behind that.
_MOST_WAITING_BYTES = 256 << 20
_LEAST_BEHIND = 4
_REPORT_S = 60.0
_LAST_SENDS_S = 5.0

_Key = tuple[int, int]
_Give = Callable[[Kind, int, int], None]

_sharing: "WeakTable[int, SharedWorkers]" = WeakTable()


class Bell:
    """Becomes readable when a thread rings it."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._descriptor

    def ring(self) -> None:
        """Make it readable."""
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)

    def has_rung(self) -> bool:
        """Return whether it has rung since the last call."""
        with suppress(BlockingIOError):
            return self._descriptor >= 0 and os.eventfd_read(self._descriptor) > 0
        return False

    def close(self) -> None:
        """Close its descriptor, which nothing waits for. Any number of calls."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _Neighbour:
    """A rank that gets what this one's workers make, and the thread that serves it.

    Args:
        rank: The rank.
        sock: Connected to it.
        give_back: Takes what the neighbour has released; a segment of None: it is gone.
    """

    def __init__(
        self, rank: int, sock: socket.socket, give_back: Callable[["_Neighbour", _Key | None, bool], None]
    ) -> None:
        self.rank = rank
        self.num_sent: int = 0
        self.num_taken: int = 0
        self.next_report_s: float = 0.0
        self.is_gone: bool = False
        self._give_back = give_back
        self._outbox: deque[tuple[int, bytes, int | None]] = deque()
        self._put_bytes = self._sent_bytes = 0
        self._is_closing = False
        self._channel = Channel(sock)
        self._bell = Bell()
        self._serving: BackgroundCall[None] | None = BackgroundCall(self._serve)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that were not sent yet."""
        return self._put_bytes - self._sent_bytes

    def put(self, kind: SharedKind, body: bytes, descriptor: int | None = None) -> None:
        """Send a message behind those before, with a copy of a descriptor; does not wait."""
        if not self.is_gone:
            self._put_bytes += len(body)
            self._outbox.append((kind, body, None if descriptor is None else os.dup(descriptor)))
            self._bell.ring()

    def hang_up(self) -> None:
        """Send nothing more."""
        self.is_gone = True
        self._channel.hang_up()

    def close(self) -> None:
        """Send what waits, within five seconds, and end the thread."""
        self._is_closing = True
        self._bell.ring()
        serving, self._serving = self._serving, None
        for _ in range(2):
            if serving is not None:
                with suppress(TimeoutError):
                    serving.result(_LAST_SENDS_S)
                    break
                self.hang_up()
        self._bell.close()

    def abandon(self) -> None:
        """In a forked child: close what would keep the neighbour from seeing this rank's end."""
        self._channel.abandon()

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(self._channel.fileno(), select.POLLIN)
        try:
            while True:
                self._take_returned()
                if self._outbox:
                    self._send_next()
                elif self._is_closing:
                    break
                else:
                    poll.poll()
                    self._bell.has_rung()
        except genuine(ChannelClosed, TornFrameError, OSError):
            pass
        self.is_gone = True
        self._channel.close()
        while self._outbox:
            self._close_copy(self._outbox.popleft()[2])
        self._give_back(self, None, True)

    def _send_next(self) -> None:
        kind, body, descriptor = self._outbox.popleft()
        try:
            self._channel.send(kind, body, descriptor)
        finally:
            self._close_copy(descriptor)
        self._sent_bytes += len(body)

    def _take_returned(self) -> None:
        while (frame := self._channel.receive()) is not None:
            if frame.kind == SharedKind.TAKEN:
                self.num_taken = TAKEN.unpack(frame.body)[0]
            else:
                serial, index, is_spoiled = RETURNED.unpack(frame.body)
                self._give_back(self, (serial, index), is_spoiled)

    @staticmethod
    def _close_copy(descriptor: int | None) -> None:
        if descriptor is not None:
            os.close(descriptor)


class WorkerOutput:
    """What one of the shared workers makes, on its way to the neighbours.

    Args:
        shared: All workers.
        serial: The worker's number, counted from the first that was started.
        give: Gives a segment back to it.
    """

    def __init__(self, shared: "SharedWorkers", serial: int, give: _Give) -> None:
        self._shared = shared
        self._serial = serial
        self._give = give

    def add(self, index: int, size_bytes: int, descriptor: int) -> None:
        """Announce a segment."""
        self._shared.put_all(SharedKind.SEGMENT, SHARED_SEGMENT.pack(self._serial, index, size_bytes), descriptor)

    def retire(self, index: int) -> None:
        """Have the neighbours forget a segment that the worker has dropped."""
        self._shared.put_all(SharedKind.RETIRE, SHARED_SEGMENT.pack(self._serial, index, 0))

    def end(self) -> None:
        """Have the neighbours forget all segments: the worker has ended."""
        self._shared.put_all(SharedKind.FORGET, SHARED_SEGMENT.pack(self._serial, -1, 0))
        self._shared.forget(self._serial)

    def keep(self, task_id: int, index: int, segment: int, body: bytes, lease: Any) -> None:
        """Keep a microbatch's message, and its hold on a segment, until its turn comes."""
        self._shared.keep(task_id, index, (self._serial, segment), body, lease)

    def give(self, kind: Kind, index: int, size_bytes: int) -> None:
        """Give back a segment that this rank has released, as soon as its neighbours have."""
        self._shared.release((self._serial, index), self._give, kind, size_bytes)

    @property
    def lent_bytes(self) -> int:
        """Bytes of segments that other ranks alone hold."""
        return self._shared.lent_bytes(self._serial)

    @property
    def bell(self) -> Bell:
        """Becomes readable when a neighbour has released something."""
        return self._shared.bell

    def collect(self) -> bool:
        """Give back what neighbours have released since; return whether the bell has rung."""
        return self._shared.collect()


class SharedWorkers:
    """The workers of the first of several ranks, which make the microbatches of all of them.

    Args:
        neighbours: A connected socket for each of the others, by rank.
    """

    is_first: Literal[True] = True

    def __init__(self, neighbours: Mapping[int, socket.socket]) -> None:
        self._returned: deque[tuple[_Neighbour, _Key | None, bool]] = deque()
        self.bell: Bell = Bell()
        """Becomes readable when a neighbour has released something."""
        give_back = partial(_give_back, self._returned, self.bell)
        self._neighbours = [_Neighbour(rank, sock, give_back) for rank, sock in neighbours.items()]
        self._serials = itertools.count(1)
        self._iteration = 0
        self._first_task_id = 0
        self._is_new = False
        self._kept: dict[tuple[int, int], tuple[_Key, bytes, Any]] = {}
        self._holders: dict[_Key, set[_Neighbour]] = {}
        self._spoiled: set[_Key] = set()
        self._released: dict[_Key, tuple[_Give, Kind, int]] = {}
        self._last_fingerprint: tuple[int, ShardFingerprint] | None = None
        _sharing[id(self)] = self

    def of_worker(self, give: _Give) -> WorkerOutput:
        """Return what passes on what a new worker makes; ``give`` gives it segments back."""
        return WorkerOutput(self, next(self._serials), give)

    def begin(self, position: Position) -> None:
        """Begin an iteration at a position."""
        self._iteration += 1
        self._is_new = True
        self.put_all(SharedKind.BEGIN, BEGIN.pack(self._iteration, *position[:4]))

    def forward(
        self, task: Task, message: Item | End | Failure, fingerprint: ShardFingerprint | None, num_ahead: int
    ) -> None:
        """Pass on the next message of a task.

        Args:
            task: The task.
            message: What this rank's loader gets.
            fingerprint: What is known of the task's payload.
            num_ahead: Microbatches that a rank may be ahead.
        """
        self.collect()
        kept = self._kept.pop((task.task_id, message.microbatch_index), None) if isinstance(message, Item) else None
        key = (0, -1) if kept is None else kept[0]
        header = OF_TASK.pack(self._iteration, task.epoch, task.task_index, key[0])
        if fingerprint is not None and self._last_fingerprint != (task.task_id, fingerprint):
            self._last_fingerprint = task.task_id, fingerprint
            self.put_all(SharedKind.FINGERPRINT, header + pickle.dumps(tuple(fingerprint)))
        if isinstance(message, End):
            self.put_all(SharedKind.END, header + END.pack(task.task_id, message.num_microbatches))
        elif isinstance(message, Failure):
            body = FAILURE.pack(task.task_id, message.microbatch_index) + pack_failure(message.error)
            self.put_all(SharedKind.FAILURE, header + body)
        elif kept is not None:
            if key[1] >= 0:
                self._holders[key] = {each for each in self._neighbours if not each.is_gone}
            for neighbour in self._neighbours:
                neighbour.num_sent += 1
            self.put_all(SharedKind.ITEM, header + kept[1])
            self._report_late(max(num_ahead, _LEAST_BEHIND))

    def _report_late(self, num_ahead: int) -> None:
        for neighbour in self._neighbours:
            num_behind = neighbour.num_sent - neighbour.num_taken
            if neighbour.is_gone:
                continue
            if neighbour.waiting_bytes > _MOST_WAITING_BYTES:
                _logger.warning(
                    "%s takes none of what waits for it, and makes its own from here on", named_ranks([neighbour.rank])
                )
                neighbour.hang_up()
            elif num_behind > num_ahead and time.monotonic() >= neighbour.next_report_s:
                neighbour.next_report_s = time.monotonic() + _REPORT_S
                _logger.warning(
                    "%s is %d microbatches behind this rank, whose workers make them for it and keep their memory; "
                    "the prefetch limit is %d",
                    *(named_ranks([neighbour.rank]), num_behind, num_ahead),
                )

    def put_all(self, kind: SharedKind, body: bytes, descriptor: int | None = None) -> None:
        """Send a message to all neighbours."""
        for neighbour in self._neighbours:
            neighbour.put(kind, body, descriptor)

    def keep(self, task_id: int, index: int, key: _Key, body: bytes, lease: Any) -> None:
        """Keep a microbatch's message, and its hold on a segment, until ``forward``."""
        if task_id >= self._first_task_id:
            self._kept[task_id, index] = key, body, lease

    def start(self, task_id: int, *, is_renumbered: bool) -> None:
        """Drop what is kept of tasks with an id below this one: an iteration has begun, or goes on after an interruption.

        Args:
            task_id: The first task's id.
            is_renumbered: Whether the microbatches of the first task have other numbers from here on.
        """
        if is_renumbered and not self._is_new:
            self.put_all(SharedKind.RENUMBER, BEGIN.pack(self._iteration, 0, 0, 0, 0))
        self._is_new = False
        self._first_task_id = task_id
        for kept in [each for each in self._kept if each[0] < task_id]:
            del self._kept[kept]

    def release(self, key: _Key, give: _Give, kind: Kind, size_bytes: int) -> None:
        """Give a segment back that this rank has released, as soon as its neighbours have."""
        if self._holders.get(key):
            self._released[key] = give, kind, size_bytes
            return
        self._holders.pop(key, None)
        spoiled = key in self._spoiled
        self._spoiled.discard(key)
        give(Kind.DISCARD if spoiled else kind, key[1], size_bytes)

    def lent_bytes(self, serial: int) -> int:
        """Return the bytes of a worker's segments that other ranks alone hold."""
        # A list is made in one step: another thread may ask.
        return sum(size_bytes for key, (_, _, size_bytes) in list(self._released.items()) if key[0] == serial)

    def forget(self, serial: int) -> None:
        """Expect nothing back of a worker that has ended."""
        for key in [key for key in self._holders if key[0] == serial]:
            del self._holders[key]
            self._released.pop(key, None)

    def collect(self) -> bool:
        """Give back what neighbours have released since; return whether the bell has rung."""
        has_rung = self.bell.has_rung()
        while self._returned:
            neighbour, key, is_spoiled = self._returned.popleft()
            if key is None:
                _logger.warning("%s no longer shares the workers of this rank", named_ranks([neighbour.rank]))
            for each in list(self._holders) if key is None else [key]:
                holders = self._holders.get(each, set())
                if neighbour not in holders:
                    continue
                holders.discard(neighbour)
                if is_spoiled:
                    self._spoiled.add(each)
                if not holders and (released := self._released.pop(each, None)) is not None:
                    self.release(each, *released)
        return has_rung

    def close(self) -> None:
        """Send what waits, within five seconds each, and end the connections."""
        for neighbour in self._neighbours:
            neighbour.close()
        self.bell.close()
        self._holders.clear()
        self._returned.clear()

    def abandon(self) -> None:
        """In a forked child: close what would keep neighbours from seeing this rank's end."""
        for neighbour in self._neighbours:
            neighbour.abandon()


def _give_back(
    returned: "deque[tuple[_Neighbour, _Key | None, bool]]",
    bell: Bell,
    neighbour: _Neighbour,
    key: _Key | None,
    is_spoiled: bool,
) -> None:
    returned.append((neighbour, key, is_spoiled))
    bell.ring()


def _abandon_all() -> None:
    for shared in _sharing.values():
        shared.abandon()
    _sharing.clear()


call_in_forks(_abandon_all)
