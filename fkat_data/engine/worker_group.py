"""The workers that make a task together, as one: it takes tasks, and returns their messages in order."""

import contextlib
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from fkat_data.errors import StaleIteratorError
from fkat_data.observe.sink import EventSink
from fkat_data.plan.position import ShardFingerprint, Task
from fkat_data.worker.messages import (
    End,
    Failure,
    Item,
    MemoryShortage,
    Message,
    SingleWorkerShard,
    WithPlanUpdate,
    WorkerGone,
)
from fkat_data.worker.worker import PipedWorker, Worker

if TYPE_CHECKING:  # Windows has no worker processes
    from fkat_data.worker.process.claim_table import ClaimTable

_INSTANT_S = 1e-6
_LONGEST_DEATH_S = 5.0
_Polled: TypeAlias = "tuple[list[Worker], list[Callable[[], None]], select.poll, dict[int, Worker]]"


class Loss(NamedTuple):
    """What a dead worker leaves to another one.

    Attributes:
        task: The task.
        microbatch_index: The microbatch that is missing.
        has_begun: Whether the dead worker had begun to make it.
    """

    task: Task
    microbatch_index: int
    has_begun: bool


class WorkerGroup:
    """Workers that make the microbatches of one task together, and return them in order, as one worker would.

    Messages of a group of one are passed on as they come. Those of a larger group are sorted: its workers claim
    microbatches by themselves, each always a later one (see ``fkat_data.worker.process.claim_table``), and what arrives early
    waits here. This cannot run out of memory: a worker sends its own microbatches in order, so the worker of the next one
    has nothing earlier that waits here and holds memory which it needs.

    Args:
        workers: All workers of the loader; the group's are ``size`` of them, from ``first`` on.
        first: Index of the group's first worker.
        size: Workers of the group.
        claim_table: Returns the group's table; needed for more than one worker.
        sink: Gets the time that the trainer waits.
    """

    def __init__(
        self, workers: Sequence[Worker], first: int, size: int, claim_table: "Callable[[], ClaimTable]", sink: EventSink
    ) -> None:
        self._workers = workers
        self._first = first
        self._size = size
        self._claim_table = claim_table
        self._sink = sink
        self._poll: _Polled | None = None
        self._is_polling = False
        self._tasks: deque[Task] = deque()
        self._next_index = 0
        # What came before its turn, by task and index; who waits for memory.
        self._reorder_buffer: dict[int, dict[int, Item | End | Failure]] = {}
        self._shortages: dict[Worker, MemoryShortage] = {}
        # The newest limit, if it was not sent, and what was sent last.
        self._unsent: tuple[int, int] | None = None
        self._sent_task_id = -1
        self._sent_limit = 0
        self._gone: set[Worker] = set()
        self._failures: dict[int, Failure] = {}
        self._task_id_of_caller = -1

    def reset(self) -> None:
        """Forget everything: the workers are replaced by others."""
        self._poll = self._unsent = None
        self._is_polling = False
        self._sent_task_id = -1
        for kept in (self._tasks, self._reorder_buffer, self._shortages, self._gone, self._failures):
            kept.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether the last call was interrupted while it waited."""
        return self._is_polling or any(worker.is_waiting for worker in self.members)

    def end_wait(self) -> None:
        """Record that the interrupted wait is over."""
        self._is_polling = False
        for worker in self.members:
            worker.end_wait()

    @property
    def members(self) -> Sequence[Worker]:
        """The workers; none once the loader is closed."""
        return self._workers[self._first : self._first + self._size]

    @property
    def gone(self) -> Sequence[Worker]:
        """Those that are gone and were heard to their end; another that has died since may have sent more."""
        return [worker for worker in self.members if worker in self._gone]

    @property
    def is_alive(self) -> bool:
        """Whether a worker can take tasks."""
        return any(worker.is_alive for worker in self.members)

    @property
    def message_source(self) -> "Worker | WorkerGroup":
        """What gives the next message, and takes ``allow``: the worker itself, if it is the only one."""
        return self if self._size > 1 or self._failures else self._workers[self._first]

    @property
    def num_buffered(self) -> int:
        """Microbatches that have arrived before their turn."""
        # Lists are made in one step: another thread may ask while the trainer's thread changes them.
        return sum(
            isinstance(message, Item)
            for buffered in list(self._reorder_buffer.values())
            for message in list(buffered.values())
        )

    @property
    def num_ready(self) -> int:
        """Microbatches that the workers have made, and that were not handed on."""
        return sum(worker.num_ready for worker in self.members) + (self.num_buffered if self._reorder_buffer else 0)

    @property
    def is_blocked(self) -> bool:
        """Whether a worker waits for a limit, or for memory."""
        return any(worker.report().times.stage == "blocked" for worker in self.members)

    @property
    def works_ahead(self) -> bool:
        """Whether its workers make microbatches by themselves, not in their caller's thread."""
        return any(worker.works_ahead for worker in self.members)

    @property
    def size(self) -> int:
        """Workers of the group."""
        return self._size

    def maker(self, task_id: int, index: int) -> Worker:
        """Return the worker that makes a microbatch; if none does yet, the one that may hold up the others."""
        members = self.members
        if self._size == 1:
            return members[0]
        worker = self._known_maker(task_id, index)
        if worker is not None:
            return worker
        holder = self._claim_table().holder_pid()  # it may be stopped, with the lock that the others wait for
        return next((worker for worker in members if worker.pid == holder), members[0])

    def _known_maker(self, task_id: int, index: int) -> "Worker | None":
        claim_table = self._claim_table()
        sole_worker = claim_table.sole_worker(task_id)
        if sole_worker is not None:
            return self.members[sole_worker]
        found = (
            worker
            for member_index, worker in enumerate(self.members)
            if claim_table.claim_of(member_index) == (task_id, index)
        )
        later = claim_table.reserved_by(task_id, index)
        return next(found, None if later is None else self.members[later])

    def assign(self, task: Task, limit: int) -> None:
        """Take a task, to be produced after those taken before."""
        if self._size > 1:
            if not self._tasks:
                self._next_index = task.first_microbatch
            self._tasks.append(task)
        for worker in self.members:
            worker.assign(task, limit)

    def fingerprint(self, task_id: int) -> ShardFingerprint | None:
        """Return what a worker has reported of a task's payload; None: nothing."""
        return next((found for worker in self.members if (found := worker.fingerprint(task_id)) is not None), None)

    def take_leftover_rows(self, task_id: int) -> bytes | None:
        """Return, once, what a task has left for the one behind it; None: that is not known yet. For a group of one."""
        return self._workers[self._first].take_leftover_rows(task_id)

    def give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        """Give a task that was assigned without it what the one before has left. For a group of one."""
        self._workers[self._first].give_leftover_rows(task_id, leftover_rows)

    def allow(self, task_id: int, limit: int, *, is_ahead: bool = False) -> None:
        """Let the task be produced up to ``limit`` microbatches; ``is_ahead``: of a later task than the current one."""
        if self._size == 1 or is_ahead:
            for worker in self.members:
                worker.allow(task_id, limit, is_ahead=is_ahead)
            return
        # A message for each worker: one for every half of what may lie ready, or when the trainer waits.
        self._unsent = task_id, limit
        sent = self._sent_limit if self._sent_task_id == task_id else 0
        if 2 * (limit - sent) >= limit - self._next_index:
            self._send_limit()

    def _send_limit(self) -> None:
        if self._unsent is None:
            return
        (self._sent_task_id, self._sent_limit), self._unsent = self._unsent, None
        for worker in self.members:
            worker.allow(self._sent_task_id, self._sent_limit)

    def cancel(self, task_id: int) -> None:
        """Drop every task with an id below this one."""
        self._failures.clear()
        # A worker that is gone is reported again to the next who waits.
        self._gone.clear()
        self._poll = self._unsent = None
        while self._tasks and self._tasks[0].task_id < task_id:
            self._reorder_buffer.pop(self._tasks.popleft().task_id, None)
        if self._tasks:
            self._next_index = self._tasks[0].first_microbatch
        for worker in self.members:
            worker.cancel(task_id)

    def leave_to_caller(self, task_id: int, index: int) -> None:
        """Let workers that begin a task from here on begin it at a microbatch: the caller makes those before."""
        for worker in self.members:
            if isinstance(worker, PipedWorker):
                worker.begin_behind(task_id, index)

    def take_made(self, message: Item | End | Failure) -> Item | End | Failure | None:
        """Return the next message of the current task, which the caller has made, as one of a worker."""
        if self._size > 1:
            index = message.num_microbatches if isinstance(message, End) else message.microbatch_index
            self._task_id_of_caller = message.task_id
            self._reorder_buffer.setdefault(message.task_id, {})[index] = message
            return self._take()
        if not isinstance(message, Item) or message.is_last:
            for worker in self.members:
                worker.cancel(message.task_id + 1)
        return message

    def receive(self, *, timeout_s: float | None) -> Message | None:
        """Return the next message in order, or None if none comes within ``timeout_s``; None: wait without a limit.

        Raises:
            WorkerGone: A worker is gone, and everything that it sent was received.
        """
        if self._size == 1:
            if self._failures:
                return self._failures.popitem()[1]
            return self._workers[self._first].receive(timeout_s=timeout_s)  # type: ignore[return-value]  # no SingleWorkerShard: it has no group
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            message = self._take() or self._shortage()
            if message is not None:
                return message
            if not self._receive_ready(0.0):
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if (left_s is not None and left_s <= 0) or not self._receive_ready(left_s):
                    return None

    def kill(self, pid: int) -> None:
        """Kill a worker that has stalled; what it sent before its end is kept for its turn."""
        for worker in self.members:
            if worker.pid == pid:
                worker.kill()
                if self._size > 1:
                    with contextlib.suppress(WorkerGone):
                        self._receive_from(worker, timeout_s=_LONGEST_DEATH_S)
                if worker.is_alive:
                    worker.close(0.0)

    def loss(self, pid: int, task: Task, index: int) -> Loss:
        """Return what is lost with a worker that has died; nothing is expected of it from here on.

        Args:
            pid: The worker's process.
            task: The task whose microbatches are next.
            index: The next microbatch.
        """
        if self._size == 1:
            worker = self._workers[self._first]
            self._gone.add(worker)
            return Loss(task, index, worker.has_begun(task.task_id))
        lost = None
        for member_index, worker in enumerate(self.members):
            if worker.pid == pid:
                self._gone.add(worker)
                lost = self._lost_by(member_index)
        return lost or Loss(task, index, has_begun=False)

    def fail(self, loss: Loss, error: BaseException) -> None:
        """Return this error where the turn of a lost microbatch comes."""
        task_id, index = loss.task.task_id, loss.microbatch_index
        failure = Failure(task_id, error, index)
        if self._size == 1:
            self._failures[task_id] = failure
        else:
            self._reorder_buffer.setdefault(task_id, {})[index] = failure

    def resume(
        self,
        tasks: Sequence[tuple[Task, int, tuple[int, ...]]],
        current: Task,
        index: int,
        digest: int | None,
        before: Sequence[Worker],
        given_up: Loss | None,
    ) -> None:
        """Let the successors of dead workers go on.

        Args:
            tasks: Those in work, in order, with their limits, and the samples that were left out of what has arrived.
            current: The task whose microbatches are next.
            index: The next one of them.
            digest: Of the one before, if it is known.
            before: The members as they were: those that are no longer among them were replaced.
            given_up: What no successor makes again, as it has killed two workers.
        """
        for member_index, worker in enumerate(self.members):
            if worker is before[member_index]:
                continue
            self._shortages.pop(before[member_index], None)
            self._gone.discard(before[member_index])
            lost = self._lost_by(member_index) if self._size > 1 else None
            for task, limit, left_out in tasks:
                # Another worker that has died may have left a microbatch before the one that is given up.
                if given_up is not None and task is given_up.task and lost is None:
                    continue
                resumed = task
                if self._size == 1 and task is current:
                    resumed = task._replace(first_microbatch=index, digest=digest, left_out=left_out)
                elif lost is not None and lost.task.task_id == task.task_id:
                    last_digest = digest if task is current else None
                    resumed = self._resumed(task, lost.microbatch_index, last_digest, left_out)
                worker.assign(resumed, limit)

    def _resumed(self, task: Task, index: int, last_digest: int | None, left_out: tuple[int, ...]) -> Task:
        buffered = self._reorder_buffer.get(task.task_id, {})
        before = buffered.get(index - 1)
        digest = before.digest if isinstance(before, Item) else None
        if digest is None and index == self._next_index and self._tasks and self._tasks[0].task_id == task.task_id:
            digest = last_digest
        if self._claim_table().sole_worker(task.task_id) is not None:
            left_out = sum(map(left_out_before, buffered.values()), left_out)
            return task._replace(first_microbatch=index, digest=digest, left_out=left_out)
        return task._replace(lost_microbatch=index, digest=digest)

    def _lost_by(self, member_index: int) -> Loss | None:
        """Return the microbatch that a dead worker has not sent; None: it had nothing to make."""
        claim_table = self._claim_table()
        claim = claim_table.claim_of(member_index)
        task = next((task for task in self._tasks if claim is not None and task.task_id == claim.task_id), None)
        if claim is None or task is None:
            return None
        buffered = self._reorder_buffer.get(task.task_id, {})
        # A successor that dies before it begins has its predecessor's claim.
        has_begun = self.members[member_index].has_begun(task.task_id)
        first = self._next_index if task is self._tasks[0] else task.first_microbatch
        if claim_table.sole_worker(task.task_id) == member_index:
            index = first
            while index in buffered:
                index += 1
            return None if isinstance(buffered.get(index - 1), (End, Failure)) else Loss(task, index, has_begun)
        index = claim.microbatch_index
        if index < first or index in buffered or index >= claim_table.next_index(task.task_id):
            return None
        return Loss(task, index, has_begun)

    def _take(self) -> Item | End | Failure | None:
        """Return the message whose turn it is, if it has come."""
        if not self._tasks:
            return None
        task = self._tasks[0]
        message = self._reorder_buffer.get(task.task_id, {}).pop(self._next_index, None)
        if message is None:
            return None
        self._next_index += 1
        if not isinstance(message, Item) or message.is_last:
            self._tasks.popleft()
            self._reorder_buffer.pop(task.task_id, None)
            if self._tasks:
                self._next_index = self._tasks[0].first_microbatch
            # Who still waits for a limit to make more of it waits in vain.
            for worker in self.members:
                worker.cancel(task.task_id + 1)
        return message

    def _shortage(self) -> MemoryShortage | None:
        """Return the shortage of the worker whose microbatch is next; the others only look ahead."""
        if not self._shortages or not self._tasks:
            return None
        # A worker that only looks ahead may be short because of what waits here for its turn: the caller holds nothing.
        maker = self._known_maker(self._tasks[0].task_id, self._next_index)
        return None if maker is None else self._shortages.pop(maker, None)

    def _receive_ready(self, timeout_s: float | None) -> bool:
        """Keep what the workers have sent; return whether anything came within ``timeout_s``.

        Raises:
            StaleIteratorError: Another thread closed the loader.
            WorkerGone: A worker is gone.
        """
        _, flushes, poll, by_descriptor = self._polled()
        if timeout_s != 0:
            self._send_limit()
        for flush in flushes:
            flush()
        began_s = time.perf_counter()
        self._is_polling = timeout_s != 0
        ready = poll.poll(None if timeout_s is None else 1000 * timeout_s)
        self._is_polling = False
        if timeout_s != 0:
            self._sink.waited(began_s, time.perf_counter(), is_behind=self.num_buffered > 0)
        for worker in {by_descriptor[descriptor] for descriptor, _ in ready}:
            self._receive_from(worker, timeout_s=0)
        return bool(ready)

    def _receive_from(self, worker: Worker, *, timeout_s: float) -> None:
        """Keep all that a worker has sent, and what comes until ``timeout_s`` passes without a message."""
        try:
            message = worker.receive(timeout_s=timeout_s)
            if message is None and not worker.is_alive:
                message = worker.receive(timeout_s=_INSTANT_S)  # raises, even if a child of it keeps the pipe open
            while message is not None:
                if isinstance(message, MemoryShortage):
                    self._shortages[worker] = message
                else:
                    self._shortages.pop(worker, None)
                    if isinstance(message, SingleWorkerShard):
                        self._report_alone(message)
                    else:
                        self._buffer(cast("Item | End | Failure", message))  # the rest is of one worker in this process
                message = worker.receive(timeout_s=timeout_s)
        except WorkerGone:
            self._gone.add(worker)
            self._poll = None
            raise

    def _buffer(self, message: Item | End | Failure) -> None:
        """Keep a message for its turn, unless it is of no task in work, or a second one for the same microbatch."""
        task = next((task for task in self._tasks if task.task_id == message.task_id), None)
        index = message.num_microbatches if isinstance(message, End) else message.microbatch_index
        if isinstance(message, Failure) and message.task_id == self._task_id_of_caller:
            # Of what the caller has made as well; yet it ends what this worker makes of the task.
            index = max(index, self._next_index)
        if task is None or (task is self._tasks[0] and index < self._next_index):
            return
        self._reorder_buffer.setdefault(message.task_id, {}).setdefault(index, message)

    def _report_alone(self, message: SingleWorkerShard) -> None:
        for task in self._tasks:
            if task.task_id == message.task_id:
                self._sink.made_alone(task.payload, message.kind, self._size)

    def _polled(self) -> _Polled:
        members = [worker for worker in self.members if worker not in self._gone]
        if self._poll is None or self._poll[0] != members:
            if not self.members:
                raise StaleIteratorError("the loader was closed while this iterator waited")
            poll = select.poll()
            by_descriptor: dict[int, Worker] = {}
            flushes: list[Callable[[], None]] = []
            for worker in members:
                assert isinstance(worker, PipedWorker)  # noqa: S101 - no others make a shard together
                flushes.append(worker.flush)
                for descriptor in worker.descriptors:
                    poll.register(descriptor, select.POLLIN)
                    by_descriptor[descriptor] = worker
            self._poll = members, flushes, poll, by_descriptor
        return self._poll


def left_out_before(message: Message) -> tuple[int, ...]:
    """Return the samples that were left out before a microbatch, since the one before it."""
    microbatch = message.microbatch if isinstance(message, Item) else None
    return microbatch.left_out if isinstance(microbatch, WithPlanUpdate) else ()
