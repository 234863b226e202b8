"""What a trainer and its workers say to each other, as values and as bytes."""

import mmap
import pickle
import struct
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from fkat_data.observe.stages import StageTimes
from fkat_data.plan.task import Task

__all__ = [
    "ALLOWANCE",
    "CREDIT",
    "END",
    "ITEM",
    "NO_LIMIT",
    "NO_SEGMENT",
    "PAGE_BYTES",
    "SEGMENT",
    "STARVED",
    "TICKET",
    "End",
    "Failure",
    "Item",
    "Kind",
    "MemoryShortage",
    "Message",
    "Worker",
    "WorkerGone",
    "pack_task",
    "unpack_task",
]


class Kind(IntEnum):
    """The kinds of frames."""

    # trainer to worker
    ASSIGN = 1
    ALLOW = 2
    CREDIT = 3
    CANCEL = 4
    DISCARD = 5
    # worker to trainer
    SEGMENT = 16
    RETIRE = 17
    ITEM = 18
    END = 19
    FAILURE = 20
    STARVED = 21
    BEGIN = 22
    EVENTS = 23


# ticket, microbatch index, is last (-1: not known), segment index, envelope in segment, parts, envelope bytes, digest
ITEM = struct.Struct("<QQbi?IQI")
NO_SEGMENT = -1
# ticket, number of microbatches
END = struct.Struct("<QQ")
# segment index
CREDIT = struct.Struct("<i")
# segment index, size in bytes
SEGMENT = struct.Struct("<iQ")
# ticket, microbatches that may be produced (-1: all)
ALLOWANCE = struct.Struct("<Qq")
NO_LIMIT = -1
# tickets below this one
TICKET = struct.Struct("<Q")
# where a worker says what it does (see fkat_data.observe.stages): what a system can map at the least
PAGE_BYTES = mmap.PAGESIZE
# bytes needed, bytes held, limit in bytes
STARVED = struct.Struct("<QQQq")


class Item(NamedTuple):
    """One microbatch has been produced.

    Attributes:
        ticket: The task it belongs to.
        microbatch_index: Its place in the shard.
        is_last: Whether the shard ends with it; None where only its end will tell.
        microbatch: What the user's DataLoader yielded.
        size_bytes: Bytes of its tensors and arrays; 0 where nothing was copied.
        digest: What ``fkat_data.transport.digest`` says of its content; 0 where nobody asked for it.
    """

    ticket: int
    microbatch_index: int
    is_last: bool | None
    microbatch: Any
    size_bytes: int
    digest: int


class End(NamedTuple):
    """A shard has ended, after an item that did not say that it was the last, or without any.

    Attributes:
        ticket: The task that has ended.
        num_microbatches: What the shard held, those that were stepped over included.
    """

    ticket: int
    num_microbatches: int


class Failure(NamedTuple):
    """A shard cannot be produced any further.

    Attributes:
        ticket: The task that failed.
        error: What to raise in the trainer.
    """

    ticket: int
    error: BaseException


class MemoryShortage(NamedTuple):
    """The worker waits for memory that somebody holds.

    Attributes:
        needed_bytes: What the next microbatch needs.
        held_bytes: What is held.
        limit_bytes: What the worker may take.
        group_bytes: What a control group has left, where it is that which is short; else -1.
    """

    needed_bytes: int
    held_bytes: int
    limit_bytes: int
    group_bytes: int


class WorkerGone(Exception):  # noqa: N818 - becomes a WorkerDiedError where shard and microbatch are known
    """A worker's process is gone.

    Args:
        pid: Its process id.
        exit_code: As ``subprocess`` gives it; None if it could not be learned.
        last_words: The last lines that it wrote to stderr.
    """

    def __init__(self, pid: int, exit_code: int | None, last_words: str) -> None:
        super().__init__(pid, exit_code, last_words)
        self.pid = pid
        self.exit_code = exit_code
        self.last_words = last_words


Message = Item | End | Failure | MemoryShortage


class Worker(Protocol):
    """A producer of tasks, wherever it runs."""

    @property
    def is_alive(self) -> bool:
        """Whether the worker can be given tasks."""
        ...

    @property
    def pid(self) -> int:
        """The process that it runs in."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that delivered or arrived microbatches hold."""
        ...

    @property
    def num_segments(self) -> int:
        """Pieces of shared memory that the worker has."""
        ...

    @property
    def segment_bytes(self) -> int:
        """Bytes of those."""
        ...

    @property
    def num_received(self) -> int:
        """Microbatches that were received from the worker."""
        ...

    def times(self) -> StageTimes:
        """Return what the worker has spent its time on."""
        ...

    def dismiss(self) -> None:
        """Let the worker leave as soon as it looks for more to do; it sends its last events before."""
        ...

    def take_events(self, deadline_s: float) -> None:
        """Take in the events that a dismissed worker sends, and drop all else, up to ``deadline_s`` (monotonic)."""
        ...

    def has_begun(self, ticket: int) -> bool:
        """Return whether the worker is known to have set to work on a task."""
        ...

    def stack(self) -> str:
        """Return what the worker is doing: its Python stacks, taken from outside."""
        ...

    def assign(self, task: Task, allowance: int) -> None:
        """Take a task, to be produced after those taken before, up to ``allowance`` microbatches for now."""
        ...

    def allow(self, ticket: int, allowance: int) -> None:
        """Let the task be produced up to ``allowance`` microbatches."""
        ...

    def cancel(self, ticket: int) -> None:
        """Drop every task with a ticket below this one."""
        ...

    def receive(self, *, timeout_s: float | None) -> Message | None:
        """Return the next message, or None if none comes within ``timeout_s``; None waits for as long as it takes.

        Raises:
            WorkerGone: The worker's process is gone, and everything that it sent was received.
        """
        ...

    def hang_up(self) -> None:
        """Tell the worker to end, without waiting for it."""
        ...

    def close(self, timeout_s: float) -> None:
        """End the worker within about ``timeout_s``."""
        ...


def pack_task(task: Task, allowance: int) -> bytes:
    """Return a task as bytes."""
    return pickle.dumps((tuple(task), allowance))


def unpack_task(body: bytes) -> tuple[Task, int]:
    """Return the task and its allowance."""
    fields, allowance = pickle.loads(body)
    return Task(*fields), allowance
