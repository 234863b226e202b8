"""What the engine asks of a worker: a process, threads, the caller's own thread, or an actor elsewhere."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from fkat_data.observe.durations import Durations
from fkat_data.observe.stages import StageTimes
from fkat_data.plan.position import ShardFingerprint, Task
from fkat_data.worker.messages import Message, SingleWorkerShard


class WorkerReport(NamedTuple):
    """What a worker has done so far, and what it holds.

    Attributes:
        times: How it spent its time.
        num_received: Microbatches that were received from it.
        started_s: When it began to look for tasks (monotonic); infinite while that is not known; 0 where it does not count.
        held_bytes: Bytes of shared memory whose microbatches are alive.
        num_segments: Its pieces of shared memory.
        segment_bytes: Bytes of those.
        made_on: How long microbatches took, by machine, if there are several.
        lent_bytes: Of the bytes held, those that other ranks alone hold.
    """

    times: StageTimes
    num_received: int
    started_s: float = 0.0
    held_bytes: int = 0
    num_segments: int = 0
    segment_bytes: int = 0
    made_on: Mapping[str, Durations] = MappingProxyType({})
    lent_bytes: int = 0


class Worker(Protocol):
    """Makes the microbatches of tasks, in the order in which it gets the tasks.

    The caller's thread calls all methods, but for ``hang_up``, which any thread may call.
    """

    @property
    def pid(self) -> int:
        """The id of the process that makes microbatches; the trainer's where it is no other."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether the worker can take tasks."""
        ...

    @property
    def works_ahead(self) -> bool:
        """Whether the worker makes microbatches before they are asked for."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether the last call was interrupted while it waited for a message."""
        ...

    @property
    def num_ready(self) -> int:
        """Microbatches that are made, and were not received."""
        ...

    def assign(self, task: Task, limit: int) -> None:
        """Take a task, to be produced after those taken before.

        Args:
            task: The task.
            limit: How many of its microbatches may be made by now; -1: all.
        """
        ...

    def allow(self, task_id: int, limit: int, *, is_ahead: bool = False) -> None:
        """Let a task be produced up to ``limit`` microbatches; ``is_ahead``: of a later task than the current one."""
        ...

    def cancel(self, task_id: int) -> None:
        """Drop every task with an id below this one."""
        ...

    def receive(self, *, timeout_s: float | None) -> Message | SingleWorkerShard | None:
        """Return the next message, or None if none comes within ``timeout_s``; None: wait without a limit.

        Raises:
            WorkerGone: The worker has ended, and everything that it has sent was received.
        """
        ...

    def end_wait(self) -> None:
        """Record that an interrupted wait is over."""
        ...

    def has_begun(self, task_id: int) -> bool:
        """Return whether the worker has reported that it works on a task."""
        ...

    def fingerprint(self, task_id: int) -> ShardFingerprint | None:
        """Return what the worker has reported of a task's shard; None: nothing."""
        ...

    def take_leftover_rows(self, task_id: int) -> bytes | None:
        """Return, once, what a task has left for the one behind it; None: that is not known yet."""
        ...

    def give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        """Give a task that was assigned without it what the one before has left."""
        ...

    def report(self) -> WorkerReport:
        """Return what the worker has done so far, and what it holds."""
        ...

    def stack(self) -> str:
        """Return the worker's Python stacks, and what may hold it up since its start."""
        ...

    def hang_up(self) -> None:
        """Let the worker end, and a thread that waits for it wake up."""
        ...

    def kill(self) -> None:
        """End the worker at once; what it has sent can still be received."""
        ...

    def close(self, timeout_s: float) -> None:
        """End the worker: when it next looks for tasks, or at once when ``timeout_s`` has passed. Any number of calls."""
        ...


class PipedWorker(ABC):
    """What a worker has besides that is another process, at the end of a pipe, with segments of its own."""

    @property
    @abstractmethod
    def has_started(self) -> bool:
        """Whether the worker has opened what it was sent, and looks for tasks."""

    @property
    @abstractmethod
    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when a message comes, or when the process ends."""

    @abstractmethod
    def begin_behind(self, task_id: int, index: int) -> None:
        """Let the worker begin a task at a microbatch, if it has not begun it: the caller makes those before."""

    @abstractmethod
    def allow_memory(self, size_bytes: int) -> None:
        """Let the worker's segments take so much together, within its limit."""

    @abstractmethod
    def flush(self) -> None:
        """Send what was posted, if there is room for it; for a caller that waits for several workers."""

    @abstractmethod
    def dismiss(self) -> None:
        """Let the worker leave as soon as it looks at the pipe, and send its last events before."""

    @abstractmethod
    def take_events(self, deadline_s: float) -> None:
        """Receive the events that a dismissed worker sends, and drop all else, up to ``deadline_s`` (monotonic)."""
