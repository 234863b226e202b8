"""What is left of an epoch when the number of data-parallel ranks changes: pure arithmetic.

A *layer* is where every data-parallel rank stood at such a re-split. The epoch's shards as the first ranks had them
are its *pieces*; at each layer, what is left of them is put into one order and dealt out to the next ranks, one by
one. So any rank finds any rank's pieces from the layers alone, and no microbatch is in two pieces or in none.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from fkat_data.position import Position

__all__ = ["Deal", "Layer", "Piece", "deal", "first_step", "left_over", "split_anew", "with_layer", "without_idle"]

Layer: TypeAlias = tuple[Position, ...]
"""The position of each data-parallel rank at a re-split, in what that rank had before it."""


class Piece(NamedTuple):
    """A shard of an epoch, or the rest of one.

    Attributes:
        dp_rank: The data-parallel rank that had the shard when the epoch began; its random stream is drawn from.
        shard_index: The shard's place in that rank's order.
        first_microbatch: Microbatches of the shard that were delivered before.
    """

    dp_rank: int
    shard_index: int
    first_microbatch: int


class Deal(NamedTuple):
    """Who has what of an epoch.

    Attributes:
        dp_size: Data-parallel ranks when the epoch began.
        pieces: The pieces of each present rank, in the order of ranks.
    """

    dp_size: int
    pieces: list[list[Piece]]


def deal(epoch: int, layers: Sequence[Layer], dp_size: int, num_shards: Callable[[int, int], int]) -> Deal | None:
    """Return who has what of an epoch, or None if nothing of it was delivered at any layer: it is planned afresh.

    Args:
        epoch: The epoch.
        layers: Every re-split so far, in their order.
        dp_size: Present number of data-parallel ranks.
        num_shards: Called with a number of ranks and a rank; returns the shards that the rank has of the epoch.
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
        pieces = split_anew(left, next_size)
    return None if pieces is None else Deal(begun_size, pieces)


def left_over(pieces: Sequence[Piece], position: Position, epoch: int) -> list[Piece]:
    """Return what of a rank's pieces of an epoch was not delivered when the rank was at a position."""
    if position.epoch != epoch:
        return list(pieces) if position.epoch < epoch else []
    left = list(pieces[position.shard :])
    if left:
        left[0] = left[0]._replace(first_microbatch=left[0].first_microbatch + position.microbatch)
    return left


def split_anew(left: Sequence[Sequence[Piece]], dp_size: int) -> list[list[Piece]]:
    """Deal what each rank has left out to another number of ranks.

    The order is by the place in a rank's list, then by rank, so that what was begun comes first; the pieces go to
    the ranks in turn. Dealing out again what was dealt out, with nothing delivered in between, gives the same
    pieces as dealing once: the order is kept.
    """
    order = [piece for row in zip_longest(*left) for piece in row if piece is not None]
    return [order[rank::dp_size] for rank in range(dp_size)]


def with_layer(layers: Sequence[Layer], layer: Layer) -> tuple[tuple[Layer, ...], int]:
    """Return the layers that still matter after one more, and the epoch that the next ranks begin in.

    A layer at which nothing of that epoch, or of a later one, was delivered changes nothing, and is left out.

    Args:
        layers: Every re-split so far.
        layer: Where the ranks are now; a rank with nothing left of an epoch is at the start of the next.
    """
    epoch = min(position.epoch for position in layer)
    return without_idle((*layers, layer), epoch), epoch


def without_idle(layers: Sequence[Layer], epoch: int) -> tuple[Layer, ...]:
    """Return the layers that matter to an epoch or a later one: something of them was delivered at each."""
    return tuple(layer for layer in layers if _is_past(layer, epoch))


def first_step(epoch: int, layers: Sequence[Layer]) -> int:
    """Return the ``step`` at which every rank begins an epoch: 0 but in the epoch of the last re-split.

    There it is the largest of the ranks before: a count of microbatches that goes on.
    """
    if not layers or min(position.epoch for position in layers[-1]) != epoch:
        return 0
    return max(position.step for position in layers[-1] if position.epoch == epoch)


def _is_past(layer: Layer, epoch: int) -> bool:
    """Return whether a rank had got further than an epoch's start."""
    return any(position[:3] > (epoch, 0, 0) for position in layer)
