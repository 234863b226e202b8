"""The caller's position in the order: all that a checkpoint needs to hold."""

from typing import NamedTuple


class Position(NamedTuple):
    """Position of the first microbatch that the caller has not received.

    Attributes:
        epoch: Number of epochs delivered in full.
        shard: Number of this rank's shards of this epoch delivered in full.
        microbatch: Number of microbatches delivered from the shard at index ``shard``.
        step: Number of microbatches delivered in this epoch, over all its shards.
        ended: Where tasks take turns: those that have ended, and the microbatches of each. There, ``shard`` is 0, and
            ``microbatch`` the step.
    """

    epoch: int
    shard: int
    microbatch: int
    step: int
    ended: tuple[tuple[int, int], ...] = ()

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
