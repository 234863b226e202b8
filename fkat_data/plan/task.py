"""A task: one shard to produce, from a place in it."""

from typing import NamedTuple

from fkat_data.plan.elastic import Piece
from fkat_data.types import Shard

__all__ = ["Task"]


class Task(NamedTuple):
    """One shard to produce.

    Attributes:
        ticket: Its number among all tasks of a loader; worker ``ticket % num_workers`` produces it.
        epoch: The epoch it belongs to.
        shard_index: The shard's place in the epoch's order of this rank.
        shard: What the factory is called with.
        first_microbatch: Microbatches that were delivered before; they are stepped over.
        piece: Whose random streams the shard has, in an epoch that was split anew; None: this rank's own.
        digest: Of the last one that is stepped over, where a dead worker had made it: it is made again, and must be the same.
    """

    ticket: int
    epoch: int
    shard_index: int
    shard: Shard
    first_microbatch: int
    piece: Piece | None = None
    digest: int | None = None
