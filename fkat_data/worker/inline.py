"""A worker in the caller's own thread: for breakpoints, profilers and tracebacks."""

import functools
import inspect
import os
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any, TypeVar, cast

import torch

from fkat_data.errors.tracebacks import hide_own_frames
from fkat_data.errors.wording import shard_name
from fkat_data.observe.progress import ReplayDisplay
from fkat_data.observe.sink import EventSink
from fkat_data.observe.stages import StageClock, new_page
from fkat_data.plan.position import Task
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.modes import are_modes_of_a_worker, modes_of_a_worker
from fkat_data.seeding import preserved_generators
from fkat_data.transport.codec import copied
from fkat_data.transport.digest import digest_of
from fkat_data.types import Shard
from fkat_data.worker.batches import draws_nothing, runs_no_user_code
from fkat_data.worker.collate import FreshCollate
from fkat_data.worker.messages import (
    End,
    Failure,
    Item,
    Message,
    MicrobatchChunk,
    TaskReports,
    content_of,
    remember_fingerprint,
)
from fkat_data.worker.produce import Produced, Producer, note_microbatch, produce, produce_together
from fkat_data.worker.worker import WorkerReport

_Made = TypeVar("_Made")


class WorkerOfThisProcess(TaskReports):
    """What a worker is that has no process of its own."""

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()


class InlineWorker(WorkerOfThisProcess):
    """Produces a microbatch when the caller asks for one, with those of a stream that are read together.

    The caller gets what a worker process would send. It is a copy, unless nothing else can hold the microbatch's memory. It
    is made with the default dtype that the constructor found, and outside torch's modes. The caller's random generators keep
    their state.

    Args:
        producer: How tasks are produced.
        sink: Gets the time that the caller waits for production.
        clock: Measures the stages that the producer marks.
        is_digested: Whether to digest each microbatch.
    """

    # Each microbatch is made by the thread that asks for it.
    is_alive: bool = True
    works_ahead: bool = False
    is_waiting: bool = False
    num_ready: int = 0

    def __init__(
        self, producer: Producer, sink: EventSink, clock: StageClock | None = None, *, is_digested: bool = False
    ) -> None:
        super().__init__()
        self._clock = clock or StageClock(new_page())
        self._collate = FreshCollate()
        self._default_dtype = torch.get_default_dtype()
        self._replay = ReplayDisplay()
        self._sink = sink
        self._is_digested = is_digested
        self._tasks: deque[Task] = deque()
        self._production: Generator[Produced] | None = None
        self._next_index = 0
        leftover_rows_in: dict[int, bytes] = {}
        self._leftover_rows_in = leftover_rows_in
        # Neither refers to this worker: a dropped loader's dataset is gone at once, and need not wait for the collector.
        self._enter_and_show = _entering(producer.enter_stage, self._replay, self._tasks)
        report = functools.partial(remember_fingerprint, self._fingerprints)
        self._producer = producer._replace(
            enter_stage=self._enter_and_show,
            collate=self._collate,
            report=report,
            take_leftover_rows=functools.partial(_leftover_rows_of, leftover_rows_in),
            give_leftover_rows=self._leftover_rows.__setitem__,
        )

    def end_wait(self) -> None:
        """Do nothing: there is no wait."""

    def report(self) -> WorkerReport:
        """Return how the time was spent, without the time between microbatches; all that was made was received."""
        times = self._clock.times()
        return WorkerReport(times, times.produced)

    def give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        """Give a task that was assigned without it what the one before has left."""
        self._leftover_rows_in[task_id] = leftover_rows

    def has_begun(self, task_id: int) -> bool:
        """Return whether the task is in work."""
        return bool(self._tasks) and self._tasks[0].task_id == task_id and self._production is not None

    def stack(self) -> str:
        """Return nothing: the thread that asks is the one that works."""
        return ""

    def assign(self, task: Task, limit: int) -> None:
        """Take a task, to be produced after those taken before."""
        self._tasks.append(task)

    def allow(self, task_id: int, limit: int, *, is_ahead: bool = False) -> None:
        """Do nothing: a microbatch is produced when the caller asks for it."""

    def cancel(self, task_id: int) -> None:
        """Drop every task with an id below this one."""
        while self._tasks and self._tasks[0].task_id < task_id:
            self._end_task(self._tasks[0])

    def receive(self, *, timeout_s: float | None) -> Message | None:
        """Return the next message, produced now; None if ``timeout_s`` is 0, or if there is no task."""
        if timeout_s == 0 or not self._tasks:
            return None
        task = self._tasks[0]
        # A stream's batches that no code of a user's makes: nothing is drawn, and nothing is shared.
        is_together = runs_no_user_code(task.payload)
        began_s = time.perf_counter()

        def make() -> Message:
            try:
                if is_together:
                    return made_together(task, self._producer, is_digested=self._is_digested)
                return self._made(task)
            finally:
                self._clock.enter_stage("")
                self._replay.end()
                self._sink.waited(began_s, time.perf_counter())

        message = made_as_in_worker(make, task.payload, self._default_dtype, self._clock)
        last = message.behind if isinstance(message, MicrobatchChunk) else message
        is_item = isinstance(last, Item)
        self._clock.count(is_item + (len(message.microbatches) if isinstance(message, MicrobatchChunk) else 0))
        if not is_item or last.is_last:
            self._end_task(task)
        return message

    def _made(self, task: Task) -> Item | End | Failure:
        """Make the next message of a task."""
        if self._production is None:
            self._production = produce(task, self._producer)
            self._next_index = task.first_microbatch
        index = self._next_index
        try:
            produced = next(self._production, None)
            if produced is None:
                return End(task.task_id, index)
            self._next_index = produced.microbatch_index + 1
            return item_of(task, *produced, self._collate, self._enter_and_show, None, self._is_digested)
        except genuine(Exception) as error:
            return failure_of(task, error, index)

    def kill(self) -> None:
        """Do nothing: it cannot stall beside its caller."""

    def hang_up(self) -> None:
        """Do nothing: there is no pipe."""

    def close(self, timeout_s: float) -> None:
        """Drop every task."""
        while self._tasks:
            self._end_task(self._tasks[0])

    def _end_task(self, task: Task) -> None:
        if not self._tasks or self._tasks[0] is not task:  # the loader was closed during the task
            return
        self._tasks.popleft()
        production, self._production = self._production, None
        # A generator that runs, in another thread or below a signal handler, ends when its last reference dies.
        if production is not None and inspect.getgeneratorstate(production) != inspect.GEN_RUNNING:
            production.close()


def made_as_in_worker(
    make: Callable[[], _Made],
    shard: Shard,
    dtype: torch.dtype,
    clock: StageClock,
    enter: Callable[[ExitStack], object] | None = None,
) -> _Made:
    """Return what a function makes of a shard in this thread, in none of torch's modes; the program's generators stay.

    Args:
        make: The function.
        shard: What it makes something of.
        dtype: torch's default dtype meanwhile.
        clock: Measures stages meanwhile.
        enter: Enters what else is left at the end; None: nothing is.
    """
    contexts = ExitStack()
    try:
        with contexts:
            if enter is not None:
                enter(contexts)
            if not are_modes_of_a_worker(dtype):
                contexts.enter_context(modes_of_a_worker(dtype))
            if not draws_nothing(shard):
                kept = preserved_generators()
                contexts.callback(kept.restore)
                contexts.enter_context(kept)
            contexts.enter_context(clock.installed())
            return make()
    finally:
        # Python may be interrupted before the end of a block is reached: what is left of it is undone here.
        contexts.close()


def _entering(enter_stage: Callable[[str, int, str], None], replay: ReplayDisplay, tasks: deque[Task]) -> Any:
    """Return what marks a stage, and shows how far a replay is."""

    def mark_and_show(stage: str, index: int = -1, label: str = "") -> None:
        enter_stage(stage, index, label)
        if stage == "replay" and tasks:
            replay.show(shard_name(tasks[0].payload), index, tasks[0].first_microbatch)

    return mark_and_show


def _leftover_rows_of(leftover_rows: dict[int, bytes], task: Task) -> bytes:
    return leftover_rows.pop(task.task_id)


def item_of(
    task: Task,
    index: int,
    microbatch: Any,
    is_last: bool | None,
    collate: FreshCollate,
    enter_stage: Callable[..., None],
    size_of: Callable[[Any], int] | None,
    is_digested: bool,
) -> Item:
    """Return the message of a microbatch: in memory of its own, as one that has come from another process.

    Args:
        task: The task.
        index: The microbatch's number.
        microbatch: The microbatch.
        is_last: Whether the shard ends with it.
        collate: Knows whether it is in memory of its own; else it is copied.
        enter_stage: Called with the stage, and the number, before that.
        size_of: Returns the bytes of one that is not copied; None: they do not count.
        is_digested: Whether to digest it.
    """
    given = content_of(microbatch)
    if collate.take(given):
        size_bytes = 0 if size_of is None else size_of(given)
    else:
        enter_stage("encode", index)
        microbatch, size_bytes = copied(microbatch)
    digest = digest_of(content_of(microbatch)) if is_digested else 0
    return Item(task.task_id, index, is_last, microbatch, size_bytes, digest)


def bytes_of(value: Any) -> int:
    """Return the bytes of the tensors of a microbatch that was collated into new memory."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, (list, tuple)):
        return sum(map(bytes_of, cast("list[Any]", value)))
    return sum(map(bytes_of, cast("dict[Any, Any]", value).values())) if isinstance(value, dict) else 0


def made_together(task: Task, producer: Producer, *, is_digested: bool) -> MicrobatchChunk:
    """Make what is left of a task whose microbatches are read together: less than a call for each would cost."""
    made: list[Any] = []
    behind: Item | Failure | None = None
    last_index = 0
    try:
        last_index, microbatches = produce_together(task, producer)
        for microbatch in microbatches:
            made.append(microbatch)  # noqa: PERF402 - those before an error are kept
    except genuine(Exception) as error:
        behind = failure_of(task, error, task.first_microbatch + len(made))
    digests = [digest_of(microbatch) for microbatch in made] if is_digested else [0] * len(made)
    if behind is None:
        behind = Item(task.task_id, last_index, True, made.pop(), 0, digests.pop())
    return MicrobatchChunk(task.task_id, task.first_microbatch, made, digests, behind)


def failure_of(task: Task, error: BaseException, index: int) -> Failure:
    """Return the message of an error, which says where it was raised."""
    note_microbatch(error, task, index, is_open=True)  # unless the production has done so
    hide_own_frames(error)
    return Failure(task.task_id, error, index)  # it comes in its place in the order
