"""A worker in threads of the caller's process: several microbatches at once, without a process and without a pipe.

The caller's thread opens shards and draws indices, where the global random generators are its own to seed and to
restore; threads make microbatches, and draw from ``item_generators()`` alone. Jobs and messages pass through two queues
written in C. No signal's handler runs in a thread, and none leaves a queue half changed: what an interrupted caller has
not taken is still there.
"""

import contextvars
import functools
import inspect
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias

import torch

from fkat_data.errors import ConfigurationError
from fkat_data.errors.sample_errors import early_end
from fkat_data.observe.sink import EventSink
from fkat_data.observe.stages import StageClock, StageTimes, added_times, helping, new_page
from fkat_data.plan.position import Task
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.lifetime import on_collected
from fkat_data.runtime.modes import modes_of_a_worker
from fkat_data.seeding import (
    enter_rng_scope,
    generator_states,
    leave_rng_scope,
    preserved_generators,
    seeding_nothing,
)
from fkat_data.worker.batches import draws_nothing, runs_no_user_code
from fkat_data.worker.collate import FreshCollate
from fkat_data.worker.fetch import num_prefetched
from fkat_data.worker.inline import WorkerOfThisProcess, bytes_of, failure_of, item_of, made_together
from fkat_data.worker.messages import (
    End,
    Failure,
    Item,
    Message,
    MicrobatchChunk,
    WorkerGone,
    remember_fingerprint,
)
from fkat_data.worker.microbatch_source import MicrobatchSpec
from fkat_data.worker.produce import OpenShard, Produced, Producer, note_microbatch
from fkat_data.worker.worker import WorkerReport

_logger = logging.getLogger(__name__)

# Threads that wait for a job end within this; those that make a microbatch end behind it.
_STOPPED_WITHIN_S = 1.0
# Jobs that are handed out and not done: more would only wait.
_MOST_JOBS = 1024
# Microbatches that are made alone where a generator has moved while the caller waited; twice as many the next time.
_MORE_PROBES = 8
_BETWEEN_LOOKS_S = 0.1


class _Paused(NamedTuple):
    """A thread has made what was allowed of a shard whose microbatches follow on one another."""

    next_index: int


_ThreadResult: TypeAlias = "tuple[int, int, Message | _Paused]"
"""A task_id, the index of a microbatch, and what has become of it."""


class _Cancelled(BaseException):
    """Ends a thread's wait for what the task before leaves; not an error of the user's."""


class ThreadTask:
    """A task of a worker in threads, and how far it is; changed by the caller's thread alone, but for its generator."""

    def __init__(self, task: Task, limit: int) -> None:
        self.task: Task = task
        # The task as bytes, once it was sent to another process.
        self.packed: bytes = b""
        self.limit: int = limit
        # The first microbatch that may not be made, where they follow on one another.
        self.generator_limit: int = limit
        self.shard: OpenShard | None = None
        # Yields the microbatches of a shard that one thread makes at a time.
        self.generator: Generator[Produced] | None = None
        self.is_open: bool = False
        self.is_busy: bool = False
        self.is_exhausted: bool = False
        self.is_cancelled: bool = False
        self.next_job: int = task.first_microbatch
        self.next_out: int = task.first_microbatch
        self.reorder_buffer: dict[int, Message] = {}
        self.leftover_rows: SimpleQueue[bytes | None] = SimpleQueue()
        # Whether a thread that has come to the limit goes on.
        self.allowed: SimpleQueue[bool] = SimpleQueue()
        self.context: contextvars.Context = contextvars.copy_context()
        # What was handed out and is not begun to be read, with its number; and who begins it.
        self.unread: deque[tuple[int, MicrobatchSpec]] = deque()
        self.reading: threading.Lock = threading.Lock()

    def prefetch(self, index: int, num_threads: int) -> None:
        """Begin to read a microbatch, in a thread, and what threads make next; an error is raised where it is made."""
        with self.reading:  # what another thread has taken is begun before it is made
            limit = index
            while self.unread and self.unread[0][0] <= limit:
                _, spec = self.unread.popleft()
                with suppress(Exception):
                    num_items = 0 if spec.prefetch is None else spec.prefetch(spec.argument)
                    limit = index + num_prefetched(num_items, num_threads)

    def cancel(self) -> None:
        """Let threads that work on the task, or wait to, leave it."""
        self.is_cancelled = True
        self.leftover_rows.put(None)
        self.allowed.put(False)


class Here(threading.local):
    """What a thread makes microbatches with."""

    def __init__(self) -> None:
        self.number: int = -1
        self.clock: StageClock = StageClock(new_page())
        self.collate: FreshCollate = FreshCollate()


class _Collate:
    """Does what torch's ``default_collate`` does, in the memory of the thread that calls it."""

    def __init__(self, here: Here) -> None:
        self._here = here

    def __call__(self, batch: Any) -> Any:
        return self._here.collate(batch)

    def stack(self, shape: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for a microbatch that is one tensor."""
        return self._here.collate.stack(shape, dtype=dtype)


class Threads:
    """What the threads of a worker know. It does not know the worker, which a program may drop."""

    def __init__(self, num_threads: int, *, is_digested: bool) -> None:
        self.jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.results: SimpleQueue[_ThreadResult] = SimpleQueue()
        self.ended: SimpleQueue[int] = SimpleQueue()
        # Tasks of a closed worker, whose generators are closed here: what is raised in a caller that drops one is lost.
        self.left: deque[ThreadTask] = deque()
        self.idents: list[int | None] = [None] * num_threads
        self.here: Here = Here()
        self.is_digested: bool = is_digested
        self.is_closed: bool = False
        self._num_torch_threads = torch.get_num_threads()

    def stop(self, num_threads: int, within_s: float) -> None:
        """End the threads; wait for them."""
        self.is_closed = True
        for _ in range(num_threads):
            self.jobs.put(None)
        deadline_s = time.monotonic() + within_s
        while any(ident is not None for ident in self.idents):
            try:
                self.ended.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except Empty:
                return

    def run(self, number: int, clock: StageClock) -> None:
        """Do jobs, in a thread, until it is ended."""
        self.idents[number] = threading.get_ident()
        # torch counts the threads of an operation for each thread that calls it, but one that has not called any yet,
        # such as the trainer's, begins with what was set last, by any thread.
        torch.set_num_threads(1)
        with suppress(RuntimeError):  # a process at its limit of threads: this one has to work all the same
            last = threading.Thread(target=torch.set_num_threads, args=(self._num_torch_threads,), daemon=True)
            last.start()
            last.join()
        self.here.number, self.here.clock = number, clock
        try:
            with seeding_nothing():
                while True:
                    clock.enter_stage("idle")
                    job = self.next_job()
                    if job is None or self.is_closed:
                        return
                    job()
                    leave_rng_scope()
                    # What waits for the next job keeps nothing of this one.
                    del job
        finally:
            with suppress(IndexError):
                while True:
                    self.close(self.left.popleft())
            self.idents[number] = None
            self.ended.put(number)

    def next_job(self) -> Callable[[], object] | None:
        """Wait for a job, in a thread; None: it is to end."""
        return self.jobs.get()

    def item(self, task: Task, index: int, microbatch: Any, is_last: bool | None) -> Item:
        """Return the message of a microbatch."""
        clock = self.here.clock
        item = item_of(
            task, index, microbatch, is_last, self.here.collate, clock.enter_stage, bytes_of, self.is_digested
        )
        clock.enter_stage("")
        clock.count()
        return item

    def make(self, work: ThreadTask, index: int, spec: MicrobatchSpec, before: MicrobatchSpec | None) -> None:
        """Make a microbatch by its number, in a thread.

        Args:
            work: The task.
            index: The microbatch's number.
            spec: How it is made.
            before: How the one before is made, which is compared with what was delivered; None: it is not.
        """
        if work.is_cancelled:
            return
        task, shard, clock = work.task, work.shard, self.here.clock
        try:
            assert shard is not None  # noqa: S101 - only microbatches of an open shard are made
            with helping() as times:
                if spec.prefetch is not None:
                    work.prefetch(index, len(self.idents))
                if before is not None:
                    clock.enter_stage("replay", index - 1)
                    shard.check(index - 1, Produced(index - 1, _made(before), before.is_last))
                clock.enter_stage("produce", index)
                microbatch = _made(spec)
            clock.shift("store", times.store_s)
            message = self.item(task, index, microbatch, spec.is_last)
        except BaseException as error:  # noqa: BLE001 - raised where the microbatch's turn comes
            message = self.failed(task, index, error)
        self.results.put((task.task_id, index, message))

    def failed(self, task: Task, index: int, error: BaseException) -> Failure:
        """Return the message of an error."""
        self.here.clock.enter_stage("")
        return failure_of(task, error, index)

    def follow(self, work: ThreadTask) -> None:
        """Make microbatches that follow on one another, up to the limit, in a thread."""
        index, task, clock = work.next_job, work.task, self.here.clock
        while not work.is_cancelled and not self.is_closed:
            if index >= work.generator_limit:
                self.results.put((task.task_id, index, _Paused(index)))
                return
            try:
                with helping() as times:
                    assert work.generator is not None  # noqa: S101 - it is made where the shard is opened
                    produced = next(work.generator, None)
                clock.shift("store", times.store_s)
                if produced is None:
                    clock.enter_stage("")
                message = End(task.task_id, index) if produced is None else self.item(task, *produced)
            except _Cancelled:
                break
            except BaseException as error:  # noqa: BLE001 - as above
                message = self.failed(task, index, error)
            self.results.put((task.task_id, index, message))
            if not isinstance(message, Item) or message.is_last:
                break
            index += 1
        self.close(work)

    def close(self, work: ThreadTask) -> None:
        """Close what yields a task's microbatches, unless another thread uses it, which then does so."""
        generator = work.generator
        if generator is not None and inspect.getgeneratorstate(generator) != inspect.GEN_RUNNING:
            with suppress(ValueError):  # another thread uses it now
                generator.close()

    def make_together(self, work: ThreadTask, producer: Producer) -> None:
        """Make all of a task's microbatches that no code of a user's makes."""
        if not work.is_cancelled:
            message = made_together(work.task, producer, is_digested=self.is_digested)
            self.here.clock.enter_stage("")
            self.here.clock.count(len(message.microbatches) + isinstance(message.behind, Item))
            self.results.put((work.task.task_id, work.task.first_microbatch, message))


class ThreadWorker(WorkerOfThisProcess):
    """Makes a group's microbatches in threads of this process; hands them on in order.

    The caller's thread opens shards and draws their indices. A first microbatch is made alone, while the caller waits for
    it, to see that the dataset leaves the global random generators alone: the threads share them with the program.

    Args:
        producer: How tasks are produced.
        sink: Gets the time that the caller waits.
        clocks: Measure the threads, one each, and the caller's thread as the last.
        limit_bytes: Microbatches that may lie ready, by their bytes.
        names: What the threads are called.
        num_probes: Microbatches that are made alone, first.
        is_digested: Whether to digest each microbatch.
    """

    def __init__(
        self,
        producer: Producer,
        sink: EventSink,
        clocks: list[StageClock],
        limit_bytes: int,
        names: list[str],
        num_probes: int,
        *,
        is_digested: bool = False,
    ) -> None:
        super().__init__()
        *threads, own = clocks
        self._clocks = clocks
        self._clock = own
        self._sink = sink
        self._limit_bytes = limit_bytes
        self._num_threads = len(threads)
        self._names = names
        self._default_dtype = torch.get_default_dtype()
        self.is_waiting: bool = False
        """Whether the last call was interrupted while it waited for a message: nothing had changed then."""
        self._num_received = 0
        self._tasks: deque[ThreadTask] = deque()
        self._inbox: deque[_ThreadResult] = deque()
        self._mean_bytes: float | None = None
        self._num_probes, self._more_probes = num_probes, _MORE_PROBES
        # The task's id and the number of the one that is made alone, and what has moved in a wait for it.
        self._probe: tuple[int, int] | None = None
        self._has_moved = ""
        # Whether the caller waits in a call, so that it draws nothing itself.
        self._is_caller_waiting = False
        # Those since which the program draws nothing, in a wait for a microbatch that is made alone.
        self._states: tuple[object, object, object] | None = None
        self._looked_s = 0.0
        self._leftover_rows_in: dict[int, SimpleQueue[bytes | None]] = {}
        self._shared = shared = self._threads(len(threads), is_digested=is_digested)
        self._producer = producer._replace(
            enter_stage=functools.partial(_enter_stage, shared.here),
            collate=_Collate(shared.here),
            report=functools.partial(remember_fingerprint, self._fingerprints),
            take_leftover_rows=functools.partial(_leftover_rows_of, self._leftover_rows_in),
            give_leftover_rows=self._leftover_rows.__setitem__,
            is_threaded=True,
        )
        # Before the threads start: one that cannot leaves the others to this.
        on_collected(self, functools.partial(shared.stop, len(threads), _STOPPED_WITHIN_S), at_exit=True)
        for number, (clock, name) in enumerate(zip(threads, names, strict=True)):
            run = functools.partial(shared.run, number, clock)
            threading.Thread(target=run, name=name, daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """Whether the worker can take tasks."""
        return not self._shared.is_closed

    @property
    def works_ahead(self) -> bool:
        """Whether microbatches are made while the caller does something else."""
        return True

    @property
    def num_ready(self) -> int:
        """Microbatches that the threads have made, and that were not received."""
        num_buffered = sum(
            isinstance(each, Item) for work in list(self._tasks) for each in list(work.reorder_buffer.values())
        )
        return num_buffered + len(self._inbox) + self._shared.results.qsize()

    def end_wait(self) -> None:
        """Record that the interrupted wait is over."""
        self.is_waiting = False

    def report(self) -> WorkerReport:
        """Return what the threads have done together."""
        return WorkerReport(self._times(), self._num_received)

    def _times(self) -> StageTimes:
        """Return how the threads spent their time together, and the stage of the one that is furthest behind."""
        several = [clock.times() for clock in self._clocks]
        busy = [times for times in several if times.stage not in ("", "idle")]
        if busy:
            first = min(busy, key=lambda times: times.subject)
            return added_times(several)._replace(stage=first.stage, began_s=first.began_s, subject=first.subject)
        is_blocked = any(work.is_open and not work.is_exhausted for work in list(self._tasks))
        return added_times(several)._replace(stage="blocked" if is_blocked else "idle")

    def give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        """Give a task that was assigned without it what the one before has left."""
        if task_id in self._leftover_rows_in:
            self._leftover_rows_in[task_id].put(leftover_rows)

    def has_begun(self, task_id: int) -> bool:
        """Return whether the task is in work."""
        return any(work.task.task_id == task_id and work.is_open for work in self._tasks)

    def stack(self) -> str:
        """Return the Python stacks of the threads."""
        return "\n".join(self._stacks())

    def assign(self, task: Task, limit: int) -> None:
        """Take a task, to be produced after those taken before, up to ``limit`` microbatches for now."""
        work = ThreadTask(task, limit)
        self._leftover_rows_in[task.task_id] = work.leftover_rows
        self._tasks.append(work)
        self._hand_out()

    def allow(self, task_id: int, limit: int, *, is_ahead: bool = False) -> None:
        """Let the task be produced up to ``limit`` microbatches."""
        for work in self._tasks:
            if work.task.task_id == task_id:
                work.limit = max(work.limit, limit)
        self._hand_out()

    def cancel(self, task_id: int) -> None:
        """Drop every task with an id below this one."""
        while self._tasks and self._tasks[0].task.task_id < task_id:
            self._end(self._tasks[0])

    def receive(self, *, timeout_s: float | None) -> Message | None:
        """Return the next message in order, or None if none comes within ``timeout_s``; None: wait without a limit.

        Raises:
            WorkerGone: The worker was closed.
        """
        message = self._take()
        if message is not None or timeout_s == 0:
            return message
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        looked = self._look()
        began_s = time.perf_counter()
        try:
            self._is_caller_waiting = True
            if self._probe is not None:
                self._states = generator_states()
            while (message := self._take()) is None:
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                self.is_waiting = True
                try:
                    # One call of C: what a thread has sent is in the inbox, or still in the queue.
                    self._inbox.extend(map(self._shared.results.get, (True,), (left_s,)))
                except Empty:
                    self.is_waiting = False
                    return None
                self.is_waiting = False
        finally:
            self._is_caller_waiting = False
            self._sink.waited(began_s, time.perf_counter())
            if self._states is not None:
                self._has_moved = self._has_moved or _moved_generators(self._states)
                self._states, looked = None, None
        if looked is not None and looked != generator_states():
            # A thread of the program's may have drawn, or one of these: the next microbatches show it.
            self._num_probes = self._more_probes
            self._more_probes *= 2
        return message

    def kill(self) -> None:
        """Do nothing: a thread cannot be killed. ``close`` leaves it to its microbatch."""

    def hang_up(self) -> None:
        """Let the threads end, and a thread that waits for them wake up; do not wait for either."""
        shared = self._shared
        shared.is_closed = True
        for work in list(self._tasks):
            work.cancel()
            shared.left.append(work)
        for _ in range(self._num_threads):
            shared.jobs.put(None)
        shared.results.put((-1, 0, End(-1, 0)))

    def close(self, timeout_s: float) -> None:
        """End the threads within about ``timeout_s``; those that still make a microbatch are named in the log, and end behind it."""
        self.hang_up()
        self._shared.stop(0, timeout_s)
        if timeout_s:
            for stack in self._stacks():
                _logger.warning("a thread of a closed loader still makes a microbatch, and ends behind it. %s", stack)

    def _threads(self, num_threads: int, *, is_digested: bool) -> Threads:
        return Threads(num_threads, is_digested=is_digested)

    def _stacks(self) -> Iterator[str]:
        """Yield the stacks of the threads that make something, without their frames of this module's beginning."""
        # The only way to see another thread.
        frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        for name, ident, clock in zip(self._names, list(self._shared.idents), self._clocks, strict=False):
            frame = None if ident is None else frames.get(ident)
            if frame is not None and clock.times().stage != "idle":
                own = traceback.extract_stack(frame)
                first = max((depth for depth, each in enumerate(own) if each.filename == __file__), default=-1)
                yield f"Thread {name}:\n{''.join(traceback.format_list(own[first + 1 :]))}"

    def _take(self) -> Message | None:
        """Return the message whose turn it is, if it has come, and hand out what may be made meanwhile."""
        shared = self._shared
        if num_results := shared.results.qsize():
            self._inbox.extend(map(shared.results.get, repeat(True, num_results)))
        while self._inbox:
            self._sort(*self._inbox[0])
            self._inbox.popleft()
        if shared.is_closed:
            raise WorkerGone(self.pid, None, "")
        if not self._is_due():
            self._hand_out()  # an end, or an error, may be due at once
            if not self._is_due():
                return None
        work = self._tasks[0]
        message = work.reorder_buffer.pop(work.next_out)
        last = message.behind if isinstance(message, MicrobatchChunk) else message
        if isinstance(message, MicrobatchChunk):
            self._num_received += len(message.microbatches)
        self._num_received += isinstance(last, Item)
        work.next_out += 1
        if not isinstance(last, Item) or last.is_last:
            self._end(work)
        self._hand_out()
        return message

    def _is_due(self) -> bool:
        return bool(self._tasks) and self._tasks[0].next_out in self._tasks[0].reorder_buffer

    def _sort(self, task_id: int, index: int, message: "Message | _Paused") -> None:
        work = next((work for work in self._tasks if work.task.task_id == task_id), None)
        if work is None:
            return
        if self._probe == (task_id, index):
            message = self._probed(work.task, message)
        if isinstance(message, _Paused):
            work.is_busy, work.next_job = False, message.next_index
            return
        if isinstance(message, Item):
            before = message.size_bytes if self._mean_bytes is None else self._mean_bytes
            self._mean_bytes = before + (message.size_bytes - before) / 8
        work.is_exhausted = work.is_exhausted or not isinstance(message, Item) or bool(message.is_last)
        work.reorder_buffer[index] = message

    def _end(self, work: ThreadTask) -> None:
        self._leftover_rows_in.pop(work.task.task_id, None)
        if self._probe is not None and self._probe[0] == work.task.task_id:
            self._probe = None
        work.cancel()
        if work.shard is not None:
            work.shard.indexed.close()
        if work.generator is not None:
            self._shared.jobs.put(functools.partial(self._shared.close, work))
        if self._tasks and self._tasks[0] is work:
            self._tasks.popleft()

    def _hand_out(self) -> None:
        """Let the threads have what may be made, the first task first."""
        for work in list(self._tasks):
            if self._shared.is_closed:
                return
            if not work.is_open:
                self._open(work)
            if not work.is_exhausted:
                self._hand_out_of(work)
            if not work.is_exhausted:
                return

    def _hand_out_of(self, work: ThreadTask) -> None:
        shared, limit = self._shared, self._limit(work)
        is_probed = self._is_probed(work)
        if is_probed:
            if not self._is_caller_waiting or self._probe is not None:
                return  # the program may draw now, or one is in work
            limit = min(limit, work.next_job + 1)
        if work.generator is not None:
            if not work.is_busy and work.next_job < limit:
                work.generator_limit, work.is_busy = limit, True
                self._begin_probe(work, work.next_job, is_probed=is_probed)
                self._put(work, shared.follow, work)
            return
        shard = work.shard
        if shard is None or work.next_job >= limit:
            return
        is_first_due = work.next_out not in work.reorder_buffer and work.next_job == work.next_out
        if shard.indexed.is_drawn and not is_first_due and 2 * (limit - work.next_job) < limit - work.next_out:
            return  # to keep the generators costs more than to draw some indices
        with ExitStack() as stack:
            if shard.indexed.is_drawn:
                self._enter(stack)
            try:
                specs = [*self._specs(work, shard, limit)]
            finally:
                stack.close()
        work.unread.extend((index, spec) for _, index, spec, _ in specs if spec.prefetch is not None)
        for job in specs:
            self._begin_probe(work, job[1], is_probed=is_probed)
            self._put(work, shared.make, *job)

    def _specs(
        self, work: ThreadTask, shard: OpenShard, limit: int
    ) -> "Iterator[tuple[ThreadTask, int, MicrobatchSpec, MicrobatchSpec | None]]":
        """Yield how the next microbatches are made, up to a limit; where there are no more, say so."""
        task = work.task
        while work.next_job < limit and not work.is_exhausted:
            index, before = work.next_job, None
            try:
                if task.digest is not None and index == task.first_microbatch > 0:
                    before = shard.indexed.spec(index - 1)
                spec = shard.indexed.spec(index)
            except genuine(Exception) as error:  # a sampler's
                work.reorder_buffer[index] = failure_of(task, error, index)
                work.is_exhausted = True
                return
            if spec is None:
                work.reorder_buffer[index] = End(task.task_id, index)
                work.is_exhausted = True
                return
            work.next_job, work.is_exhausted = index + 1, spec.is_last
            yield work, index, spec, before

    def _limit(self, work: ThreadTask) -> int:
        """Return the first microbatch that may not be made: by the limit, and by what may lie ready."""
        if self._mean_bytes is None:
            most = self._num_threads
        else:
            most = min(_MOST_JOBS, int(self._limit_bytes / max(1.0, self._mean_bytes)))
        return min(work.limit, work.next_out + max(most, self._num_threads))

    def _put(self, work: ThreadTask, do: Callable[..., None], *arguments: Any) -> None:
        self._shared.jobs.put(functools.partial(work.context.copy().run, do, *arguments))

    def _open(self, work: ThreadTask) -> None:
        """Open a task's shard, in the caller's thread."""
        task, shared = work.task, self._shared
        work.is_open = True
        if runs_no_user_code(task.payload):
            work.is_exhausted = True
            self._put(work, shared.make_together, work, self._producer)
            return
        with ExitStack() as stack:
            self._enter(stack)
            try:
                shard = OpenShard(task, self._producer, is_shared=self._num_threads > 1)
                if shard.is_for_threads:
                    work.shard = shard
                else:
                    work.generator = shard.produce()
            except genuine(Exception) as error:
                note_microbatch(error, task, task.first_microbatch, is_open=False)
                work.reorder_buffer[work.next_out] = failure_of(task, error, work.next_out)
                work.is_exhausted = True
            finally:
                self._clock.enter_stage("")
                # Python may be interrupted before the end of a block is reached.
                stack.close()

    def _is_probed(self, work: ThreadTask) -> bool:
        # One that waits for what the task before leaves would wait for its caller.
        return self._num_probes > 0 and not draws_nothing(work.task.payload) and work.task.leftover_rows is not None

    def _begin_probe(self, work: ThreadTask, index: int, *, is_probed: bool) -> None:
        if is_probed:
            self._probe, self._has_moved = (work.task.task_id, index), ""
            self._states = generator_states()

    def _probed(self, task: Task, message: "Message | _Paused") -> "Message | _Paused":
        """Return the message of a microbatch that was made alone, or an error where a global generator has moved."""
        self._probe = None
        self._num_probes -= 1
        moved = self._has_moved or ("" if self._states is None else _moved_generators(self._states))
        if not moved or not isinstance(message, Item):
            return message
        expected = (
            "'processes', for a dataset or a function that draws from a generator that threads share with the program: "
            f"{moved}; or let it draw from fkat_data.item_generators()"
        )
        return failure_of(task, ConfigurationError("workers", "threads", expected), message.microbatch_index)

    def _look(self) -> tuple[object, object, object] | None:
        """Return the states of the global generators where a wait begins; None: it is too soon since the last look."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _BETWEEN_LOOKS_S:
            return None
        self._looked_s = now_s
        return generator_states()

    def _enter(self, stack: ExitStack) -> None:
        """Let this thread be as a worker process is, and measure it, until the stack is closed."""
        self._shared.here.clock = self._clock
        stack.enter_context(modes_of_a_worker(self._default_dtype))
        kept = preserved_generators()
        stack.callback(kept.restore)
        stack.enter_context(kept)
        stack.enter_context(self._clock.installed())


def _enter_stage(here: Here, stage: str, index: int = -1, label: str = "") -> None:
    here.clock.enter_stage(stage, index, label)


def _leftover_rows_of(queues: "dict[int, SimpleQueue[bytes | None]]", task: Task) -> bytes:
    queue = queues.get(task.task_id)
    leftover_rows = None if queue is None else queue.get()
    if leftover_rows is None:
        raise _Cancelled
    return leftover_rows


def _made(spec: MicrobatchSpec) -> Any:
    if spec.seed is not None:
        enter_rng_scope(spec.seed)
    try:
        return spec.make(spec.argument)
    except genuine(StopIteration) as error:
        raise early_end("the dataset") from error


def _moved_generators(before: tuple[object, object, object]) -> str:
    """Return which global generators are not in the states that ``generator_states`` returned before, in words."""
    names = ("python's (random)", "numpy's (numpy.random)", "torch's")
    moved = (name for name, was, now in zip(names, before, generator_states(), strict=True) if was != now)
    return " and ".join(moved)
