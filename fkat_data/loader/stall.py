"""A wait that takes too long is told of, with what the worker is doing; at last it is an error."""

import logging
import socket

from fkat_data.errors import WorkerStalledError
from fkat_data.plan.task import Task
from fkat_data.worker.messages import Worker

__all__ = ["StallWatch"]

logger = logging.getLogger(__name__)

_GROWTH = 2.0


class StallWatch:
    """Measures one wait of the trainer for one worker.

    Only waiting counts: a worker that has nothing to do because the caller is slow is never waited for. The first
    report comes after ``stall_warning_s``, each further one after twice the interval.

    Args:
        warning_s: Seconds before the first report.
        timeout_s: Seconds before the error; None: never.
    """

    def __init__(self, warning_s: float, timeout_s: float | None) -> None:
        self._interval_s = warning_s
        self._timeout_s = timeout_s
        self._waited_s = 0.0

    @property
    def patience_s(self) -> float:
        """Seconds to wait before ``report`` is called."""
        if self._timeout_s is None:
            return self._interval_s
        return max(0.001, min(self._interval_s, self._timeout_s - self._waited_s))

    def report(self, worker: Worker, task: Task, microbatch_index: int, num_in_work: int) -> None:
        """Tell that ``patience_s`` has passed and nothing has come.

        Args:
            worker: Who is waited for.
            task: The shard whose microbatch is waited for.
            microbatch_index: The microbatch.
            num_in_work: Shards in work, this one included.

        Raises:
            WorkerStalledError: The wait has taken ``stall_timeout_s``.
        """
        self._waited_s += self.patience_s
        stack = worker.stack()
        if self._timeout_s is not None and self._waited_s >= self._timeout_s:
            raise WorkerStalledError(
                worker.pid, self._waited_s, task.shard, task.epoch, microbatch_index, stack, socket.gethostname()
            )
        logger.warning(
            "waiting for %.1f s for microbatch %d of shard %r (epoch %d, shard index %d), which worker %d %s; "
            "%d shards are in work, no microbatch is ready. What it is doing:\n%s",
            self._waited_s,
            microbatch_index,
            task.shard,
            task.epoch,
            task.shard_index,
            worker.pid,
            "is working on" if worker.has_begun(task.ticket) else "has not begun",
            num_in_work,
            stack,
        )
        self._interval_s *= _GROWTH
