"""Split the rest of an epoch when the number of data-parallel ranks changes: pure arithmetic.

A *layer* holds the position of every data-parallel rank at such a re-split. A *piece* is a shard of the epoch, or the
rest of one, with the rank that had it first. At each layer, the remaining pieces are put into one order and dealt to
the next ranks in turn. So any rank can compute every rank's pieces from the layers, and every microbatch is in exactly
one piece.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from fkat_data.position import Position

Layer: TypeAlias = tuple[Position, ...]
"""Position of each data-parallel rank at a re-split, in the rank's pieces before the re-split."""


class Piece(NamedTuple):
    """A shard of an epoch, or the rest of one.

    Attributes:
        dp_rank: Data-parallel rank that had the shard when the epoch began; the piece uses its random streams.
        shard_index: Index of the shard in that rank's order.
        first_microbatch: Number of the shard's microbatches that were delivered before.
    """

    dp_rank: int
    shard_index: int
    first_microbatch: int


class Deal(NamedTuple):
    """The pieces of an epoch, by rank.

    Attributes:
        dp_size: Number of data-parallel ranks when the epoch began.
        pieces: Pieces of each current rank, in order of rank.
    """

    dp_size: int
    pieces: list[list[Piece]]


def deal(epoch: int, layers: Sequence[Layer], dp_size: int, num_shards: Callable[[int, int], int]) -> Deal | None:
    """Return each rank's pieces of an epoch, or None if the epoch had not begun at any layer.

    Args:
        epoch: The epoch.
        layers: All re-splits so far, in order.
        dp_size: Current number of data-parallel ranks.
        num_shards: Called with a number of ranks and a rank; returns the rank's number of shards in the epoch.
    """
    sizes = [*map(len, layers), dp_size][1:]
    pieces: list[list[Piece]] | None = None
    begun_size = 0
    for layer, next_size in zip(layers, sizes, strict=True):
        if pieces is None:
            if not _is_past(layer, epoch):
                continue
            begun_size = len(layer)
            pieces = [
                [Piece(rank, index, 0) for index in range(num_shards(begun_size, rank))] for rank in range(begun_size)
            ]
        left = [left_over(own, position, epoch) for own, position in zip(pieces, layer, strict=True)]
        pieces = resplit(left, next_size)
    return None if pieces is None else Deal(begun_size, pieces)


def left_over(pieces: Sequence[Piece], position: Position, epoch: int) -> list[Piece]:
    """Return the part of a rank's pieces of an epoch that was not delivered at a position."""
    if position.epoch != epoch:
        return list(pieces) if position.epoch < epoch else []
    left = list(pieces[position.shard :])
    if left:
        left[0] = left[0]._replace(first_microbatch=left[0].first_microbatch + position.microbatch)
    return left


def resplit(left: Sequence[Sequence[Piece]], dp_size: int) -> list[list[Piece]]:
    """Deal the remaining pieces of each rank to another number of ranks.

    Pieces are ordered by their index in a rank's list, then by rank, so that pieces in progress come first. They go
    to the ranks in turn. Two re-splits with nothing delivered in between give the same pieces as the second one alone.
    """
    order = [piece for row in zip_longest(*left) for piece in row if piece is not None]
    return [order[rank::dp_size] for rank in range(dp_size)]


def with_layer(layers: Sequence[Layer], layer: Layer) -> tuple[tuple[Layer, ...], int]:
    """Append a layer. Return the layers that still matter, and the epoch in which the next ranks begin.

    A layer is dropped if none of its ranks had begun that epoch or a later one.

    Args:
        layers: All re-splits so far.
        layer: Current positions of the ranks; a rank that has finished an epoch is at the start of the next one.
    """
    epoch = min(position.epoch for position in layer)
    return without_idle((*layers, layer), epoch), epoch


def without_idle(layers: Sequence[Layer], epoch: int) -> tuple[Layer, ...]:
    """Return the layers that matter to an epoch or a later one: those at which it had begun."""
    return tuple(layer for layer in layers if _is_past(layer, epoch))


def first_step(epoch: int, layers: Sequence[Layer]) -> int:
    """Return the ``step`` at which every rank begins an epoch: 0, except in the epoch of the last re-split.

    There, it is the largest step of the previous ranks, so that the count of microbatches continues.
    """
    if not layers or min(position.epoch for position in layers[-1]) != epoch:
        return 0
    return max(position.step for position in layers[-1] if position.epoch == epoch)


def _is_past(layer: Layer, epoch: int) -> bool:
    """Return whether any rank was past the start of an epoch."""
    return any(position[:3] > (epoch, 0, 0) for position in layer)
