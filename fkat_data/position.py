"""The caller's position in the order: all that a checkpoint needs to hold."""

from typing import NamedTuple

__all__ = ["START", "Position"]


class Position(NamedTuple):
    """Position of the first microbatch that the caller has not received.

    Attributes:
        epoch: Number of epochs delivered in full.
        shard: Number of this rank's shards of this epoch delivered in full.
        microbatch: Number of microbatches delivered from the shard at index ``shard``.
        step: Number of microbatches delivered in this epoch, over all its shards.
    """

    epoch: int
    shard: int
    microbatch: int
    step: int

    def after_shard(self, *, is_last_shard: bool) -> "Position":
        """Return the position after the end of the current shard.

        After the last shard, this is the start of the next epoch: a saved position always has something left in its
        epoch.
        """
        return self.after_epoch() if is_last_shard else Position(self.epoch, self.shard + 1, 0, self.step)

    def after_epoch(self) -> "Position":
        """Return the start of the next epoch."""
        return Position(self.epoch + 1, 0, 0, 0)


START = Position(0, 0, 0, 0)
