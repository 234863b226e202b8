"""Makes a single microbatch again in the caller's thread: what workers have made ahead stays.

What a microbatch consists of, a task says. The dataset is a copy of the one that workers get, where there is one, so that the
program's stays as it is.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from fkat_data.engine.settings import WorkerPoolSettings
from fkat_data.errors import ReplayMismatchError
from fkat_data.observe.sink import EventSink
from fkat_data.observe.stages import StageClock, new_page
from fkat_data.plan.position import Task
from fkat_data.types import Microbatch
from fkat_data.worker.inline import InlineWorker
from fkat_data.worker.messages import Failure, Item, MicrobatchChunk, ShardTrailer, content_of
from fkat_data.worker.produce import Producer
from fkat_data.worker.settings import stand_in_for_worker, worker_info


class Remaker:
    """Makes single microbatches in the caller's thread, as a worker makes them.

    Args:
        open_factory: Returns what opens their payloads; called before the first, and after ``close``.
        settings: The workers': where they are processes, what asks which worker it is in gets an answer.
        sink: Gets the time that it takes the caller.
    """

    def __init__(self, open_factory: Callable[[], Any], settings: WorkerPoolSettings, sink: EventSink) -> None:
        self._open_factory = open_factory
        self._settings = settings
        self._sink = sink
        self._worker: InlineWorker | None = None
        self._info: Any = None
        self._next_id = 0
        # The task that is open, at the microbatch that it makes next.
        self._open: Task | None = None

    def close(self) -> None:
        """Drop what was opened."""
        self._worker = self._open = self._info = None

    def make(self, tasks: tuple[Task, ...]) -> Microbatch:
        """Return the microbatch that some tasks make, see ``Plan.tasks_of``.

        Raises:
            Exception: What making it raises.
            ReplayMismatchError: There is none any more: the data have changed.
        """
        if self._worker is None:
            clock = StageClock(new_page())
            producer = Producer(self._open_factory(), self._settings.seed, self._settings.dp_rank, clock.enter_stage)
            self._worker = InlineWorker(producer, self._sink, clock)
        worker, task = self._worker, tasks[0]
        is_open = self._open is not None and self._open._replace(task_id=0, left_out=()) == task._replace(
            task_id=0, left_out=()
        )
        leftover_rows: bytes | None = b""
        for task in tasks:
            if not is_open:
                worker.cancel(self._next_id)
                self._next_id += 1
                worker.assign(task._replace(task_id=self._next_id - 1, leftover_rows=leftover_rows), 0)
            self._open = None
            message = self._received(worker)
            if isinstance(message, Failure):
                raise message.error
            if isinstance(message, Item) and not isinstance(message.microbatch, ShardTrailer):
                self._open = None if message.is_last else task._replace(first_microbatch=task.first_microbatch + 1)
                return content_of(message.microbatch)
            leftover_rows = worker.take_leftover_rows(self._next_id - 1) or b""
        raise ReplayMismatchError(task.payload, task.epoch, task.first_microbatch)

    def _received(self, worker: InlineWorker) -> Any:
        stands_in = self._settings.kind == "processes"
        with ExitStack() as contexts:
            if stands_in:
                stand_in_for_worker(contexts, self._info)
            message = worker.receive(timeout_s=None)
            self._info = worker_info() if stands_in else None
        return message.first() if isinstance(message, MicrobatchChunk) else message
