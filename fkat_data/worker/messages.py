"""The messages between a trainer and its workers, as values and as bytes."""

import mmap
import pickle
import struct
import traceback
from enum import IntEnum
from typing import Any, NamedTuple

from fkat_data.errors import WorkerError
from fkat_data.errors.tracebacks import OF_WORKER, shortened_text
from fkat_data.errors.wording import add_note, made_from_text, notes_of
from fkat_data.observe.stages import NUM_SLOTS, Page
from fkat_data.plan.position import ShardFingerprint, Task
from fkat_data.runtime.interruption import genuine
from fkat_data.transport.codec import dumps, loads
from fkat_data.transport.definitions import dump_shipment


class Kind(IntEnum):
    """The kinds of frames."""

    # trainer to worker
    ASSIGN = 1
    ALLOW = 2
    CREDIT = 3
    CANCEL = 4
    DISCARD = 5
    CLAIM_TABLE = 6
    LEFTOVER_ROWS_IN = 7
    MEMORY = 8
    # worker to trainer
    SEGMENT = 16
    RETIRE = 17
    ITEM = 18
    END = 19
    FAILURE = 20
    MEMORY_SHORTAGE = 21
    BEGIN = 22
    EVENTS = 23
    SINGLE_WORKER_SHARD = 24
    FINGERPRINT = 25
    LEFTOVER_ROWS_OUT = 26


# task_id, microbatch index, is last (-1: not known), segment index, envelope in segment, parts, envelope bytes,
# bytes of the parts, digest
ITEM = struct.Struct("<QQbi?IQQI")
NO_SEGMENT = -1
# task_id, number of microbatches
END = struct.Struct("<QQ")
# segment index
CREDIT = struct.Struct("<i")
# segment index, size in bytes
SEGMENT = struct.Struct("<iQ")
# task_id, microbatches that may be produced (-1: all)
LIMIT = struct.Struct("<Qq")
NO_LIMIT = -1
# tasks that a group of workers may have in work at once
NUM_TASKS = 4096
# ids below this one
TASK_ID = struct.Struct("<Q")
# task_id, microbatch index; the packed failure follows
FAILURE = struct.Struct("<QQ")
# workers of the group, the worker's index among them; the table's descriptor comes along
CLAIM_TABLE = struct.Struct("<II")
# behind a worker's stages: the task's id + 1 of a task that the caller makes itself, and its first microbatch that the caller
# does not make
_MADE_TASK_ID, _MADE_INDEX = NUM_SLOTS, NUM_SLOTS + 1
# where a worker reports its stages (see fkat_data.observe.stages): whole pages of the system, mostly one
PAGE_BYTES = -(-8 * (NUM_SLOTS + 2) // mmap.PAGESIZE) * mmap.PAGESIZE
# bytes needed, bytes held, bytes that are allowed, limit in bytes, bytes that are left (-1: enough)
MEMORY_SHORTAGE = struct.Struct("<QQQQq")
# bytes that the worker's segments may take together from now on
MEMORY = struct.Struct("<Q")


class Item(NamedTuple):
    """One microbatch has been produced.

    Attributes:
        task_id: The task it belongs to.
        microbatch_index: Its index in the shard.
        is_last: Whether the shard ends with it; None if only the next message says so.
        microbatch: What the user's DataLoader yielded.
        size_bytes: Bytes of its tensors and arrays; 0 if nothing was copied.
        digest: Of its content, by ``fkat_data.transport.digest``; 0 if the loader needs none.
    """

    task_id: int
    microbatch_index: int
    is_last: bool | None
    microbatch: Any
    size_bytes: int
    digest: int


class End(NamedTuple):
    """A shard has ended, after an item that was not marked as the last, or without any item.

    Attributes:
        task_id: The task that has ended.
        num_microbatches: Microbatches of the shard, skipped ones included.
    """

    task_id: int
    num_microbatches: int


class WithPlanUpdate(NamedTuple):
    """A microbatch with an update for the plan: a factory's product may yield it instead of the microbatch alone.

    Attributes:
        microbatch: For the caller.
        update: For ``Plan.record``.
        left_out: Samples that were left out since the microbatch before, by their offsets in the shard's order.
    """

    microbatch: Any
    update: bytes
    left_out: tuple[int, ...] = ()


def content_of(produced: Any) -> Any:
    """Return what the caller gets of what a factory's product has yielded."""
    return produced.microbatch if type(produced) is WithPlanUpdate else produced


class ShardTrailer(NamedTuple):
    """Bytes for the plan behind a shard's last microbatch, as a factory's product may yield them. No microbatch.

    Attributes:
        value: For ``Plan.end_task``.
    """

    value: bytes


class Failure(NamedTuple):
    """A shard cannot be produced any further.

    Attributes:
        task_id: The task that failed.
        error: What to raise in the trainer.
        microbatch_index: The index in the shard that has no microbatch for it.
    """

    task_id: int
    error: BaseException
    microbatch_index: int


class MicrobatchChunk(NamedTuple):
    """Several consecutive microbatches of a task in one message, from a worker in the caller's own thread.

    Attributes:
        task_id: The task.
        microbatch_index: The first one's index in the shard.
        microbatches: In order, none of them the task's last; perhaps none.
        digests: Of their content; 0 for each if the loader needs none.
        behind: What comes behind them.
    """

    task_id: int
    microbatch_index: int
    microbatches: list[Any]
    digests: list[int]
    behind: "Item | End | Failure"

    def first(self) -> "Item | End | Failure":
        """Return the message of the first microbatch; ``behind`` if there is none."""
        return self._item(0) if self.microbatches else self.behind

    def behind_first(self) -> "list[Item | End | Failure]":
        """Return the messages behind that of the first microbatch."""
        return [*map(self._item, range(1, len(self.microbatches))), self.behind]

    def _item(self, index: int) -> "Item":
        return Item(
            self.task_id, self.microbatch_index + index, False, self.microbatches[index], 0, self.digests[index]
        )


class MemoryShortage(NamedTuple):
    """The worker waits for memory that others hold.

    Attributes:
        needed_bytes: What the next microbatch needs.
        held_bytes: What is held.
        allowed_bytes: What the worker may take for now.
        limit_bytes: What it may take at most.
        left_bytes: What the machine, or a control group, leaves, if that is too little; else -1.
    """

    needed_bytes: int
    held_bytes: int
    allowed_bytes: int
    limit_bytes: int
    left_bytes: int


@made_from_text
class WorkerGone(Exception):  # noqa: N818 - becomes a WorkerDiedError where shard and microbatch are known
    """A worker's process is gone.

    Args:
        pid: Its process id.
        exit_code: As ``subprocess`` gives it; None if it is unknown.
        last_words: The last lines that it wrote to stderr.
        host: The machine that it was on; "": this one.
    """

    def __init__(self, pid: int, exit_code: int | None, last_words: str, host: str = "") -> None:
        super().__init__(pid, exit_code, last_words, host)
        self.host = host
        self.pid = pid
        self.exit_code = exit_code
        self.last_words = last_words


class CallerProgress:
    """How far the caller has made a task itself, as its worker had not begun: in a page that both have.

    Args:
        page: The worker's.
    """

    def __init__(self, page: Page) -> None:
        self._page = page

    def set(self, task_id: int, index: int) -> None:
        """Let the worker begin a task at a microbatch, unless it has begun it."""
        page = self._page
        if page[_MADE_TASK_ID] != task_id + 1:
            page[_MADE_TASK_ID] = 0
            page[_MADE_INDEX] = index
            page[_MADE_TASK_ID] = task_id + 1
        page[_MADE_INDEX] = index

    def left_of(self, task: Task) -> Task:
        """Return a task that begins behind what the caller makes of it."""
        if self._page[_MADE_TASK_ID] != task.task_id + 1 or task.lost_microbatch is not None:
            return task
        first = int(self._page[_MADE_INDEX])
        return task._replace(first_microbatch=first, digest=None) if first > task.first_microbatch else task


class SingleWorkerShard(NamedTuple):
    """A worker's message: it alone makes all microbatches of a shard, which has no random access.

    Attributes:
        task_id: The task.
        kind: The name of the class of what the factory returned.
    """

    task_id: int
    kind: str


Message = Item | End | Failure | MicrobatchChunk | MemoryShortage


class TaskReports:
    """Reports of a worker on its tasks: fingerprints of their shards, and leftover rows."""

    def __init__(self) -> None:
        self._fingerprints: dict[int, ShardFingerprint] = {}
        self._leftover_rows: dict[int, bytes] = {}

    def fingerprint(self, task_id: int) -> ShardFingerprint | None:
        """Return what was reported of a task's shard; None: nothing."""
        return self._fingerprints.get(task_id)

    def take_leftover_rows(self, task_id: int) -> bytes | None:
        """Return, once, what a task has left for the one behind it; None: that is not known yet."""
        return self._leftover_rows.pop(task_id, None)


def remember_fingerprint(reported: dict[int, ShardFingerprint], task_id: int, fingerprint: ShardFingerprint) -> None:
    """Remember what was reported of a task's shard, for as long as the task may be in work."""
    reported[task_id] = fingerprint
    if len(reported) > NUM_TASKS:
        del reported[next(iter(reported))]


def pack_fingerprint(task_id: int, fingerprint: ShardFingerprint) -> bytes:
    """Return what a worker reports of a task's shard as bytes."""
    return pickle.dumps((task_id, tuple(fingerprint)))


def unpack_fingerprint(body: bytes) -> tuple[int, ShardFingerprint]:
    """Return the task's id and what is reported."""
    task_id, fields = pickle.loads(body)
    return task_id, ShardFingerprint(*fields)


def pack_task(task: Task, limit: int) -> bytes:
    """Return a task as bytes.

    Raises:
        Exception: An index of a user's sampler cannot be pickled.
    """
    fields = tuple(task), limit
    try:
        body = pickle.dumps(fields)
    except genuine(Exception):  # of a class that no module has, or of none at all: the second pickler decides
        body = b"__main__"
    # Indices may be of the script's own classes, which a worker cannot import.
    return dump_shipment(fields)[0] if b"__main__" in body else body


def unpack_task(body: bytes) -> tuple[Task, int]:
    """Return the task and its limit."""
    fields, limit = pickle.loads(body)
    return Task(*fields), limit


_LONGEST_TEXT = 100_000


def pack_failure(error: BaseException, note: str = "") -> bytes:
    """Return an exception as bytes, with its traceback as text.

    Args:
        error: The exception.
        note: Where it was raised, for an exception that takes no notes itself.
    """
    try:
        text = shortened_text(error)
    except BaseException:  # noqa: BLE001 - whatever its own __str__ raises, the exception must be reported
        text = (
            f"{type(error).__name__} (its message cannot be shown)\n{''.join(traceback.format_tb(error.__traceback__))}"
        )
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT // 2]}\n…\n{text[-_LONGEST_TEXT // 2 :]}"
    notes = notes_of(error) or ([note] if note else [])
    return pickle.dumps((_rebuildable(error), type(error).__qualname__, text, notes))


def reportable(raised: BaseException, raiser: str) -> Exception:
    """Return an error to raise in the trainer, which ``SystemExit`` would end in silence.

    Args:
        raised: The exception.
        raiser: What has raised it.
    """
    if isinstance(raised, Exception):
        return raised
    try:
        words = str(raised)
    except BaseException:  # noqa: BLE001 - whatever its own __str__ raises
        words = ""
    try:
        raise WorkerError(f"{raiser} raised {type(raised).__name__}({words})") from raised
    except WorkerError as error:
        return error


def unpack_failure(body: bytes) -> BaseException:
    """Return the exception to raise, with the worker's traceback as a note.

    It has its own type where that could be rebuilt, otherwise it is a ``WorkerError`` with the same text.
    """
    pickled, name, text, notes = pickle.loads(body)
    error = _rebuilt(pickled)
    if error is None:
        error = WorkerError(f"{name} in a worker; it cannot be rebuilt in this process, its traceback follows")
    for note in () if notes_of(error) else notes:
        add_note(error, note)
    if text:
        add_note(error, f"{OF_WORKER}\n{text}")
    return error


def _rebuildable(error: BaseException) -> bytes | None:
    try:
        pickled = dumps(error)
        copy = loads(pickled)
    except BaseException:  # noqa: BLE001 - whatever a user's exception does in pickling, sys.exit() too, it cannot travel
        return None
    return pickled if type(copy) is type(error) and len(pickled) <= 10 * _LONGEST_TEXT else None


def _rebuilt(pickled: bytes | None) -> BaseException | None:
    if pickled is None:
        return None
    try:
        rebuilt: Any = loads(pickled)
    except genuine(Exception):
        return None  # a class that only the worker can import
    return rebuilt if isinstance(rebuilt, BaseException) else None
