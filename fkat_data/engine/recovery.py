"""What is done about faults: how often a dead worker is replaced, and which failing shards are skipped.

It counts and decides; the prefetcher acts.
"""

import logging
import math
import socket
import time
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias, get_args

from fkat_data.errors import (
    ConfigurationError,
    ReplayMismatchError,
    SkippedSamplesError,
    StateMismatchError,
    WorkerStalledError,
)
from fkat_data.errors.wording import add_note, shard_location, shard_name
from fkat_data.observe.progress import Activity, WaitDisplay, display_for
from fkat_data.plan.position import Position, Task
from fkat_data.worker.windows import read_left_out
from fkat_data.worker.worker import Worker

_GROWTH = 2.0
_SHORTEST_S = 0.001
# So soon is it seen that workers hang at their start.
_LONGEST_INTERVAL_S = 5.0


class WaitClock:
    """Measures one wait for one worker, in pieces of ``interval_s``.

    Only waiting counts: the trainer never waits for a worker that is idle because the caller is slow. The start of a
    worker elsewhere does not count to ``timeout_s``. The first report comes after ``warning_s``, each further one after
    twice the interval before it.

    Args:
        warning_s: Seconds before the first report.
        timeout_s: Seconds before the error; None: never.
        display: Shows the wait's progress.
    """

    def __init__(self, warning_s: float, timeout_s: float | None, display: WaitDisplay) -> None:
        self._left_s = math.inf if timeout_s is None else timeout_s
        self._display = display
        self._waited_s = 0.0
        self._report_interval_s = warning_s
        self._until_report_s = self._next_report_s()
        self._until_shown_s = display.interval_s

    @property
    def interval_s(self) -> float:
        """Seconds to wait before the next call of ``advance``."""
        return min(self._until_report_s, self._until_shown_s, _LONGEST_INTERVAL_S)

    def advance(self, worker: Worker, task: Task, microbatch_index: int, num_in_work: int) -> None:
        """Count ``interval_s`` in which nothing arrived; show or report the wait if it is time to.

        Args:
            worker: The worker that the trainer waits for.
            task: The shard whose microbatch the trainer waits for.
            microbatch_index: The microbatch's index in the shard.
            num_in_work: Shards in work, this one included.

        Raises:
            WorkerStalledError: The wait has taken ``timeout_s``.
        """
        passed_s = self.interval_s
        self._waited_s += passed_s
        self._left_s -= max(0.0, min(passed_s, time.monotonic() - worker.report().started_s))
        self._until_report_s -= passed_s
        self._until_shown_s -= passed_s
        if self._until_report_s <= 0:
            self._display.end()  # a bar would garble the log's lines
            self._report(worker, task, microbatch_index, num_in_work)
            self._until_report_s = self._next_report_s()
        if self._until_shown_s <= 0:
            self._display.show(self._waited_s, activity_of(worker, task))
            self._until_shown_s = self._display.interval_s

    def end(self) -> None:
        """End the wait."""
        self._display.end()

    def _next_report_s(self) -> float:
        return max(_SHORTEST_S, min(self._report_interval_s, self._left_s))

    def _report(self, worker: Worker, task: Task, microbatch_index: int, num_in_work: int) -> None:
        stack = worker.stack()
        # Not compared with 0: sums of pieces are not exact.
        if self._left_s < _SHORTEST_S:
            raise WorkerStalledError(
                worker.pid, self._waited_s, task.payload, task.epoch, microbatch_index, stack, socket.gethostname()
            )
        logger.warning(
            "waiting for %.1f s for microbatch %d of %s %s, which worker %d %s; "
            "tasks under way: %d, no microbatch is ready.%s Its stack:\n%s",
            self._waited_s,
            microbatch_index,
            shard_name(task.payload),
            shard_location(task.payload, task.epoch, task.task_index),
            worker.pid,
            "is working on" if worker.has_begun(task.task_id) else "has not begun",
            num_in_work,
            _earlier(worker),
            stack,
        )
        self._report_interval_s *= _GROWTH


def _earlier(worker: Worker) -> str:
    making = worker.report().times.making
    return f" Of the {making.num:,} microbatches that it has made, {making}." if making.num else ""


def activity_of(worker: Worker, task: Task) -> Activity:
    """Return what a worker does while the trainer waits for it."""
    report = worker.report()
    times, is_starting = report.times, report.started_s == math.inf
    shard = shard_name(task.payload)
    if is_starting or not worker.has_begun(task.task_id):
        is_new = is_starting or (not times.stage and not times.produced)
        return Activity("the worker is starting" if is_new else f"the worker has not begun {shard} yet")
    match times.stage:
        case "replay":
            text = f"making again what was delivered before the resume, of {shard}"
            return Activity(text, max(0, times.subject), task.first_microbatch)
        case "store":
            return Activity(f"waiting for stored bytes of {shard}")
        case "produce" | "encode":
            return Activity(f"making microbatch {times.subject} of {shard}")
        case "blocked":
            return Activity(f"waiting for shared memory or for the caller, in {shard}")
        case _:
            return Activity(f"opening {shard}")


logger: logging.Logger = logging.getLogger(__name__)

OnShardError: TypeAlias = Literal["raise", "skip"]
ON_SHARD_ERROR: tuple[OnShardError, ...] = get_args(OnShardError)
_DEATHS_AT_ONE_POSITION = 2
# A wrong configuration, too little memory, a dataset that is no function of the position, a state that does not fit: other shards would fail too.
NOT_THE_SHARDS = (ConfigurationError, MemoryError, ReplayMismatchError, StateMismatchError)


class Recovery(NamedTuple):
    """What a user allows to be done about faults.

    Attributes:
        max_worker_restarts: Dead workers that may be replaced, in each epoch.
        skips_shards: Whether a shard that raises is skipped.
        max_skipped_shards: Shards that may be skipped in each epoch.
        stall_warning_s: Seconds of waiting for one worker before the first report.
        stall_timeout_s: Seconds before the worker is killed; None: never.
    """

    max_worker_restarts: int
    skips_shards: bool
    max_skipped_shards: int
    stall_warning_s: float
    stall_timeout_s: float | None

    @property
    def needs_processes(self) -> bool:
        """Whether it is about what befalls a process that can be ended, and started again."""
        return self.stall_timeout_s is not None or self.max_worker_restarts > 0

    def wait_clock(self) -> WaitClock:
        """Return a clock for a wait that begins now."""
        return WaitClock(self.stall_warning_s, self.stall_timeout_s, display_for())


class Remedy(Enum):
    """What to do about a dead worker."""

    GO_ON = "replace it and go on where it was"
    GIVE_UP_SHARD = "replace it, and give up the shard that kills it"
    GIVE_UP = "raise in the caller"


class Restarts:
    """Decides whether a dead worker is replaced.

    Two deaths at one microbatch of one shard are no accident: a third try would end the same way. A death before the
    shard was begun does not count against it.

    Args:
        most: Replacements in one epoch.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._epoch = -1
        self.in_epoch: int = 0
        """Replacements in the present epoch."""
        self.total: int = 0
        """Replacements since the loader was made."""
        self._position: tuple[int, int, int] | None = None
        self._deaths_at_position = 0

    def remedy(self, task: Task, microbatch_index: int, *, has_begun: bool) -> Remedy:
        """Return what to do about a worker that died before it gave a microbatch, and count it."""
        if task.epoch != self._epoch:
            self._epoch, self.in_epoch, self._position, self._deaths_at_position = task.epoch, 0, None, 0
        position = (task.epoch, task.task_index, microbatch_index)
        if position != self._position:
            self._position, self._deaths_at_position = position, 0
        self._deaths_at_position += has_begun
        if self.in_epoch >= self._most:
            return Remedy.GIVE_UP
        self.in_epoch += 1
        self.total += 1
        return Remedy.GO_ON if self._deaths_at_position < _DEATHS_AT_ONE_POSITION else Remedy.GIVE_UP_SHARD


class ShardSkips:
    """Decides whether a failing shard is skipped, and remembers those that were.

    Args:
        skips: Whether any is.
        most: How many in one epoch.
    """

    def __init__(self, most: int, *, skips: bool) -> None:
        self._most = most
        self.is_active = skips
        """Whether failing shards are skipped."""
        self._epoch = 0
        self._shards: list[int] = []
        self.total: int = 0
        """Shards skipped since the loader was made."""

    def shards(self, epoch: int) -> tuple[int, ...]:
        """Return the indices of the shards that were skipped in an epoch, if it is the present one."""
        return tuple(self._shards) if epoch == self._epoch else ()

    def load(self, epoch: int, shards: tuple[int, ...]) -> None:
        """Load which shards of an epoch were skipped before a resume."""
        self._epoch, self._shards = epoch, list(shards)

    def may_skip(self, task: Task, error: BaseException, *, is_whole_epoch_lost: bool) -> bool:
        """Return whether a shard that failed is skipped; count and log it then.

        Args:
            task: The shard.
            error: Why it failed; gets a note if only the bound prevents the skip.
            is_whole_epoch_lost: Whether the epoch would end without a microbatch: failures alone are no empty epoch.
        """
        if task.epoch != self._epoch:
            self.load(task.epoch, ())
        if not self.is_active or not isinstance(error, Exception) or isinstance(error, NOT_THE_SHARDS):
            return False
        if task.task_index in self._shards:  # counted by a call that was interrupted
            return True
        if len(self._shards) >= self._most:
            add_note(
                error, f"fkat_data: not skipped: {self._most} shards of this epoch already were (max_skipped_shards)"
            )
            return False
        if is_whole_epoch_lost:
            add_note(error, "fkat_data: not skipped: no shard of this epoch gave a microbatch")
            return False
        self._shards.append(task.task_index)
        self.total += 1
        logger.warning(
            "skipping the rest of shard %r (epoch %d, shard index %d), skip %d of at most %d in this epoch: %s: %s",
            task.payload,
            task.epoch,
            task.task_index,
            len(self._shards),
            self._most,
            type(error).__name__,
            error,
        )
        return True


class SampleSkips:
    """Counts and logs the samples that workers have left out of shards."""

    def __init__(self) -> None:
        self._epoch = -1
        # Of shards that had ended before a resume; and the others, by shard and offset in its order.
        self._num_before = 0
        self._left_out: set[tuple[int, int]] = set()
        self.num_skipped_samples: int = 0
        """Those that were left out since the loader was made."""

    def count(self, position: Position) -> int:
        """Return how many were left out of an epoch before a position."""
        if position.epoch != self._epoch:
            return 0
        num_ended = sum(index < position.task_index for index, _ in self._left_out)
        return self._num_before + num_ended + len(position.left_out)

    def load(self, position: Position, num_left_out: int) -> None:
        """Go on at a position of an epoch of which ``num_left_out`` were left out before it."""
        self._epoch = position.epoch
        self._num_before = num_left_out - len(position.left_out)
        self._left_out = {(position.task_index, offset) for offset in position.left_out}

    def record(self, task: Task, num_made: int, update: bytes) -> None:
        """Take what was left out before a microbatch.

        Raises:
            SkippedSamplesError: They are too many.
        """
        self._leave_out(task, update)

    def end_task(self, task: Task, trailer: bytes) -> None:
        """Take what was left out behind a shard's last microbatch. Raises as ``record`` does."""
        self._leave_out(task, trailer)

    def _leave_out(self, task: Task, said: bytes) -> None:
        most, skipped = read_left_out(said)
        if task.epoch != self._epoch:
            self.load(Position(task.epoch, 0, 0, 0), 0)
        for offset, index, reason in skipped:
            if (task.task_index, offset) in self._left_out:  # it is made again
                continue
            self._left_out.add((task.task_index, offset))
            self.num_skipped_samples += 1
            shard = shard_name(task.payload)
            logger.warning("sample %s of %s of epoch %d is left out: %s", index, shard, task.epoch, reason)
        num_left_out = self._num_before + len(self._left_out)
        if num_left_out > most:
            last = f"sample {skipped[-1].number} of {shard_name(task.payload)}: {skipped[-1].reason}"
            raise SkippedSamplesError(task.epoch, num_left_out, most, last)
