"""A task: one shard to produce, from a microbatch on, and what such a place depends on."""

from typing import NamedTuple

from fkat_data.plan.place import Piece
from fkat_data.types import Shard


class ShardTerms(NamedTuple):
    """What a place within a shard depends on, as the worker that opened the shard reports it. None: it is not known.

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
        piece: Origin of the shard and its random streams in an epoch that was re-split; None: this rank.
        digest: Digest of the last skipped microbatch if a dead worker had produced it. The worker produces that
            microbatch again and compares.
        lost_microbatch: Index of a microbatch that a dead worker of a group had picked: its successor makes it before
            it picks others. None: there is none.
        terms: What was reported of the shard when it was begun; None: nothing is known.
        is_counted: Whether to count the shard's microbatches instead of making them.
    """

    ticket: int
    epoch: int
    shard_index: int
    shard: Shard
    first_microbatch: int
    piece: Piece | None = None
    digest: int | None = None
    lost_microbatch: int | None = None
    terms: ShardTerms | None = None
    is_counted: bool = False
