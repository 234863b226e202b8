"""The trainer's side of a worker process: tasks go out, messages and microbatches come in."""

import contextlib
import functools
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from fkat_data.errors import WorkerError
from fkat_data.errors.wording import add_note
from fkat_data.observe.events import MAIN_THREAD
from fkat_data.observe.sink import EventSink
from fkat_data.observe.stages import BEGAN_S, PRODUCED, stage_times
from fkat_data.observe.timeline import Timeline
from fkat_data.plan.position import Task
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.lifetime import WeakTable
from fkat_data.transport.anonymous import anonymous_file
from fkat_data.transport.channel import Channel, ChannelClosed, Frame
from fkat_data.transport.codec import decode
from fkat_data.transport.segment import Lease, Segment, SegmentLeases
from fkat_data.worker.messages import (
    CLAIM_TABLE,
    CREDIT,
    END,
    FAILURE,
    ITEM,
    LIMIT,
    MEMORY,
    MEMORY_SHORTAGE,
    NO_SEGMENT,
    PAGE_BYTES,
    SEGMENT,
    TASK_ID,
    CallerProgress,
    End,
    Failure,
    Item,
    Kind,
    MemoryShortage,
    Message,
    SingleWorkerShard,
    TaskReports,
    WorkerGone,
    pack_task,
    remember_fingerprint,
    reportable,
    unpack_failure,
    unpack_fingerprint,
)
from fkat_data.worker.process.handle import ServerProcess, ShippedSettings, WorkerProcess
from fkat_data.worker.process.shared_workers import SharedWorkers, WorkerOutput
from fkat_data.worker.worker import PipedWorker, WorkerReport

_LARGE_CREDIT_BYTES = 4 << 20
_UNWINDING_S = 0.5

_workers: "WeakTable[int, ProcessWorker]" = WeakTable()


class ProcessWorker(TaskReports, PipedWorker):
    """A worker process and the trainer's end of its pipe.

    Args:
        shipment: What the worker starts with; stays the caller's.
        stacks: A descriptor of memory for the worker's stacks (see ``WorkerProcess``); stays the caller's.
        worker_index: Its number among the loader's workers.
        title: The process's title.
        prefetch_bytes: Shared memory that the worker takes to prefetch.
        sink: Gets the trainer's waits, and a range for each decoding.
        timeline: Gets the worker's events; None: it sends none.
        server: Forks the worker; None: it is spawned.
        ended: Takes the leases of its segments that have ended; one for all workers of the loader.
        is_zero_copy: Whether microbatches are views of shared memory, or copies.
        shared: Passes on what the worker makes; None: this rank alone gets it.
    """

    works_ahead: bool = True

    def __init__(
        self,
        shipment: ShippedSettings,
        stacks: int,
        worker_index: int,
        title: str,
        prefetch_bytes: int,
        sink: EventSink,
        timeline: Timeline | None = None,
        server: ServerProcess | None = None,
        ended: "deque[Lease] | None" = None,
        *,
        is_zero_copy: bool,
        shared: SharedWorkers | None = None,
    ) -> None:
        super().__init__()
        self._sink = sink
        self._timeline = timeline
        self._num_received = 0
        self._is_zero_copy = is_zero_copy
        self._owner_pid = os.getpid()
        ours, theirs = socket.socketpair()
        page: int | None = None
        try:
            page = anonymous_file()
            os.truncate(page, PAGE_BYTES)
            self._page = Segment(0, page, PAGE_BYTES, is_written=True).view.cast("d")
            self._hazard = shipment.hazard and f"\n{shipment.hazard}"
            self._process = WorkerProcess(title, shipment, worker_index, theirs.fileno(), page, stacks, server)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if page is not None:
                os.close(page)
        self._caller_progress = CallerProgress(self._page)
        self._worker_index = worker_index
        self._is_named = False
        self._channel = Channel(ours)
        if self._process.child.end_descriptor is not None:
            # Beside the pipe, which a child of the worker may hold open.
            self._channel.watch(self._process.child.end_descriptor)
        self._credits = _Credits(self._channel, prefetch_bytes)
        self._ended: deque[Lease] = deque() if ended is None else ended
        self._output = None if shared is None else shared.of_worker(self._credits.give)
        give = self._credits.give if self._output is None else self._output.give
        self._leases = SegmentLeases(
            functools.partial(give, Kind.CREDIT), functools.partial(give, Kind.DISCARD), self._ended
        )
        if self._output is not None:
            self._channel.watch(self._output.bell.fileno())
        self._is_hung_up = False
        self._is_closing = self._is_closed = False
        self._last_begun = -1
        self._allowed = -1, 0
        _workers[id(self)] = self

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.child.pid

    @property
    def is_alive(self) -> bool:
        """Whether the worker can take tasks."""
        return not self._is_closing and not self._process.child.is_dead()

    @property
    def has_started(self) -> bool:
        """Whether the worker has opened what it was sent, and looks for tasks."""
        return self._page[BEGAN_S] > 0

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when a message comes, or when the process ends."""
        end, bell = self._process.child.end_descriptor, None if self._output is None else self._output.bell.fileno()
        return tuple(each for each in (self._channel.fileno(), end, bell) if each is not None)

    def join_group(self, claim_table: int, num_workers: int, member_index: int) -> None:
        """Let the worker make shards together with others; before its first task.

        Args:
            claim_table: A descriptor of the group's table (see ``fkat_data.worker.process.claim_table``); stays the caller's.
            num_workers: Workers of the group.
            member_index: The index of the worker among them.
        """
        with contextlib.suppress(ChannelClosed):  # the next receive() raises it
            self._channel.send(Kind.CLAIM_TABLE, CLAIM_TABLE.pack(num_workers, member_index), claim_table)

    @property
    def num_ready(self) -> int:
        """Microbatches that the worker has made, and that were not received."""
        return int(self._page[PRODUCED]) - self._num_received

    @property
    def is_waiting(self) -> bool:
        """Whether the last call was interrupted while it waited for a message."""
        return self._channel.is_waiting

    def end_wait(self) -> None:
        """Record that the interrupted wait is over."""
        self._channel.end_wait()

    def report(self) -> WorkerReport:
        """Return what the worker has done so far, and what it holds."""
        leases, lent_bytes = self._leases, 0 if self._output is None else self._output.lent_bytes
        return WorkerReport(
            stage_times(self._page, time.perf_counter()),
            self._num_received,
            held_bytes=leases.leased_bytes + lent_bytes,
            lent_bytes=lent_bytes,
            num_segments=leases.num_mapped,
            segment_bytes=leases.mapped_bytes,
        )

    def dismiss(self) -> None:
        """Let the worker leave as soon as it looks at the pipe, and send its last events before."""
        self._channel.hang_up(socket.SHUT_WR)

    def take_events(self, deadline_s: float) -> None:
        """Receive the events that a dismissed worker sends, and drop all else, up to ``deadline_s`` (monotonic)."""
        with contextlib.suppress(ChannelClosed, WorkerError):
            while self._timeline is not None:
                frame = self._channel.receive()
                if frame is not None:
                    if frame.kind == Kind.EVENTS:
                        self._write_events(frame.body)
                elif not self._channel.wait(max(0.0, deadline_s - time.monotonic())):
                    return

    def has_begun(self, task_id: int) -> bool:
        """Return whether the worker has reported that it works on a task."""
        return self._last_begun >= task_id

    def stack(self) -> str:
        """Return the worker's Python stacks, taken from outside, and what may hold it up since its start."""
        return f"{self._process.stack()}{self._hazard}"

    def give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        """Give a task that was assigned without it what the one before has left."""
        self._channel.post(Kind.LEFTOVER_ROWS_IN, TASK_ID.pack(task_id) + leftover_rows)

    def assign(self, task: Task, limit: int) -> None:
        """Take a task, to be produced after those taken before."""
        self._channel.post(Kind.ASSIGN, pack_task(task, limit))

    def begin_behind(self, task_id: int, index: int) -> None:
        """Let the worker begin a task at a microbatch, if it has not begun it: the caller makes those before."""
        self._caller_progress.set(task_id, index)

    def allow(self, task_id: int, limit: int, *, is_ahead: bool = False) -> None:
        """Let the task be produced up to ``limit`` microbatches; ``is_ahead``: of a later task than the current one."""
        if is_ahead:
            self._channel.post(Kind.ALLOW, LIMIT.pack(task_id, limit))
            return
        self._allowed = task_id, limit
        board = self._channel.board
        if board is None or board.publish(task_id, limit):
            self._channel.post(Kind.ALLOW, LIMIT.pack(task_id, limit))

    def allow_memory(self, size_bytes: int) -> None:
        """Let the worker's segments take so much together, within its limit."""
        self._channel.post(Kind.MEMORY, MEMORY.pack(size_bytes))

    def cancel(self, task_id: int) -> None:
        """Drop every task with an id below this one."""
        self._channel.post(Kind.CANCEL, TASK_ID.pack(task_id))

    def flush(self) -> None:
        """Send what was posted, if there is room for it; for a caller that waits for several workers."""
        if self._ended:
            self._leases.collect()
        self._channel.flush()

    def receive(self, *, timeout_s: float | None) -> Message | SingleWorkerShard | None:
        """Return the next message, or None if none comes within ``timeout_s``; None: wait without a limit.

        Raises:
            WorkerGone: The process is gone, and everything that it sent was received.
        """
        if self._ended:
            self._leases.collect()
        if self._output is not None:
            self._output.collect()
        while True:
            try:
                frame = self._channel.receive()
            except ChannelClosed:
                raise self._gone() from None
            if frame is None:
                if timeout_s == 0 or not self._wait(timeout_s):
                    return None
            elif frame.kind == _ITEM_KIND:
                return self._item(frame.body)
            else:
                message = self._control(frame)
                if message is not None:
                    return message

    def kill(self) -> None:
        """Kill the worker's process; what it has sent can still be received."""
        self._process.child.kill()

    def hang_up(self) -> None:
        """Close the pipe: the worker ends when it next reads, and a thread that waits for the worker wakes up."""
        self._is_hung_up = True
        self._channel.hang_up()

    def close(self, timeout_s: float) -> None:
        """End the worker: by the closed pipe, or by a signal when ``timeout_s`` has passed. Any number of calls."""
        self._is_closing = True
        if self._is_closed or os.getpid() != self._owner_pid:  # a fork of the trainer has the object, not the worker
            return
        self.hang_up()
        try:
            self._process.close(timeout_s)
        finally:
            # Only now: a thread that waits in receive() wakes up, and must find its descriptors as they were.
            self._channel.close()
            self._leases.clear()
            if self._output is not None:
                self._output.end()
        self._is_closed = True  # an interrupted call is to be repeated

    def share(self) -> None:
        """Before a fork: mark what the child inherits, as it must not be written again."""
        self._leases.share()

    def abandon(self) -> None:
        """In a forked child: close what would keep the worker alive, and nothing else."""
        if self._is_closed:
            return
        self._is_closing = self._is_closed = True
        self._channel.abandon()
        self._process.abandon()

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait for a message; return whether one has arrived."""
        began_s = time.perf_counter()
        board = self._channel.board
        if board is not None and self._allowed[0] >= 0 and board.is_asleep():
            self._channel.defer(Kind.ALLOW, LIMIT.pack(*self._allowed))
        try:
            has_arrived = self._channel.wait(timeout_s)
            while not has_arrived and self._output is not None and self._output.collect():
                left_s = None if timeout_s is None else timeout_s - (time.perf_counter() - began_s)
                if left_s is not None and left_s <= 0:
                    break
                has_arrived = self._channel.wait(left_s)
        finally:
            self._sink.waited(began_s, time.perf_counter())
        if not has_arrived and self._process.child.is_dead():
            raise self._gone()
        return has_arrived

    def _gone(self) -> WorkerGone:
        if os.getpid() != self._owner_pid:
            raise RuntimeError(
                f"this loader belongs to process {self._owner_pid}; make one in process {os.getpid()}, "
                "which was forked from it"
            )
        if self._is_hung_up:  # by another thread, which gives the worker time to leave
            return WorkerGone(self.pid, None, "")
        # The pipe of a worker that unwinds is closed before its exit code is known.
        self._process.join(_UNWINDING_S)
        is_killed = not self._process.child.is_dead()
        self._process.child.kill()
        self._process.join(1.0)
        exit_code = None if is_killed else self._process.child.exit_code
        return WorkerGone(self.pid, exit_code, self._process.last_words)

    def _control(self, frame: Frame) -> Message | SingleWorkerShard | None:
        """Act on a message that is no microbatch; return it if the loader has to act, too."""
        body = frame.body
        if frame.kind in _READERS:
            return _READERS[frame.kind](body)
        match frame.kind:
            case Kind.SEGMENT:
                self._add_segment(*SEGMENT.unpack(body))
            case Kind.RETIRE:
                self._remove_segment(*CREDIT.unpack(body))
            case Kind.BEGIN:
                self._last_begun = TASK_ID.unpack(body)[0]
            case Kind.LEFTOVER_ROWS_OUT:
                self._leftover_rows[TASK_ID.unpack_from(body)[0]] = bytes(body[TASK_ID.size :])
            case Kind.FINGERPRINT:
                remember_fingerprint(self._fingerprints, *unpack_fingerprint(body))
            case Kind.MEMORY_SHORTAGE:
                shortage = MemoryShortage(*MEMORY_SHORTAGE.unpack(body))
                if shortage.left_bytes >= 0:
                    self._credits.hurry()
                return shortage
            case Kind.EVENTS:
                self._write_events(body)
            case _:
                raise ValueError(f"the worker sent a message of unknown kind {frame.kind}")
        return None

    def _add_segment(self, index: int, size_bytes: int) -> None:
        descriptor = self._channel.take_descriptor()
        if self._output is not None:
            self._output.add(index, size_bytes, descriptor)
        self._leases.add(index, descriptor, size_bytes)

    def _remove_segment(self, index: int) -> None:
        self._leases.remove(index)
        if self._output is not None:
            self._output.retire(index)

    def _write_events(self, events: bytes) -> None:
        if self._timeline is None:
            return
        if not self._is_named:  # a process that is being forked has no id at the constructor's end
            self._is_named = True
            self._timeline.name_process(self.pid, f"worker {self._worker_index}")
            self._timeline.name_thread(self.pid, MAIN_THREAD, "production")
        self._timeline.write(events)

    def _item(self, body: bytes) -> Message:
        self._num_received += 1
        lease = self._leases.lease
        if self._output is not None:
            lease = self._kept_lease(self._output, body)
        return read_item(body, lease, self._sink, is_zero_copy=self._is_zero_copy)

    def _kept_lease(self, output: WorkerOutput, body: bytes) -> Callable[[int], Any]:
        """Have a message wait for its turn with its hold on a segment; return what returns that."""
        task_id, index, _, segment, *_ = ITEM.unpack_from(body)
        base = None if segment == NO_SEGMENT else self._leases.lease(segment)
        output.keep(task_id, index, segment, body, base)
        return lambda _: base


def read_item(body: bytes, lease: Callable[[int], Any], sink: EventSink, *, is_zero_copy: bool) -> Message:
    """Return the message of a microbatch, with views of its segment.

    Args:
        body: What the worker has sent.
        lease: Returns the memory of a segment, which is released when the last view of it dies.
        sink: Gets a range for the decoding.
        is_zero_copy: Whether the microbatch has views; else copies.
    """
    task_id, index, is_last, segment, in_segment, num_parts, envelope_bytes, size_bytes, digest = ITEM.unpack_from(body)
    sizes: tuple[int, ...] = struct.unpack_from(f"<{num_parts}q", body, _ITEM_BYTES) if num_parts else ()
    start = _ITEM_BYTES + 8 * num_parts
    base: Any
    if segment == NO_SEGMENT:
        envelope = body[start : start + envelope_bytes]
        base = bytearray(memoryview(body)[start + envelope_bytes :])
    else:
        base = lease(segment)
        envelope = body[start:]
        if in_segment:
            envelope = memoryview(base)[size_bytes : size_bytes + envelope_bytes]
        if not is_zero_copy:
            base = bytearray(memoryview(base)[:size_bytes])
    try:
        if sink.is_profiled():
            with sink.range("decode"):
                microbatch = decode(envelope, sizes, base, 0)
        else:
            microbatch = decode(envelope, sizes, base, 0)
    except genuine(Exception) as error:
        # What rebuilding a user's class raises belongs in its place.
        return _unbuilt(task_id, index, error)
    except BaseException as error:
        # Raised again by what is rebuilt; what a signal has raised here is the caller's.
        try:
            decode(envelope, sizes, base, 0)
        except BaseException as again:  # noqa: BLE001 - see above
            if type(again) is type(error):
                return _unbuilt(task_id, index, reportable(error, f"rebuilding microbatch {index}"))
        raise
    # skips NamedTuple's Python `__new__`: twice as fast
    return tuple.__new__(Item, (task_id, index, None if is_last < 0 else bool(is_last), microbatch, size_bytes, digest))


def _unbuilt(task_id: int, index: int, error: BaseException) -> Failure:
    add_note(error, f"fkat_data: while rebuilding microbatch {index} in the trainer's process")
    return Failure(task_id, error, index)


def _failure(body: bytes) -> Failure:
    task_id, index = FAILURE.unpack_from(body)
    return Failure(task_id, unpack_failure(body[FAILURE.size :]), index)


_ITEM_KIND, _ITEM_BYTES = int(Kind.ITEM), ITEM.size
_READERS: dict[int, Callable[[bytes], Message | SingleWorkerShard]] = {
    Kind.END: lambda body: End(*END.unpack(body)),
    Kind.FAILURE: _failure,
    Kind.SINGLE_WORKER_SHARD: lambda body: SingleWorkerShard(
        TASK_ID.unpack_from(body)[0], body[TASK_ID.size :].decode()
    ),
}


class _Credits:
    """The credits of a worker: segments that go back to it.

    A credit wakes the worker: small ones wait for each other, or for the trainer to wait.
    """

    def __init__(self, channel: Channel, prefetch_bytes: int) -> None:
        self._channel = channel
        self._deferred_bytes = 0
        self._most_deferred_bytes = min(_LARGE_CREDIT_BYTES, prefetch_bytes // 8)

    def hurry(self) -> None:
        """Defer no credit from now on: the worker has less memory than its limit says."""
        self._most_deferred_bytes = 0

    def give(self, kind: Kind, index: int, size_bytes: int) -> None:
        """Give a segment back, by a ``CREDIT``, or by a ``DISCARD`` if it must not be written again."""
        self._channel.defer(kind, CREDIT.pack(index))
        self._deferred_bytes += size_bytes
        if self._deferred_bytes >= self._most_deferred_bytes:
            self._deferred_bytes = 0
            self._channel.flush()


def _share_segments() -> None:
    for worker in _workers.values():
        worker.share()


def _abandon_workers() -> None:
    for worker in _workers.values():
        worker.abandon()
    _workers.clear()


os.register_at_fork(before=_share_segments, after_in_child=_abandon_workers)
