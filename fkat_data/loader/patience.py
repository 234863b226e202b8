"""A wait of the trainer for one worker: shown when it takes long, told of when it takes too long."""

from fkat_data.loader.stall import StallWatch
from fkat_data.observe.progress import Activity, WaitDisplay
from fkat_data.plan.task import Task
from fkat_data.worker.messages import Worker

__all__ = ["Patience", "doing"]


class Patience:
    """Measures one wait, in pieces of ``interval_s``.

    Args:
        watch: Told when the wait takes too long.
        display: Shows it before.
    """

    def __init__(self, watch: StallWatch, display: WaitDisplay) -> None:
        self._watch = watch
        self._display = display
        self._waited_s = 0.0
        self._until_report_s = watch.patience_s
        self._until_shown_s = display.interval_s

    @property
    def interval_s(self) -> float:
        """Seconds to wait before ``report`` is called."""
        return min(self._until_report_s, self._until_shown_s)

    def report(self, worker: Worker, task: Task, microbatch_index: int, num_in_work: int) -> None:
        """Take note that ``interval_s`` has passed and nothing has come.

        Args:
            worker: Who is waited for.
            task: The shard whose microbatch is waited for.
            microbatch_index: The microbatch.
            num_in_work: Shards in work, this one included.

        Raises:
            WorkerStalledError: The wait has taken as long as a wait may.
        """
        passed_s = self.interval_s
        self._waited_s += passed_s
        self._until_report_s -= passed_s
        self._until_shown_s -= passed_s
        if self._until_report_s <= 0:
            self._display.end()  # it would be in the way of the log's lines
            self._watch.report(worker, task, microbatch_index, num_in_work)
            self._until_report_s = self._watch.patience_s
        if self._until_shown_s <= 0:
            self._display.show(self._waited_s, doing(worker, task))
            self._until_shown_s = self._display.interval_s

    def end(self) -> None:
        """Take note that the wait is over."""
        self._display.end()


def doing(worker: Worker, task: Task) -> Activity:
    """Return what a worker that is waited for is doing."""
    times = worker.times()
    if not worker.has_begun(task.ticket):
        is_new = not times.stage and not times.produced
        return Activity(
            "the worker is being started" if is_new else f"the worker has not begun shard {task.shard!r} yet"
        )
    shard = f"shard {task.shard!r}"
    match times.stage:
        case "replay":
            text = f"making again what was delivered before the resume, of {shard}"
            return Activity(text, max(0, times.place), task.first_microbatch)
        case "store":
            return Activity(f"waiting for stored bytes of {shard}")
        case "produce" | "encode":
            return Activity(f"making microbatch {times.place} of {shard}")
        case "blocked":
            return Activity(f"waiting for room, in {shard}")
        case _:
            return Activity(f"opening {shard}")
