"""A place in the order: the whole of what a checkpoint has to say."""

from typing import NamedTuple

__all__ = ["START", "Position"]


class Position(NamedTuple):
    """How far the caller is: everything before it was delivered, nothing from it on.

    Attributes:
        epoch: Epochs delivered in full.
        shard: Shards of this epoch, in this rank's order, delivered in full.
        microbatch: Microbatches of the shard at index ``shard`` that were delivered.
        step: Microbatches of this epoch that were delivered, over all its shards.
    """

    epoch: int
    shard: int
    microbatch: int
    step: int

    def after_microbatch(self) -> "Position":
        """Return the place after one more microbatch of the same shard."""
        return Position(self.epoch, self.shard, self.microbatch + 1, self.step + 1)

    def after_shard(self, *, is_last_shard: bool) -> "Position":
        """Return the place after the current shard's end, in canonical form.

        After the last shard that is the start of the next epoch, so that no state describes an epoch with
        nothing left in it.
        """
        return self.after_epoch() if is_last_shard else Position(self.epoch, self.shard + 1, 0, self.step)

    def after_epoch(self) -> "Position":
        """Return the start of the next epoch."""
        return Position(self.epoch + 1, 0, 0, 0)


START = Position(0, 0, 0, 0)
