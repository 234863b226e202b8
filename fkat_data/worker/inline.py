"""The in-process twin: produces in the caller's own thread, for breakpoints, profilers and tracebacks."""

from collections import deque
from collections.abc import Generator

from fkat_data.plan.task import Task
from fkat_data.seeding import preserved_generators
from fkat_data.worker.messages import End, Failure, Item, Message
from fkat_data.worker.produce import Produced, Producer, produce

__all__ = ["InlineWorker"]


class InlineWorker:
    """Produces a microbatch when one is asked for; nothing is prefetched and nothing copied.

    The caller's random generators are left as they are found.

    Args:
        producer: How tasks are produced.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._tasks: deque[Task] = deque()
        self._production: Generator[Produced] | None = None
        self._next_index = 0

    @property
    def is_alive(self) -> bool:
        """True."""
        return True

    @property
    def held_bytes(self) -> int:
        """0: nothing is copied."""
        return 0

    def assign(self, task: Task, allowance: int) -> None:
        """Take a task, to be produced after those taken before."""
        del allowance
        self._tasks.append(task)

    def allow(self, ticket: int, allowance: int) -> None:
        """Do nothing: a microbatch is produced when it is asked for."""

    def cancel(self, ticket: int) -> None:
        """Drop every task with a ticket below this one."""
        while self._tasks and self._tasks[0].ticket < ticket:
            self._end_task()

    def receive(self, *, block: bool) -> Message | None:
        """Return the next message, produced now; None if ``block`` is false, or if there is no task."""
        if not block or not self._tasks:
            return None
        task = self._tasks[0]
        with preserved_generators():
            if self._production is None:
                self._production = produce(task, self._producer)
                self._next_index = task.first_microbatch
            try:
                produced = next(self._production, None)
            except Exception as error:  # noqa: BLE001 - raised in its place in the order
                self._end_task()
                return Failure(task.ticket, error)
        if produced is None:
            self._end_task()
            return End(task.ticket, self._next_index)
        self._next_index = produced.microbatch_index + 1
        if produced.is_last:
            self._end_task()
        return Item(task.ticket, produced.microbatch_index, produced.is_last, produced.microbatch, 0)

    def hang_up(self) -> None:
        """Do nothing: there is no one to tell."""

    def close(self, timeout_s: float) -> None:
        """Drop every task."""
        del timeout_s
        while self._tasks:
            self._end_task()

    def _end_task(self) -> None:
        self._tasks.popleft()
        if self._production is not None:
            self._production.close()
            self._production = None
