"""The position of a rank in its plan, the state that a resume needs, and the tasks that follow it."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias


class Position(NamedTuple):
    """Position of the first microbatch that the caller has not received.

    Attributes:
        epoch: Number of epochs delivered in full.
        task_index: Number of this rank's tasks of this epoch delivered in full.
        microbatch: Number of microbatches delivered from the task at ``task_index``.
        step: Number of microbatches delivered in this epoch, over all its tasks.
        ended: Where tasks are interleaved: those that have ended, and the microbatches of each. There, ``task_index`` is
            0, and ``microbatch`` the step.
        left_out: Samples that were left out of the task at ``task_index`` because they raised, by their offsets in its
            order.
    """

    epoch: int
    task_index: int
    microbatch: int
    step: int
    ended: tuple[tuple[int, int], ...] = ()
    left_out: tuple[int, ...] = ()

    def after_task(self) -> "Position":
        """Return the position after the end of the current task, where others follow in the epoch."""
        return Position(self.epoch, self.task_index + 1, 0, self.step)

    def after_interleaved_task(self, index: int, num_microbatches: int) -> "Position":
        """Return the position after the end of a task of ``num_microbatches``, where tasks are interleaved."""
        return self._replace(ended=(*self.ended, (index, num_microbatches)))

    def after_epoch(self) -> "Position":
        """Return the start of the next epoch.

        This is also the position after the end of an epoch's last task: a saved position always has something left in
        its epoch.
        """
        return Position(self.epoch + 1, 0, 0, 0)


START = Position(0, 0, 0, 0)


Reshard: TypeAlias = tuple[Position, ...]
"""Position of each data-parallel rank at a reshard, among the rank's tasks before the reshard."""


class TaskOrigin(NamedTuple):
    """Rank and index that a task had when its epoch began, before the number of ranks changed.

    Attributes:
        dp_rank: Data-parallel rank that had the task when the epoch began; its random numbers stay that rank's.
        task_index: Index of the task in that rank's order.
        first_microbatch: Number of the task's microbatches that were delivered before.
        left_out: Samples that were left out of the task before, by their offsets in its order.
    """

    dp_rank: int
    task_index: int
    first_microbatch: int
    left_out: tuple[int, ...] = ()


def deal(
    epoch: int, reshards: Sequence[Reshard], dp_size: int, num_tasks: Callable[[int, int], int]
) -> list[list[TaskOrigin]] | None:
    """Return each rank's tasks of an epoch, by their origins, or None if the epoch had not begun at any reshard.

    Args:
        epoch: The epoch.
        reshards: All reshards so far, in order.
        dp_size: Current number of data-parallel ranks.
        num_tasks: Called with a number of ranks and a rank; returns the rank's number of tasks in the epoch.
    """
    sizes = [*map(len, reshards), dp_size][1:]
    origins: list[list[TaskOrigin]] | None = None
    for reshard, next_size in zip(reshards, sizes, strict=True):
        if origins is None:
            if not _is_past(reshard, epoch):
                continue
            begun_size = len(reshard)
            origins = [
                [TaskOrigin(rank, index, 0) for index in range(num_tasks(begun_size, rank))]
                for rank in range(begun_size)
            ]
        left = [remainder_of(own, position, epoch) for own, position in zip(origins, reshard, strict=True)]
        origins = assign_remainders(left, next_size)
    return origins


def remainder_of(origins: Sequence[TaskOrigin], position: Position, epoch: int) -> list[TaskOrigin]:
    """Return the tasks of a rank's epoch, by their origins, that were not delivered in full at a position."""
    if position.epoch != epoch:
        return list(origins) if position.epoch < epoch else []
    left = list(origins[position.task_index :])
    if left:
        begun = left[0]
        left[0] = begun._replace(
            first_microbatch=begun.first_microbatch + position.microbatch, left_out=begun.left_out + position.left_out
        )
    return left


def assign_remainders(left: Sequence[Sequence[TaskOrigin]], dp_size: int) -> list[list[TaskOrigin]]:
    """Deal the remaining tasks of each rank, by their origins, to another number of ranks.

    Tasks are ordered by their index in a rank's list, then by rank, so that begun ones come first. They go to the ranks
    in turn. Two reshards with nothing delivered in between give the same tasks as the second one alone.
    """
    order = [origin for row in zip_longest(*left) for origin in row if origin is not None]
    return [order[rank::dp_size] for rank in range(dp_size)]


def with_reshard(reshards: Sequence[Reshard], reshard: Reshard) -> tuple[tuple[Reshard, ...], int]:
    """Append a reshard. Return those that still matter, and the epoch in which the next ranks begin.

    It is dropped if none of its ranks had begun that epoch or a later one.

    Args:
        reshards: All reshards so far.
        reshard: Current positions of the ranks; a rank that has finished an epoch is at the start of the next one.
    """
    epoch = min(position.epoch for position in reshard)
    return without_idle((*reshards, reshard), epoch), epoch


def without_idle(reshards: Sequence[Reshard], epoch: int) -> tuple[Reshard, ...]:
    """Return the reshards that matter to an epoch or a later one: those at which it had begun."""
    return tuple(reshard for reshard in reshards if _is_past(reshard, epoch))


def first_step(epoch: int, reshards: Sequence[Reshard]) -> int:
    """Return the ``step`` at which every rank begins an epoch: 0, except in the epoch of the last reshard.

    There, it is the largest step of the previous ranks, so that the count of microbatches continues.
    """
    if not reshards or min(position.epoch for position in reshards[-1]) != epoch:
        return 0
    return max(position.step for position in reshards[-1] if position.epoch == epoch)


def _is_past(reshard: Reshard, epoch: int) -> bool:
    """Return whether any rank was past the start of an epoch."""
    return any(position[:3] > (epoch, 0, 0) for position in reshard)


class ResumeState(NamedTuple):
    """What one rank needs to resume: its position, and the fingerprint of the plan that it is in. None: unknown.

    Attributes:
        position: Position in the plan.
        dp_rank: The data-parallel rank whose part of the plan it is.
        reshards: Positions of all ranks at each change of their number that an epoch under way depends on.
        sampler: What the order of the position's epoch depends on, as the plan's ``plan_state`` returned it.
        skipped: Indices of the epoch's shards that failed and were skipped.
        num_left_out: Samples of the epoch that were left out, those of the begun shard too.
        batching: How the begun shard's samples are grouped into microbatches.
        files: What the files of the begun shard are, in numbers.
        seed: Seed of the loader.
        dp_size: Number of data-parallel ranks that the sampler splits its shards over.
        num_shards: Number of the rank's shards in the position's epoch.
        shards: Digest of their order.
    """

    position: Position
    dp_rank: int | None = None
    reshards: tuple[Reshard, ...] = ()
    sampler: dict[str, Any] | None = None
    skipped: tuple[int, ...] = ()
    num_left_out: int = 0
    batching: str | None = None
    files: tuple[int, ...] | None = None
    seed: int | None = None
    dp_size: int | None = None
    num_shards: int | None = None
    shards: str | None = None


class ShardFingerprint(NamedTuple):
    """The fingerprint of a begun shard, as the worker that opened it reports it. None: it is not known.

    Attributes:
        batching: How the shard's samples are grouped into microbatches.
        files: What its dataset's files are, in numbers.
    """

    batching: str | None = None
    files: tuple[int, ...] | None = None


class Task(NamedTuple):
    """Work for one worker, or for one group of workers: microbatches from one payload.

    Attributes:
        task_id: Number of the task in its loader; the workers of group ``task_id % num_groups`` produce it.
        epoch: The epoch.
        task_index: Index of the task in this rank's order of the epoch.
        payload: What the worker passes to the factory: of a ``ShardedDataLoader`` a shard, else what the loader's plan
            puts there.
        first_microbatch: Number of microbatches that were delivered before and are skipped.
        origin: Where an epoch that was resharded had the task, and its random numbers, before; None: here.
        digest: Digest of the last skipped microbatch if a dead worker had produced it. The worker produces that
            microbatch again and compares.
        lost_microbatch: Index of a microbatch that a dead worker of a group had picked: its successor makes it before
            it picks others. None: there is none.
        fingerprint: What was reported of the payload when it was begun; None: nothing is known.
        is_counted: Whether to count the task's microbatches instead of making them.
        leftover_rows: What the task before has left for this one, as its worker sent it; None: it comes later.
        left_out: Samples of the task that were left out before the first microbatch, by their offsets in its order.
    """

    task_id: int
    epoch: int
    task_index: int
    payload: Any
    first_microbatch: int
    origin: TaskOrigin | None = None
    digest: int | None = None
    lost_microbatch: int | None = None
    fingerprint: ShardFingerprint | None = None
    is_counted: bool = False
    leftover_rows: bytes | None = b""
    left_out: tuple[int, ...] = ()
