"""The worker's loop: take tasks from the pipe, produce them, write each microbatch once, send its envelope.

::

    waiting for a task ── ASSIGN ──> producing ── last microbatch ──> waiting for a task
                                      │      └── CANCEL ───────────────────^
                                      └── no room, or no limit ──> waiting for CREDIT, ALLOW or CANCEL
    end of file, in any state ──> the trainer is gone, or has closed the loader: return
"""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Generator

import numpy as np

from fkat_data.errors import WorkerError
from fkat_data.errors.wording import shard_name
from fkat_data.observe.stages import StageClock
from fkat_data.plan.position import ShardFingerprint, Task
from fkat_data.transport.channel import Channel, ChannelClosed, TornFrameError
from fkat_data.transport.codec import Encoded, apart, encode, lies_at, write
from fkat_data.transport.digest import digest_of
from fkat_data.transport.memory_limit import WorkerMemory
from fkat_data.transport.segment import Segment, SegmentPool
from fkat_data.worker.collate import SegmentCollate
from fkat_data.worker.messages import (
    CLAIM_TABLE,
    CREDIT,
    END,
    FAILURE,
    ITEM,
    LIMIT,
    MEMORY,
    MEMORY_SHORTAGE,
    NO_LIMIT,
    NO_SEGMENT,
    SEGMENT,
    TASK_ID,
    CallerProgress,
    Kind,
    MemoryShortage,
    content_of,
    pack_failure,
    pack_fingerprint,
    reportable,
    unpack_task,
)
from fkat_data.worker.process.claim_table import ClaimTable, Refusal
from fkat_data.worker.produce import OpenShard, Produced, Producer, note_microbatch, produce

# Up to here a microbatch travels in the message itself: a segment's lease and credit would cost more than the copy.
_INLINE_BYTES = 2048
# A longer envelope (text, nested Python objects) is written to the segment, so that it does not fill the socket.
_LONGEST_ENVELOPE = 16384
# From here the cache decides on the speed of a copy, and a system call beside it does not count.
_LARGE_BYTES = 1 << 20
# Microbatches that other workers may be ahead by, where nothing bounds it.
_FAR = 64
# With this many, there is time to wait for one that comes back; without that the pool would grow with each delay.
_MANY_SEGMENTS = 128
_MOMENT_S = 0.001
# While a control group is short of memory: seconds between two looks, and between two reports.
_SHORT_S, _REPORT_AGAIN_S = 0.02, 0.5
# The first microbatch takes no more, so that workers which begin a shard share what is due first.
_CLAIMS_AT_ONCE = 2
_MOST_UNHEARD = 16
_LONGEST_UNHEARD_S, _JUST_HEARD_S = 0.001, 0.0001


class _UnheardError(Exception):
    """A message of the trainer's was lost: the worker must not go on as if it had acted on it."""


class _CancelledError(Exception):
    """The trainer no longer wants the current task."""


class Server:
    """The loop of a worker, which serves one trainer until that closes the pipe.

    Args:
        channel: The worker's end of the pipe.
        producer: How tasks are produced.
        memory: Shared memory that this worker may take.
        finish: Called once at the end.
        clock: Counts microbatches, and measures the stages.
        progress: Says what the trainer has made itself.
        is_digested: Whether to digest each microbatch.
    """

    def __init__(
        self,
        channel: Channel,
        producer: Producer,
        memory: WorkerMemory,
        finish: Callable[[], None],
        *,
        clock: StageClock,
        progress: CallerProgress,
        is_digested: bool = False,
    ) -> None:
        self._progress = progress
        self._clock = clock
        self._recorder = clock.recorder
        self._is_digested = is_digested
        self._finish = finish
        self._channel = channel
        self._producer = producer._replace(
            collate=SegmentCollate(self._room_to_collate, _INLINE_BYTES),
            report=self._report,
            take_leftover_rows=self._take_leftover_rows,
            give_leftover_rows=self._give_leftover_rows,
        )
        self._collated: Segment | None = None
        self._limit_bytes = memory.limit_bytes
        self._pool = SegmentPool(memory, self._announce, self._retire)
        self._tasks: deque[Task] = deque()
        self._limits: dict[int, int] = {}
        self._leftover_rows: dict[int, bytes] = {}
        # Where workers make shards together: their table, and whether the last shard's factory gave random access.
        self._claim_table: ClaimTable | None = None
        self._gave_random_access = True
        self._bound = 0
        self._cancelled_below = 0
        self._num_unheard = 0
        self._heard_s = 0.0
        scratch = np.zeros(_INLINE_BYTES, dtype=np.uint8)
        self._scratch = memoryview(scratch)  # pyright: ignore[reportArgumentType]  # an array is a buffer from Python 3.12's typing on
        self._scratch_address: int = scratch.ctypes.data

    def run(self) -> None:
        """Serve until the trainer is gone or has closed the pipe.

        Raises:
            TornFrameError: The trainer has received a part of a message. The process has to end, with this as its last
                words: nothing else can be said to the trainer.
        """
        try:
            while True:
                if not self._tasks:
                    self._wait_for_task()
                self._do(self._tasks[0])
                self._limits.pop(self._tasks.popleft().task_id)
        except ChannelClosed:
            pass
        finally:
            self._finish()

    def _do(self, task: Task) -> None:
        if self._claim_table is None:  # a trainer that waits for several workers waits for their sockets
            self._channel.open_ring()
        self._channel.send(Kind.BEGIN, TASK_ID.pack(task.task_id))
        task = self._progress.left_of(task)
        try:
            if self._claim_table is None or self._claim_table.sole_worker(task.task_id) == self._claim_table.worker:
                self._make_alone(task, produce(task, self._producer))
            else:
                self._make_together(task, self._claim_table)
        except _CancelledError:
            pass
        finally:
            self._producer.enter_stage("")
            self._give_back_collated()

    def _make_alone(self, task: Task, production: Generator[Produced]) -> None:
        """Make all of a shard that is left."""
        index = task.first_microbatch
        is_last: bool | None = None
        try:
            self._wait_for_limit(task, index)
            for produced in production:
                self._publish(task, produced)
                index, is_last = produced.microbatch_index + 1, produced.is_last
                if is_last:
                    break
                self._wait_for_limit(task, index)
            if not is_last:
                self._send_events()
                self._channel.send(Kind.END, END.pack(task.task_id, index))
        except (_CancelledError, ChannelClosed, TornFrameError, _UnheardError):
            raise
        except BaseException as raised:  # noqa: BLE001 - the trainer handles every exception of the user's
            self._send_failure(task, index, raised, is_open=True)
        finally:
            production.close()

    def _make_together(self, task: Task, claim_table: ClaimTable) -> None:
        """Make those microbatches of a shard that no other worker of the group makes."""
        shard: OpenShard | None = None
        index: int | None = task.first_microbatch
        try:
            # Where the shard before had no random access, the whole shard is claimed before it is opened.
            if self._gave_random_access or task.lost_microbatch is not None:
                index = self._claim(task, claim_table, None)
            elif not claim_table.claim_all(task.task_id, task.first_microbatch):
                return
            if index is None:
                return
            shard = OpenShard(task, self._producer, is_shared=True)
            self._gave_random_access = shard.is_random_access
            if not shard.is_random_access or claim_table.sole_worker(task.task_id) is not None:
                # Only one worker can make it: this one, unless another does.
                if claim_table.claim_all(task.task_id, task.first_microbatch):
                    self._channel.send(Kind.SINGLE_WORKER_SHARD, TASK_ID.pack(task.task_id) + shard.kind.encode())
                    self._make_alone(task, shard.produce())
                return
            while index is not None:
                if shard.prefetches:
                    self._look_ahead(task, claim_table, shard, index)
                index = (
                    self._claim(task, claim_table, shard) if self._make_one(task, claim_table, shard, index) else None
                )
        except (_CancelledError, ChannelClosed, TornFrameError, _UnheardError):
            raise
        except BaseException as raised:  # noqa: BLE001 - the trainer handles every exception of the user's
            index = task.first_microbatch if index is None else index
            claim_table.end(task.task_id, index)
            self._send_failure(task, index, raised, is_open=shard is not None)

    def _look_ahead(self, task: Task, claim_table: ClaimTable, shard: OpenShard, index: int) -> None:
        """Begin to read what is made now, and what this worker makes next, which no other worker claims from here on."""
        shard.prefetch(index)
        for _ in range(_CLAIMS_AT_ONCE):
            if claim_table.num_reserved(task.task_id) >= shard.num_prefetched:
                return
            reserved = claim_table.reserve(task.task_id)
            if reserved is None:
                return
            if not shard.indexed.has(reserved):
                claim_table.end(task.task_id, reserved)
                return
            shard.prefetch(reserved)

    def _make_one(self, task: Task, claim_table: ClaimTable, shard: OpenShard, index: int) -> bool:
        """Make a microbatch that was claimed; return whether the shard has it."""
        self._agree(task, claim_table, shard, index)
        produced = shard.make(index)
        if produced is None or produced.is_last:
            claim_table.end(task.task_id, index + (produced is not None))
        if produced is not None:
            self._publish(task, produced)
        elif index == task.first_microbatch:
            self._send_events()
            self._channel.send(Kind.END, END.pack(task.task_id, index))
        return produced is not None

    def _agree(self, task: Task, claim_table: ClaimTable, shard: OpenShard, index: int) -> None:
        """Compare what the workers have drawn of a shard, up to what others may make before this microbatch is taken.

        Raises:
            WorkerError: They have drawn other batches, or another number of them.
        """
        summary = shard.draw_summary(index, max(1, self._bound) if self._limits[task.task_id] < sys.maxsize else _FAR)
        if summary is not None and not claim_table.agrees(task.task_id, summary):
            raise WorkerError(
                f"the workers that make {shard_name(task.payload)} in epoch {task.epoch} together do not draw the same batches, or "
                f"not equally many: {summary.in_words} in one of them. Each draws all of its sampler: let that draw from the "
                "global generators of python, numpy and torch, and from nothing that differs between processes, such as a "
                "clock, an unseeded generator, or what it has kept from an epoch before; or pass num_workers_per_shard=1"
            )

    def _claim(self, task: Task, claim_table: ClaimTable, shard: OpenShard | None) -> int | None:
        """Return the next microbatch of a shard for this worker; None: it has no other."""
        self._hear_at_times(task)
        if task.lost_microbatch is not None and shard is None:
            claim_table.write_claim(task.task_id, task.lost_microbatch)
            return task.lost_microbatch
        task_id, first = task.task_id, task.first_microbatch
        index = claim_table.claim(task_id, first, self._limits[task_id])
        if index is Refusal.NOT_ALLOWED:
            self._producer.enter_stage("blocked", claim_table.next_claim(task_id))
            while index is Refusal.NOT_ALLOWED:
                if shard is not None and not shard.indexed.has(claim_table.next_claim(task_id)):
                    return None  # no limit comes for what the shard does not have
                self._hear_of(task, block=True)
                index = claim_table.claim(task_id, first, self._limits[task_id])
            self._producer.enter_stage("")
        return index if isinstance(index, int) else None

    def _report(self, task_id: int, fingerprint: ShardFingerprint) -> None:
        self._channel.send(Kind.FINGERPRINT, pack_fingerprint(task_id, fingerprint))

    def _take_leftover_rows(self, task: Task) -> bytes:
        self._producer.enter_stage("blocked", task.first_microbatch)
        while task.task_id not in self._leftover_rows:
            self._hear_of(task, block=True)
        self._producer.enter_stage("")
        return self._leftover_rows.pop(task.task_id)

    def _give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        self._channel.send(Kind.LEFTOVER_ROWS_OUT, TASK_ID.pack(task_id) + leftover_rows)

    def _send_failure(self, task: Task, index: int, raised: BaseException, *, is_open: bool) -> None:
        error = reportable(raised, "the dataset")
        note = note_microbatch(error, task, index, is_open=is_open)
        self._send_events()
        self._channel.send(Kind.FAILURE, FAILURE.pack(task.task_id, index) + pack_failure(error, note))

    def _wait_for_task(self) -> None:
        self._producer.enter_stage("idle")
        self._send_events()
        while not self._tasks:
            self._receive_commands(block=True)
        self._producer.enter_stage("")

    def _wait_for_limit(self, task: Task, index: int) -> None:
        self._hear_at_times(task)
        if index >= self._limits[task.task_id] and index >= self._renewed_limit(task):
            self._producer.enter_stage("blocked", index)
            self._sleep_until_allowed(task, index)
            self._producer.enter_stage("")

    def _hear_at_times(self, task: Task) -> None:
        if task.task_id < self._cancelled_below:
            raise _CancelledError
        # Receiving costs a system call: a fast producer does it every few microbatches, a slow one for each.
        self._num_unheard += 1
        if self._num_unheard >= _MOST_UNHEARD or time.monotonic() - self._heard_s > _LONGEST_UNHEARD_S:
            self._hear_of(task, block=False)

    def _renewed_limit(self, task: Task) -> int:
        if self._channel.board is not None:
            self._limits[task.task_id] = max(self._limits[task.task_id], self._channel.board.limit(task.task_id))
        return self._limits[task.task_id]

    def _sleep_until_allowed(self, task: Task, index: int) -> None:
        """Sleep until half of the bound is free, for a moment; then until anything is."""
        board = self._channel.board
        wanted, timeout_s = index + max(1, self._bound // 2), _MOMENT_S if board is not None else None
        try:
            while True:
                if board is not None:
                    board.sleep(wanted)
                if index < self._renewed_limit(task):
                    return
                is_over = not self._channel.wait(timeout_s)
                self._hear_of(task, block=False)
                if is_over:
                    # A limit that was written while the worker fell asleep is seen by now.
                    timeout_s = None if wanted == index + 1 else _MOMENT_S
                    wanted = index + 1
        finally:
            if board is not None:
                board.rise()

    def _publish(self, task: Task, produced: Produced) -> None:
        self._producer.enter_stage("encode", produced.microbatch_index)
        encoded = encode(produced.microbatch)
        digest = digest_of(content_of(produced.microbatch)) if self._is_digested else 0
        size_bytes = encoded.size_bytes
        envelope, tail = encoded.envelope, encoded.envelope
        segment_index, in_segment = NO_SEGMENT, len(envelope) > _LONGEST_ENVELOPE
        if size_bytes <= _INLINE_BYTES and not in_segment:
            write(encoded.parts, self._scratch, self._scratch_address, 0)
            tail = envelope + self._scratch[:size_bytes]
        else:
            segment = self._filled_segment(task, encoded, size_bytes + (len(envelope) if in_segment else 0))
            if in_segment:
                segment.view[size_bytes : size_bytes + len(envelope)] = envelope
                tail = b""
            segment_index = segment.index
        is_last = -1 if produced.is_last is None else int(produced.is_last)
        head = ITEM.pack(
            task.task_id,
            produced.microbatch_index,
            is_last,
            segment_index,
            in_segment,
            len(encoded.layout) // 8,
            len(envelope),
            size_bytes,
            digest,
        )
        if self._recorder is not None and (produced.is_last or self._recorder.is_due):
            self._send_events()
        self._clock.count()
        self._channel.send(Kind.ITEM, b"".join((head, encoded.layout, tail)))

    def _filled_segment(self, task: Task, encoded: Encoded, size_bytes: int) -> Segment:
        """Return a segment of at least this size, with the parts in it."""
        collated, self._collated = self._collated, None
        parts = encoded.parts
        if collated is not None:
            if size_bytes <= collated.size_bytes and lies_at(parts, collated.address):
                return collated
            # Given back before another one is taken, as there may be no room for two.
            parts = apart(parts)
            self._pool.give_back(collated.index)
        segment = self._take_segment(task, size_bytes)
        write(parts, segment.view, segment.address, 0)
        return segment

    def _room_to_collate(self, size_bytes: int) -> memoryview | None:
        self._give_back_collated()
        # One that can never be had is an error of the microbatch, once it is made.
        if size_bytes > self._limit_bytes:
            return None
        self._collated = self._take_segment(self._tasks[0], size_bytes)
        return self._collated.view

    def _give_back_collated(self) -> None:
        """Give back a segment whose microbatch was not sent: it was made again to compare, or raised an error."""
        collated, self._collated = self._collated, None
        if collated is not None:
            self._pool.give_back(collated.index)

    def _take_segment(self, task: Task, size_bytes: int) -> Segment:
        # Segments that came back meanwhile are warm: a large microbatch uses one of them instead of the next free one.
        is_heard = size_bytes < _LARGE_BYTES or time.monotonic() - self._heard_s < _JUST_HEARD_S
        segment = self._pool.take_free(size_bytes) if is_heard else None
        if segment is None:
            self._hear_of(task, block=False)
            segment = self._take_returning(task, size_bytes) or self._pool.take(size_bytes)
        if segment is None:
            self._report_shortage(size_bytes)
            with self._clock.within("blocked"):
                reported_s, allowed_bytes = time.monotonic(), self._pool.allowed_bytes
                while segment is None:
                    # No message comes when a machine, or a control group, has memory again.
                    is_short = self._pool.left_bytes is not None
                    self._hear_of(task, block=not is_short or self._channel.wait(_SHORT_S))
                    segment = self._pool.take(size_bytes)
                    is_due = is_short and time.monotonic() > reported_s + _REPORT_AGAIN_S
                    if segment is None and (is_due or self._pool.allowed_bytes > allowed_bytes):
                        self._report_shortage(size_bytes)
                        reported_s, allowed_bytes = time.monotonic(), self._pool.allowed_bytes
        return segment

    def _report_shortage(self, size_bytes: int) -> None:
        pool = self._pool
        left_bytes = -1 if pool.left_bytes is None else pool.left_bytes
        shortage = MemoryShortage(
            pool.size_of(size_bytes), pool.held_bytes, pool.allowed_bytes, self._limit_bytes, left_bytes
        )
        self._channel.send(Kind.MEMORY_SHORTAGE, MEMORY_SHORTAGE.pack(*shortage))

    def _take_returning(self, task: Task, size_bytes: int) -> Segment | None:
        """Return a free segment; if many are in use, one that comes back within a moment: a new one costs as much."""
        segment = self._pool.take_free(size_bytes)
        if segment is None and self._pool.num_segments >= _MANY_SEGMENTS and self._channel.wait(_MOMENT_S):
            self._hear_of(task, block=False)
            segment = self._pool.take_free(size_bytes)
        return segment

    def _send_events(self) -> None:
        if self._recorder is not None and (events := self._recorder.take()):
            self._channel.send(Kind.EVENTS, events)

    def _hear_of(self, task: Task, *, block: bool) -> None:
        """Act on the trainer's messages, and go on only with a task that it still wants."""
        self._receive_commands(block=block)
        if task.task_id < self._cancelled_below:
            raise _CancelledError

    def _receive_commands(self, *, block: bool) -> None:
        """Act on the trainer's messages; wait for at least one if ``block``."""
        self._num_unheard, self._heard_s = 0, time.monotonic()
        try:
            frame = self._channel.receive()
            while frame is None and block:
                self._channel.wait()
                frame = self._channel.receive()
        except ChannelClosed:
            # Send the timeline's last events: the trainer may have closed only its side of the pipe.
            # At once: it waits for a moment only, and to close a shard may take longer. And before the stage ends, which
            # the trainer draws where nothing has come of it.
            self._clock.draw()
            with contextlib.suppress(ChannelClosed):
                self._send_events()
            raise
        while frame is not None:
            try:
                self._handle(frame.kind, frame.body)
            except ChannelClosed:
                raise
            except Exception as error:
                # It would pass for an error of the dataset's, and the trainer would wait for a lost task forever.
                raise _UnheardError("the worker could not act on a message of the trainer's") from error
            frame = self._channel.receive_buffered()

    def _handle(self, kind: int, body: bytes) -> None:
        match kind:
            case Kind.CREDIT | Kind.DISCARD:
                free = self._pool.give_back if kind == Kind.CREDIT else self._pool.discard
                free(CREDIT.unpack(body)[0])
            case Kind.MEMORY:
                self._pool.allow(MEMORY.unpack(body)[0])
            case Kind.ALLOW:
                task_id, limit = LIMIT.unpack(body)
                if task_id in self._limits:
                    self._limits[task_id] = limit
            case Kind.ASSIGN:
                task, limit = unpack_task(body)
                self._limits[task.task_id] = sys.maxsize if limit == NO_LIMIT else limit
                self._bound = limit - task.first_microbatch
                self._tasks.append(task)
            case Kind.LEFTOVER_ROWS_IN:
                self._leftover_rows[TASK_ID.unpack_from(body)[0]] = bytes(body[TASK_ID.size :])
            case Kind.CLAIM_TABLE:
                num_workers, member_index = CLAIM_TABLE.unpack(body)
                self._claim_table = ClaimTable(self._channel.take_descriptor(), num_workers, member_index)
            case Kind.CANCEL:
                self._cancelled_below = TASK_ID.unpack(body)[0]
                self._leftover_rows = {
                    task_id: leftover_rows
                    for task_id, leftover_rows in self._leftover_rows.items()
                    if task_id >= self._cancelled_below
                }
                # The first task is the one in work: it ends itself.
                while len(self._tasks) > 1 and self._tasks[1].task_id < self._cancelled_below:
                    self._limits.pop(self._tasks[1].task_id)
                    del self._tasks[1]
            case _:
                raise ValueError(f"the trainer sent a message of unknown kind {kind}")

    def _announce(self, segment: Segment, descriptor: int) -> None:
        self._channel.send(Kind.SEGMENT, SEGMENT.pack(segment.index, segment.size_bytes), descriptor)

    def _retire(self, index: int) -> None:
        self._channel.send(Kind.RETIRE, CREDIT.pack(index))
