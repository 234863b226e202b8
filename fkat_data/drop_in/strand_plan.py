"""The plan of one strand: an epoch is one shard, which begins where the newest state of the dataset lies."""

from collections.abc import Mapping
from typing import Any

from fkat_data.drop_in.strand import Snapshot, Strand
from fkat_data.plan.shard_plan import ShardPlan

__all__ = ["StrandPlan"]


class StrandPlan(ShardPlan):
    """Plans epochs of one shard each.

    Args:
        index: The strand's number.
        num_strands: Strands of the loader; 0: the only one belongs to no worker.
    """

    def __init__(self, index: int, num_strands: int) -> None:
        self._index = index
        self._num_strands = num_strands
        # By epoch: where the dataset could go on when the epoch began, and the newest place since.
        self._begun: tuple[int, Snapshot | None] = (0, None)
        self._newest: tuple[int, Snapshot | None] = (0, None)

    def shard(self, epoch: int, index: int) -> Any:
        """Return the epoch's strand, or None for another shard than the first."""
        return Strand(epoch, self._index, self._num_strands, self.snapshot(epoch)) if index == 0 else None

    def num_shards(self, epoch: int) -> int | None:
        """Return None: nothing asks for it."""
        del epoch

    def snapshot(self, epoch: int) -> Snapshot | None:
        """Return the newest state of the dataset in an epoch."""
        return self._newest[1] if self._newest[0] == epoch else None

    def record(self, epoch: int, snapshot: Snapshot | None) -> None:
        """Remember where the dataset can go on in an epoch."""
        if snapshot is None or snapshot.step == 0:
            self._begun = (epoch, snapshot)
        self._newest = (epoch, snapshot)

    def abandon(self, epoch: int) -> None:
        """Begin the next epoch as this one began, because the caller has left it."""
        self.record(epoch + 1, self._begun[1] if self._begun[0] == epoch else None)

    def load_sampler_state(self, epoch: int, state: Mapping[str, Any] | None) -> None:
        """Do nothing: the states of a strand are recorded."""
