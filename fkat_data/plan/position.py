"""The position of a rank in its plan, the state that a resume needs, and the tasks that follow it."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from fkat_data.types import Shard


class Position(NamedTuple):
    """Position of the first microbatch that the caller has not received.

    Attributes:
        epoch: Number of epochs delivered in full.
        shard: Number of this rank's shards of this epoch delivered in full.
        microbatch: Number of microbatches delivered from the shard at index ``shard``.
        step: Number of microbatches delivered in this epoch, over all its shards.
        ended: Where tasks take turns: those that have ended, and the microbatches of each. There, ``shard`` is 0, and
            ``microbatch`` the step.
        left_out: Samples that were left out of the shard at index ``shard`` because they raised, by their offsets in its
            order.
    """

    epoch: int
    shard: int
    microbatch: int
    step: int
    ended: tuple[tuple[int, int], ...] = ()
    left_out: tuple[int, ...] = ()

    def after_shard(self) -> "Position":
        """Return the position after the end of the current shard, where others follow in the epoch."""
        return Position(self.epoch, self.shard + 1, 0, self.step)

    def after_task(self, index: int, num_microbatches: int) -> "Position":
        """Return the position after the end of a task of ``num_microbatches``, where tasks take turns."""
        return self._replace(ended=(*self.ended, (index, num_microbatches)))

    def after_epoch(self) -> "Position":
        """Return the start of the next epoch.

        This is also the position after the end of an epoch's last shard: a saved position always has something left in
        its epoch.
        """
        return Position(self.epoch + 1, 0, 0, 0)


START = Position(0, 0, 0, 0)


Reshard: TypeAlias = tuple[Position, ...]
"""Position of each data-parallel rank at a reshard, in the rank's pieces before the reshard."""


class Piece(NamedTuple):
    """A shard of an epoch, or the rest of one.

    Attributes:
        dp_rank: Data-parallel rank that had the shard when the epoch began; the piece uses its random streams.
        shard_index: Index of the shard in that rank's order.
        first_microbatch: Number of the shard's microbatches that were delivered before.
        left_out: Samples that were left out of the shard before, by their offsets in its order.
    """

    dp_rank: int
    shard_index: int
    first_microbatch: int
    left_out: tuple[int, ...] = ()


def deal(
    epoch: int, reshards: Sequence[Reshard], dp_size: int, num_shards: Callable[[int, int], int]
) -> list[list[Piece]] | None:
    """Return each rank's pieces of an epoch, or None if the epoch had not begun at any reshard.

    Args:
        epoch: The epoch.
        reshards: All reshards so far, in order.
        dp_size: Current number of data-parallel ranks.
        num_shards: Called with a number of ranks and a rank; returns the rank's number of shards in the epoch.
    """
    sizes = [*map(len, reshards), dp_size][1:]
    pieces: list[list[Piece]] | None = None
    for reshard, next_size in zip(reshards, sizes, strict=True):
        if pieces is None:
            if not _is_past(reshard, epoch):
                continue
            begun_size = len(reshard)
            pieces = [
                [Piece(rank, index, 0) for index in range(num_shards(begun_size, rank))] for rank in range(begun_size)
            ]
        left = [remainder_of(own, position, epoch) for own, position in zip(pieces, reshard, strict=True)]
        pieces = assign_remainders(left, next_size)
    return pieces


def remainder_of(pieces: Sequence[Piece], position: Position, epoch: int) -> list[Piece]:
    """Return the part of a rank's pieces of an epoch that was not delivered at a position."""
    if position.epoch != epoch:
        return list(pieces) if position.epoch < epoch else []
    left = list(pieces[position.shard :])
    if left:
        begun = left[0]
        left[0] = begun._replace(
            first_microbatch=begun.first_microbatch + position.microbatch, left_out=begun.left_out + position.left_out
        )
    return left


def assign_remainders(left: Sequence[Sequence[Piece]], dp_size: int) -> list[list[Piece]]:
    """Deal the remaining pieces of each rank to another number of ranks.

    Pieces are ordered by their index in a rank's list, then by rank, so that pieces in progress come first. They go
    to the ranks in turn. Two reshards with nothing delivered in between give the same pieces as the second one alone.
    """
    order = [piece for row in zip_longest(*left) for piece in row if piece is not None]
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
    """One shard to produce.

    Attributes:
        ticket: Number of the task in its loader; the workers of group ``ticket % num_groups`` produce it.
        epoch: Epoch of the shard.
        shard_index: Index of the shard in this rank's order of the epoch.
        shard: The shard, which the worker passes to the factory.
        first_microbatch: Number of microbatches that were delivered before and are skipped.
        piece: Origin of the shard and its random streams in an epoch that was resharded; None: this rank.
        digest: Digest of the last skipped microbatch if a dead worker had produced it. The worker produces that
            microbatch again and compares.
        lost_microbatch: Index of a microbatch that a dead worker of a group had picked: its successor makes it before
            it picks others. None: there is none.
        fingerprint: What was reported of the shard when it was begun; None: nothing is known.
        is_counted: Whether to count the shard's microbatches instead of making them.
        leftover_rows: What the task before has left for this one, as its worker sent it; None: it comes later.
        left_out: Samples of the shard that were left out before the first microbatch, by their offsets in its order.
    """

    ticket: int
    epoch: int
    shard_index: int
    shard: Shard
    first_microbatch: int
    piece: Piece | None = None
    digest: int | None = None
    lost_microbatch: int | None = None
    fingerprint: ShardFingerprint | None = None
    is_counted: bool = False
    leftover_rows: bytes | None = b""
    left_out: tuple[int, ...] = ()
