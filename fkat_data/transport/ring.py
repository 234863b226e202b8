"""A ring of messages in memory that a worker shares with its trainer: a message costs neither side a system call.

The worker writes, the trainer reads. Each number beside the messages has one writer, and a message is complete before
the number that announces it moves on. A trainer that is about to wait says so in the memory, looks once more, and then
waits for the bell (an eventfd), which the worker rings for the first message after that. So no message wakes a trainer
that does not wait, and none is held back.

Limits of microbatches go the other way, on a board in the same memory: the trainer writes each new one there. A worker that has
used its limit up sleeps, and says from which limit on it is to be woken, so that one message in the socket
serves for several microbatches.

This depends on a processor that shows stores to others in their order: elsewhere messages travel in the socket alone.
"""

import io
import os
import platform
import struct
import threading
import time
from typing import NamedTuple

from fkat_data.transport.anonymous import anonymous_file
from fkat_data.transport.segment import Segment

_NUMBERS_BYTES = 512
_MESSAGES_BYTES = 1 << 18
_SIZE_BYTES = _NUMBERS_BYTES + _MESSAGES_BYTES
_LONGEST_BYTES = _MESSAGES_BYTES // 4
# Bytes of the body, kind. A header always finds room before the end, as everything is a multiple of its size.
_HEADER = struct.Struct("<II")
_UNIT = _HEADER.size
_SKIP = 0xFFFFFFFF
# Offsets of the numbers, each in a cache line of its writer's.
_WRITTEN, _READ, _WAIT, _BOARD = 0, 8, 16, 24
# And on the board: two are the trainer's; two, in another cache line, are the worker's.
_TASK_ID, _LIMIT, _WANTED, _SLEEP = 0, 1, 8, 9


class Frame(NamedTuple):
    """A message: what kind it is, and its content."""

    kind: int
    body: bytes


def has_rings() -> bool:
    """Return whether this machine's processor and kernel can do it."""
    return platform.machine() in {"x86_64", "AMD64", "i686"} and hasattr(os, "eventfd")


def new_ring() -> tuple[int, int]:
    """Return the descriptors of a ring's memory and of its bell.

    Raises:
        OSError: There is no memory, or no descriptor.
    """
    memory = anonymous_file()
    try:
        os.posix_fallocate(memory, 0, _SIZE_BYTES)
        return memory, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    except BaseException:
        os.close(memory)
        raise


class LimitBoard:
    """One task's limit at a time, and what a sleeping worker waits for. Its numbers are 0 in the beginning.

    Args:
        numbers: The memory.
    """

    def __init__(self, numbers: "memoryview[int]") -> None:
        self._numbers = numbers
        self._woken_from = 0
        self._num_sleeps = 0
        # To take a lock keeps a processor from reading ahead of what it has written.
        self._fence = threading.Lock()

    def publish(self, task_id: int, limit: int) -> bool:
        """Set a task's limit, on the trainer's side; return whether to wake the worker now."""
        numbers = self._numbers
        if numbers[_TASK_ID] != task_id + 1:
            numbers[_LIMIT] = 0  # the worker never reads the old task's beside the new id
            numbers[_TASK_ID] = task_id + 1
        numbers[_LIMIT] = limit
        with self._fence:
            pass
        return numbers[_WANTED] <= limit and self.is_asleep()

    @property
    def is_writer_asleep(self) -> bool:
        """Whether the worker waits for a limit."""
        return self._numbers[_WANTED] != 0

    def is_asleep(self) -> bool:
        """Return whether the worker sleeps, on the trainer's side; once for each sleep: the caller wakes it."""
        if not self._numbers[_WANTED] or self._numbers[_SLEEP] == self._woken_from:
            return False
        self._woken_from = self._numbers[_SLEEP]
        return True

    def limit(self, task_id: int) -> int:
        """Return a task's limit, on the worker's side; 0 if none was set."""
        numbers = self._numbers
        return numbers[_LIMIT] if numbers[_TASK_ID] == task_id + 1 else 0

    def sleep(self, wanted: int) -> None:
        """Ask to be woken from a limit on, on the worker's side; look at the limit once more after that."""
        self._num_sleeps += 1
        self._numbers[_SLEEP] = self._num_sleeps
        self._numbers[_WANTED] = wanted
        with self._fence:
            pass

    def rise(self) -> None:
        """Ask for it no longer, on the worker's side."""
        self._numbers[_WANTED] = 0


class _Ring:
    """What both sides have.

    Args:
        memory: A descriptor of the memory; stays the caller's.
        bell: The bell; the ring owns it.
    """

    def __init__(self, memory: int, bell: int) -> None:
        view = Segment(0, memory, _SIZE_BYTES, is_written=True).view
        # An object: it closes once, and when nothing holds it.
        self._bell = io.FileIO(bell, "r+")
        self.bell: int = bell
        """The bell's descriptor."""
        self.numbers: memoryview[int] = view[:_NUMBERS_BYTES].cast("q")
        """The numbers beside the messages."""
        self.board: LimitBoard = LimitBoard(self.numbers[_BOARD:])
        """Limits of microbatches, in the same memory."""
        self._messages = view[_NUMBERS_BYTES:]
        self._written: int = 0
        self._read: int = 0
        # To take a lock keeps a processor from reading ahead of what it has written.
        self._fence = threading.Lock()

    def close(self) -> None:
        """Close the bell; the memory goes with the last reference."""
        self._bell.close()


class RingWriter(_Ring):
    """The worker's side."""

    def __init__(self, memory: int, bell: int) -> None:
        super().__init__(memory, bell)
        self._rung_for: int = 0

    @property
    def is_drained(self) -> bool:
        """Whether every message was read."""
        return self.numbers[_READ] == self._written

    def write(self, kind: int, body: bytes, *, is_marker: bool = False) -> bool:
        """Write a message, and ring the bell if the trainer waits; return False if it finds no room.

        There is always room for one marker, a message without content, between two others.
        """
        length = len(body)
        size = _UNIT + (length + _UNIT - 1 & -_UNIT)
        written = self._written
        offset = written % _MESSAGES_BYTES
        to_end = _MESSAGES_BYTES - offset
        needed = size if size <= to_end else to_end + size
        if size > _LONGEST_BYTES:
            return False
        if not is_marker and written + needed + _UNIT - self._read > _MESSAGES_BYTES:
            self._read = self.numbers[_READ]
            if written + needed + _UNIT - self._read > _MESSAGES_BYTES:
                return False
        if size > to_end:
            _HEADER.pack_into(self._messages, offset, _SKIP, 0)
            written += to_end
            offset = 0
        _HEADER.pack_into(self._messages, offset, length, kind)
        self._messages[offset + _UNIT : offset + _UNIT + length] = body
        self._written = self.numbers[_WRITTEN] = written + size
        with self._fence:
            pass
        waits_for = self.numbers[_WAIT]
        if waits_for != self._rung_for:
            self._rung_for = waits_for
            if waits_for:
                os.eventfd_write(self.bell, 1)
        return True


class RingReader(_Ring):
    """The trainer's side."""

    def __init__(self, memory: int, bell: int) -> None:
        super().__init__(memory, bell)
        self._num_waits = 0
        self._num_read = 0
        self._naps = Naps()

    def read(self) -> Frame | None:
        """Return the next message, or None."""
        read = self._read
        if read == self._written:
            self._written = self.numbers[_WRITTEN]
            if read == self._written:
                return None
        offset = read % _MESSAGES_BYTES
        length, kind = _HEADER.unpack_from(self._messages, offset)
        if length == _SKIP:
            read += _MESSAGES_BYTES - offset
            offset = 0
            length, kind = _HEADER.unpack_from(self._messages, 0)
        start = offset + _UNIT
        body = bytes(self._messages[start : start + length])
        self._num_read += 1
        self._read = self.numbers[_READ] = read + _UNIT + (length + _UNIT - 1 & -_UNIT)
        # skips NamedTuple's Python `__new__`: twice as fast
        return tuple.__new__(Frame, (kind, body))

    @property
    def is_empty(self) -> bool:
        """Whether every message was read."""
        return self.numbers[_WRITTEN] == self._read

    def nap_s(self) -> float:
        """Return how long to sleep, as everything was read and messages come fast; 0: not at all."""
        return self._naps.duration_s(time.perf_counter(), self._num_read)

    def end_nap(self) -> bool:
        """Record that the reader has slept; return whether any message has come."""
        if self.board.is_writer_asleep:
            self._naps.overslept()
        return not self.is_empty

    def begin_wait(self) -> bool:
        """Ask for the bell at the next message; return False if there is one already."""
        self._num_waits += 1
        self.numbers[_WAIT] = self._num_waits
        with self._fence:
            pass
        return self.is_empty

    def end_wait(self) -> None:
        """Ask for it no longer; it may still ring once."""
        self.numbers[_WAIT] = 0


# Messages that come faster than this are worth a nap: several have arrived at its end.
_BRISK_S = 150e-6
_NUM_PER_NAP = 4
_LONGEST_NAP_S = 150e-6
# What the kernel adds to a sleep.
_SLACK_S = 55e-6
_SHORTEST_SLEEP_S = 5e-6
# Without naps after one at whose end the writer waited: fewer where that is rare, as beside busy processes.
_FEWEST_WAITS, _MOST_WAITS = 16, 256


class Naps:
    """Learns from the moments at which everything was read how fast messages come."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._num_read = 0
        self._without_naps = 0
        self._num_waits = _FEWEST_WAITS
        self._is_napping = False

    def duration_s(self, now_s: float, num_read: int) -> float:
        """Return how long to sleep before asking for a wake-up; 0: not at all.

        Args:
            now_s: The time: everything that has arrived was read.
            num_read: Messages that were read so far.
        """
        passed_s, num_new = now_s - self._began_s, num_read - self._num_read
        self._began_s, self._num_read = now_s, num_read
        if self._without_naps:
            self._without_naps -= 1
            return 0.0
        if self._is_napping:
            self._num_waits = max(_FEWEST_WAITS, self._num_waits // 2)
        self._is_napping = False
        if passed_s >= _BRISK_S * num_new:
            return 0.0
        self._is_napping = True
        return max(_SHORTEST_SLEEP_S, min(_LONGEST_NAP_S, _NUM_PER_NAP * passed_s / num_new) - _SLACK_S)

    def overslept(self) -> None:
        """Take no naps for some time: the writer waited for the reader at the end of one."""
        self._without_naps, self._is_napping = self._num_waits, False
        self._num_waits = min(2 * self._num_waits, _MOST_WAITS)
