"""The worker's loop: take tasks from the pipe, produce them, write each microbatch once, send its envelope.

::

    waiting for a task ── ASSIGN ──> producing ── last microbatch ──> waiting for a task
                                      │      └── CANCEL ───────────────────^
                                      └── no room, or no allowance ──> waiting for CREDIT, ALLOW or CANCEL
    end of file, in any state ──> the trainer is gone, or has closed the loader: return
"""

import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fkat_data.errors import WorkerError
from fkat_data.observe.stages import StageClock
from fkat_data.plan.task import Task
from fkat_data.transport.channel import Channel, ChannelClosed
from fkat_data.transport.codec import copied_size, encode, write
from fkat_data.transport.digest import digest_of
from fkat_data.transport.segment import Segment, SegmentPool
from fkat_data.worker.failure import pack_failure
from fkat_data.worker.messages import (
    ALLOWANCE,
    CREDIT,
    END,
    ITEM,
    NO_LIMIT,
    NO_SEGMENT,
    SEGMENT,
    STARVED,
    TICKET,
    Kind,
    unpack_task,
)
from fkat_data.worker.produce import Produced, Producer, name_place, produce

__all__ = ["Server"]

# Up to here a microbatch travels in the message itself: a segment's lease and credit would cost more than the copy.
_INLINE_BYTES = 2048
# A longer envelope (text, nested Python objects) is written to the segment, so that it does not fill the socket.
_LONGEST_ENVELOPE = 16384
# From here the cache decides on the speed of a copy, and a system call beside it does not count.
_LARGE_BYTES = 1 << 20
# So far ahead, there is time to wait for what is on its way back; without that the pool would grow with each delay.
_MANY_SEGMENTS = 128
_MOMENT_S = 0.001
# Where a control group is short of memory: between two looks at it, and between two words about it.
_SHORT_S, _TELL_AGAIN_S = 0.02, 0.5
_MOST_UNHEARD = 16
_LONGEST_UNHEARD_S = 0.001


class _UnheardError(Exception):
    """What the trainer said was not taken in: the worker must not go on as if it had been."""


class _CancelledError(Exception):
    """The trainer does not want the current task any more."""


@dataclass
class _Job:
    task: Task
    allowance: int


class Server:
    """Serves one trainer until it closes the pipe.

    Args:
        channel: The worker's end of the pipe.
        producer: How tasks are produced.
        limit_bytes: Shared memory that this worker may take.
        finish: Called once at the end.
        clock: Counts what is made, and measures the time.
        is_digested: Whether microbatches are to have digests.
    """

    def __init__(
        self,
        channel: Channel,
        producer: Producer,
        limit_bytes: int,
        finish: Callable[[], None],
        *,
        clock: StageClock,
        is_digested: bool = False,
    ) -> None:
        self._clock = clock
        channel.while_full = functools.partial(clock.within, "blocked")
        self._recorder = clock.recorder
        self._is_digested = is_digested
        self._finish = finish
        self._channel = channel
        self._producer = producer
        self._limit_bytes = limit_bytes
        self._pool = SegmentPool(limit_bytes, self._announce, self._retire)
        self._jobs: deque[_Job] = deque()
        self._cancelled_below = 0
        self._num_unheard = 0
        self._heard_s = 0.0
        scratch = np.zeros(_INLINE_BYTES, dtype=np.uint8)
        self._scratch = memoryview(scratch)  # pyright: ignore[reportArgumentType]  # an array is a buffer from Python 3.12's typing on
        self._scratch_address: int = scratch.ctypes.data

    def run(self) -> None:
        """Serve; returns when the trainer is gone or has closed the pipe."""
        try:
            while True:
                if not self._jobs:
                    self._wait_for_task()
                self._do(self._jobs[0])
                if self._jobs:
                    self._jobs.popleft()
        except ChannelClosed:
            # Pieces of a timeline that are still here: the trainer may have closed its side of the pipe alone.
            self._producer.mark("")
            with contextlib.suppress(ChannelClosed):
                self._send_events()
        finally:
            self._finish()

    def _do(self, job: _Job) -> None:
        task = job.task
        index = task.first_microbatch
        is_last: bool | None = None
        production = produce(task, self._producer)
        self._channel.send(Kind.BEGIN, TICKET.pack(task.ticket))
        try:
            self._wait_for_allowance(job, index)
            for produced in production:
                self._publish(task, produced)
                index, is_last = produced.microbatch_index + 1, produced.is_last
                if is_last:
                    break
                self._wait_for_allowance(job, index)
            if not is_last:
                self._send_events()
                self._channel.send(Kind.END, END.pack(task.ticket, index))
        except _CancelledError:
            pass
        except (ChannelClosed, _UnheardError):
            raise
        except BaseException as raised:  # noqa: BLE001 - a user's exception of any kind is the trainer's to handle
            error = raised if isinstance(raised, Exception) else _told(raised)
            place = name_place(error, task, index, is_open=True)
            self._send_events()
            self._channel.send(Kind.FAILURE, TICKET.pack(task.ticket) + pack_failure(error, place))
        finally:
            production.close()

    def _wait_for_task(self) -> None:
        self._producer.mark("idle")
        self._send_events()
        while not self._jobs:
            self._hear(block=True)
        self._producer.mark("")

    def _wait_for_allowance(self, job: _Job, index: int) -> None:
        self._check_wanted(job.task)
        # Listening costs a system call: a fast producer does it every few microbatches, a slow one for each.
        self._num_unheard += 1
        if self._num_unheard >= _MOST_UNHEARD or time.monotonic() - self._heard_s > _LONGEST_UNHEARD_S:
            self._hear(block=False)
            self._check_wanted(job.task)
        if job.allowance != NO_LIMIT and index >= job.allowance:
            self._producer.mark("blocked", index)
            while job.allowance != NO_LIMIT and index >= job.allowance:
                self._hear(block=True)
                self._check_wanted(job.task)
            self._producer.mark("")

    def _check_wanted(self, task: Task) -> None:
        if task.ticket < self._cancelled_below:
            raise _CancelledError

    def _publish(self, task: Task, produced: Produced) -> None:
        self._producer.mark("encode", produced.microbatch_index)
        encoded = encode(produced.microbatch)
        digest = digest_of(produced.microbatch) if self._is_digested else 0
        size_bytes = encoded.size_bytes
        envelope, tail = encoded.envelope, encoded.envelope
        segment_index, in_segment = NO_SEGMENT, len(envelope) > _LONGEST_ENVELOPE
        if size_bytes <= _INLINE_BYTES and not in_segment:
            write(encoded.parts, self._scratch, self._scratch_address, 0)
            tail = envelope + self._scratch[:size_bytes]
        else:
            extra = copied_size([len(envelope)]) if in_segment else 0
            segment = self._take_segment(task, size_bytes + extra)
            write(encoded.parts, segment.view, segment.address, extra)
            if in_segment:
                segment.view[: len(envelope)] = envelope
                tail = b""
            segment_index = segment.index
        is_last = -1 if produced.is_last is None else int(produced.is_last)
        head = ITEM.pack(
            task.ticket,
            produced.microbatch_index,
            is_last,
            segment_index,
            in_segment,
            len(encoded.parts),
            len(envelope),
            digest,
        )
        if self._recorder is not None and (produced.is_last or self._recorder.is_due):
            self._recorder.flush()
        self._clock.count()
        self._channel.send(Kind.ITEM, b"".join((head, encoded.layout, tail)))

    def _take_segment(self, task: Task, size_bytes: int) -> Segment:
        # Segments that were given back meanwhile are warm: a large microbatch goes there, not to the next free one.
        segment = None if size_bytes >= _LARGE_BYTES else self._pool.take_free(size_bytes)
        if segment is None:
            self._hear(block=False)
            self._check_wanted(task)
            segment = self._take_returning(task, size_bytes) or self._pool.take(size_bytes)
        if segment is None:
            self._tell_starved(size_bytes)
            with self._clock.within("blocked"):
                told_s = time.monotonic()
                while segment is None:
                    # Nobody tells of memory that a control group has again.
                    is_short = self._pool.group_bytes is not None
                    self._hear(block=not is_short or self._channel.wait(_SHORT_S))
                    self._check_wanted(task)
                    segment = self._pool.take(size_bytes)
                    if is_short and segment is None and time.monotonic() > told_s + _TELL_AGAIN_S:
                        self._tell_starved(size_bytes)
                        told_s = time.monotonic()
        return segment

    def _tell_starved(self, size_bytes: int) -> None:
        pool = self._pool
        group_bytes = -1 if pool.group_bytes is None else pool.group_bytes
        numbers = (pool.size_of(size_bytes), pool.held_bytes, self._limit_bytes, group_bytes)
        self._channel.send(Kind.STARVED, STARVED.pack(*numbers))

    def _take_returning(self, task: Task, size_bytes: int) -> Segment | None:
        """Return a free segment; where many are out, one that comes back within a moment: a new one costs as much."""
        segment = self._pool.take_free(size_bytes)
        if segment is None and self._pool.num_segments >= _MANY_SEGMENTS and self._channel.wait(_MOMENT_S):
            self._hear(block=False)
            self._check_wanted(task)
            segment = self._pool.take_free(size_bytes)
        return segment

    def _send_events(self) -> None:
        if self._recorder is not None:
            self._recorder.flush()

    def _hear(self, *, block: bool) -> None:
        """Take what the trainer has said; wait for at least one message if ``block``."""
        self._num_unheard, self._heard_s = 0, time.monotonic()
        frame = self._channel.receive()
        while frame is None and block:
            self._channel.wait()
            frame = self._channel.receive()
        while frame is not None:
            try:
                self._obey(frame.kind, frame.body)
            except ChannelClosed:
                raise
            except Exception as error:
                # Taken for the dataset's, it would fail one shard, and a lost task would be waited for in vain.
                raise _UnheardError("a message of the trainer's could not be taken in") from error
            frame = self._channel.receive_buffered()

    def _obey(self, kind: int, body: bytes) -> None:
        match kind:
            case Kind.CREDIT:
                self._pool.give_back(CREDIT.unpack(body)[0])
            case Kind.DISCARD:
                self._pool.discard(CREDIT.unpack(body)[0])
            case Kind.ALLOW:
                ticket, allowance = ALLOWANCE.unpack(body)
                for job in self._jobs:
                    if job.task.ticket == ticket:
                        job.allowance = allowance
            case Kind.ASSIGN:
                task, allowance = unpack_task(body)
                self._jobs.append(_Job(task, allowance))
            case Kind.CANCEL:
                self._cancelled_below = TICKET.unpack(body)[0]
                # The first job is the one in work: it ends itself.
                self._jobs = deque(
                    job
                    for place, job in enumerate(self._jobs)
                    if place == 0 or job.task.ticket >= self._cancelled_below
                )
            case _:
                raise ValueError(f"the trainer sent a message of unknown kind {kind}")

    def _announce(self, segment: Segment, descriptor: int) -> None:
        self._channel.send(Kind.SEGMENT, SEGMENT.pack(segment.index, segment.size_bytes), descriptor)

    def _retire(self, index: int) -> None:
        self._channel.send(Kind.RETIRE, CREDIT.pack(index))


def _told(raised: BaseException) -> WorkerError:
    """Return an error for what must not be raised in the trainer: a dataset's SystemExit would end it without a word."""
    error = WorkerError(f"the dataset raised {type(raised).__name__}({raised})")
    error.__cause__ = raised
    return error
