"""A task in work: what has arrived of it, and how far its workers may go."""

from collections import deque

from fkat_data.loader.worker_group import WorkerGroup
from fkat_data.plan.task import Task
from fkat_data.worker.messages import End, Failure, Item, Worker

__all__ = ["Work"]


class Work:
    """A task in work.

    Args:
        task: The task.
        group: Makes its microbatches.
        allowance: The first microbatch that may not be made yet.
    """

    __slots__ = ("allowance", "arrived", "delivered", "front", "group", "last_digest", "learn_at", "task")

    def __init__(self, task: Task, group: WorkerGroup, allowance: int) -> None:
        self.task = task
        self.group = group
        self.front: Worker | WorkerGroup = group.front
        """What gives the next message and takes allowances."""
        self.allowance = allowance
        """The first microbatch that may not be made yet."""
        self.arrived: deque[Item | End | Failure] = deque()
        """Messages that were not handed out, in order."""
        self.delivered = task.first_microbatch
        """The next microbatch to hand out."""
        self.last_digest: int | None = None
        """Of the microbatch before it, if it is known."""
        self.learn_at = 0
        """The delivery from which the look-ahead learns next."""

    @property
    def num_expected(self) -> int:
        """The next microbatch that has not arrived."""
        return self.delivered + len(self.arrived)

    def deliver(self, item: Item) -> int:
        """Count a microbatch that is handed out; return the number of the next one."""
        self.last_digest = item.digest
        self.delivered = item.microbatch_index + 1
        return self.delivered

    def begin_turn(self) -> None:
        """Hear the group from here on as it is now."""
        self.front = self.group.front

    def allow(self, allowance: int, *, is_ahead: bool = False, is_new: bool = False) -> None:
        """Let the task be made up to a microbatch, unless it may go as far.

        Args:
            allowance: The first microbatch that may not be made yet.
            is_ahead: Whether the task comes after the one whose microbatches are next.
            is_new: Whether to say it in any case.
        """
        if allowance > self.allowance or is_new:
            self.allowance = allowance
            if is_ahead:
                self.group.allow(self.task.ticket, allowance, is_ahead=True)
            else:
                self.front.allow(self.task.ticket, allowance)

    def learn_after(self, count: int) -> None:
        """Have the look-ahead learn from the delivery after so many."""
        self.learn_at = self.delivered + count
