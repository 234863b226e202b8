"""A task: one shard to produce, from a place in it."""

from typing import NamedTuple

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
    """

    ticket: int
    epoch: int
    shard_index: int
    shard: Shard
    first_microbatch: int
