"""The position of a rank in its plan, the state that a resume needs, and the tasks that follow it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fkat_data.errors.acceptance import AcceptedField
from fkat_data.plan.growth import Growth


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


class Dealing(NamedTuple):
    """How an epoch's batches are dealt out to ranks.

    Attributes:
        batch_size: Samples of a batch; 1 where they are single samples, or batches of any size.
        is_split: Whether each rank gets a part of every batch.
        is_by_order: Whether the dataset or the batch sampler deals out.
    """

    batch_size: int = 1
    is_split: bool = False
    is_by_order: bool = False


ONE_BY_ONE = Dealing()
"""How shards are dealt out."""


class Exclusion(NamedTuple):
    """What the caller leaves out, from a position on.

    Attributes:
        samples: Numbers of samples, which no later microbatch has, in no epoch; sorted.
        steps: The first and the last of some steps of the epoch, as they were numbered then; None: none.
    """

    samples: tuple[int, ...] = ()
    steps: tuple[int, int] | None = None


class Reshard(NamedTuple):
    """How far ranks had come when their number changed, or the size of their batches, or what they leave out.

    Attributes:
        positions: Each rank's, in what the reshard before has given it.
        step: Where all ranks after them begin, in the earliest epoch of theirs.
        dealing: How batches were dealt out to them.
        exclusion: What is left out of what they had left; None: nothing.
    """

    positions: tuple[Position, ...]
    step: int
    dealing: Dealing = ONE_BY_ONE
    exclusion: Exclusion | None = None

    @classmethod
    def at(cls, positions: Sequence[Position], dealing: Dealing = ONE_BY_ONE) -> "Reshard":
        """Return the reshard of ranks at these positions: those after them begin at their largest step."""
        epoch = min(position.epoch for position in positions)
        step = max(position.step for position in positions if position.epoch == epoch)
        return cls(tuple(positions), step, dealing)

    @property
    def epoch(self) -> int:
        """The earliest epoch of the ranks."""
        return min(position.epoch for position in self.positions)

    def counts_in(self, epoch: int) -> list[int | None]:
        """Return how many microbatches of an epoch's one task each rank had; None: all."""
        return [None if at.epoch > epoch else at.microbatch if at.epoch == epoch else 0 for at in self.positions]


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
        accepted: What differed where the state, or one before it, was loaded, and was accepted.
        outstanding: What was delivered and not committed: the field of the saved state, or, where a loader goes on, this
            rank's part of it, a ``LoadedOutstanding`` of ``fkat_data.plan.commits``; None: nothing is said of it.
        growth: How the list has grown since epochs that are under way were begun; None: it has not.
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
    accepted: tuple[AcceptedField, ...] = ()
    outstanding: Any = None
    growth: Growth | None = None


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
