"""Delivery of microbatches that the caller commits: those that were released come again, before new ones."""

from collections.abc import Callable

from fkat_data.engine.delivery import Delivery
from fkat_data.engine.remaker import Remaker
from fkat_data.plan.commits import CommitLedger, SavedPayload, Ticket, TicketedRank
from fkat_data.plan.iteration import Cursor
from fkat_data.plan.position import Task, TaskOrigin
from fkat_data.plan.shard_plan import Plan
from fkat_data.types import Microbatch


class Redelivery:
    """Delivers what was released, then new microbatches, and notes both in the ledger.

    Args:
        commits: The ledger, and the rank that tickets have.
        plan: The order.
        dp_rank: The rank that random numbers depend on.
        cursor: Counts new microbatches.
        delivery: Delivers them.
        remaker: Makes those that were released.
    """

    def __init__(
        self,
        commits: TicketedRank,
        plan: Plan,
        dp_rank: int,
        cursor: Cursor,
        delivery: Delivery,
        remaker: Remaker,
    ) -> None:
        self.ledger: CommitLedger = commits.ledger
        """The loader's."""
        self._ticket_rank = commits.dp_rank
        self._dp_rank = dp_rank
        self._plan = plan
        self._cursor = cursor
        self._delivery = delivery
        self._remaker = remaker
        self._again: Ticket | None = None
        self._is_rest = False

    def begin(self, *, is_rest: bool) -> None:
        """Begin an iteration, which gives nothing but what was released if ``is_rest``."""
        self._is_rest = is_rest

    def next(self, take: Callable[[], Microbatch]) -> Microbatch:
        """Return the next microbatch, which counts as delivered when ``hand_over`` gets it.

        Args:
            take: Returns the next new one.

        Raises:
            StopIteration: There is none.
            OutstandingError: Too many are outstanding.
            Exception: What making it raises.
        """
        released = self.ledger.next_released()
        if released is None:
            self._again = None
            if self._is_rest:
                raise StopIteration
            return take()
        self._again, tasks = released
        return self._delivery.moved_now(self._remaker.make(tuple(map(self._loaded, tasks))))

    def hand_over(self, microbatch: Microbatch) -> Microbatch:
        """Count a microbatch as delivered, and return it: the last thing that a call does."""
        if self._again is not None:
            self.ledger.deliver_again(self._again)
            return microbatch
        position, task = self._cursor.position, self._delivery.task
        if task is not None:
            origin = task.origin or TaskOrigin(self._dp_rank, task.task_index, 0)
            tasks = self._plan.tasks_of(task._replace(origin=origin), position)
            self.ledger.deliver(position, self._ticket_rank, tasks)
        return self._cursor.hand_over(microbatch)

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered; return False if that is not possible any more."""
        is_new = self._again is None
        return (not is_new or self._cursor.take_back()) and self.ledger.take_back(is_new=is_new)

    def close(self) -> None:
        """Drop what was opened to make microbatches."""
        self._remaker.close()

    def _loaded(self, task: Task) -> Task:
        if not isinstance(task.payload, SavedPayload):
            return task
        return task._replace(payload=self._plan.loaded_payload(task.payload.value, task.first_microbatch))
