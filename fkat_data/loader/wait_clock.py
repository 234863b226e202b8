"""One wait of the trainer for a worker: shown while it is long, reported when it is too long, ended by an error."""

import logging
import socket

from fkat_data.errors import WorkerStalledError
from fkat_data.observe.progress import Activity, WaitDisplay
from fkat_data.plan.task import Task
from fkat_data.shard_name import shard_name, shard_place
from fkat_data.worker.messages import Worker

logger: logging.Logger = logging.getLogger(__name__)

_GROWTH = 2.0
_SHORTEST_S = 0.001


class WaitClock:
    """Measures one wait for one worker, in pieces of ``interval_s``.

    Only waiting counts: the trainer never waits for a worker that is idle because the caller is slow. The first report
    comes after ``warning_s``, each further one after twice the interval before it.

    Args:
        warning_s: Seconds before the first report.
        timeout_s: Seconds before the error; None: never.
        display: Shows the wait's progress.
    """

    def __init__(self, warning_s: float, timeout_s: float | None, display: WaitDisplay) -> None:
        self._timeout_s = timeout_s
        self._display = display
        self._waited_s = 0.0
        self._report_interval_s = warning_s
        self._until_report_s = self._next_report_s()
        self._until_shown_s = display.interval_s

    @property
    def interval_s(self) -> float:
        """Seconds to wait before the next call of ``advance``."""
        return min(self._until_report_s, self._until_shown_s)

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
        if self._timeout_s is None:
            return self._report_interval_s
        return max(_SHORTEST_S, min(self._report_interval_s, self._timeout_s - self._waited_s))

    def _report(self, worker: Worker, task: Task, microbatch_index: int, num_in_work: int) -> None:
        stack = worker.stack()
        # Not compared with 0: sums of pieces are not exact.
        if self._timeout_s is not None and self._timeout_s - self._waited_s < _SHORTEST_S:
            raise WorkerStalledError(
                worker.pid, self._waited_s, task.shard, task.epoch, microbatch_index, stack, socket.gethostname()
            )
        logger.warning(
            "waiting for %.1f s for microbatch %d of %s %s, which worker %d %s; "
            "tasks under way: %d, no microbatch is ready.%s Its stack:\n%s",
            self._waited_s,
            microbatch_index,
            shard_name(task.shard),
            shard_place(task.shard, task.epoch, task.shard_index),
            worker.pid,
            "is working on" if worker.has_begun(task.ticket) else "has not begun",
            num_in_work,
            _earlier(worker),
            stack,
        )
        self._report_interval_s *= _GROWTH


def _earlier(worker: Worker) -> str:
    making = worker.times().making
    return f" Of the {making.num:,} microbatches that it has made, {making}." if making.num else ""


def activity_of(worker: Worker, task: Task) -> Activity:
    """Return what a worker does while the trainer waits for it."""
    times = worker.times()
    shard = shard_name(task.shard)
    if not worker.has_begun(task.ticket):
        is_new = not times.stage and not times.produced
        return Activity("the worker is starting" if is_new else f"the worker has not begun {shard} yet")
    match times.stage:
        case "replay":
            text = f"making again what was delivered before the resume, of {shard}"
            return Activity(text, max(0, times.place), task.first_microbatch)
        case "store":
            return Activity(f"waiting for stored bytes of {shard}")
        case "produce" | "encode":
            return Activity(f"making microbatch {times.place} of {shard}")
        case "blocked":
            return Activity(f"waiting for shared memory or for the caller, in {shard}")
        case _:
            return Activity(f"opening {shard}")
