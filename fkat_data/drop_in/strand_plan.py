"""The plan of one strand: an epoch is one shard, which begins where the newest state of the dataset lies."""

from collections.abc import Mapping
from typing import Any

from fkat_data.drop_in.strand import Snapshot, Strand
from fkat_data.plan.shard_plan import ShardPlan

__all__ = ["StrandPlan"]


class StrandPlan(ShardPlan):
    """Plans epochs of one shard each.

    Snapshots belong to places. So one that was recorded for a microbatch that did not reach the caller says nothing
    about the caller's place.

    Args:
        index: The strand's number.
        num_strands: Strands of the loader; 0: the only one belongs to no worker.
    """

    def __init__(self, index: int, num_strands: int) -> None:
        self.index = index
        """The strand's number."""
        self._num_strands = num_strands
        # By epoch, and in order: those at the beginnings of the last epochs, the newest, and the two before it.
        self._recorded: tuple[tuple[int, Snapshot], ...] = ()

    def shard(self, epoch: int, index: int) -> Any:
        """Return the epoch's strand, or None for another shard than the first."""
        if index:
            return None
        newest = self._recorded[-1] if self._recorded else None
        return Strand(
            epoch, self.index, self._num_strands, newest[1] if newest is not None and newest[0] == epoch else None
        )

    def num_shards(self, epoch: int) -> int | None:
        """Return None: nothing asks for it."""
        del epoch

    def snapshot(self, epoch: int, step: int) -> Snapshot | None:
        """Return the newest state of the dataset at a place or before it, in the same epoch."""
        known = [snapshot for at, snapshot in self._recorded if at == epoch and snapshot.step <= step]
        return known[-1] if known else None

    def record(self, epoch: int, snapshot: Snapshot) -> None:
        """Remember where the dataset can go on in an epoch."""
        place = epoch, snapshot.step
        before = [known for known in self._recorded if (known[0], known[1].step) < place]
        after = [known for known in self._recorded if (known[0], known[1].step) > place]
        begun = [known for known in before[:-2] if known[1].step == 0 and known[0] >= epoch - 1]
        self._recorded = (*begun, *before[-2:], (epoch, snapshot), *after)

    def end_shard(self, epoch: int, epilogue: bytes) -> None:
        """Remember how the dataset begins the next epoch: it stays as this one has left it."""
        self.record(epoch + 1, Snapshot(0, epilogue))

    def forget_past(self, epoch: int, step: int) -> None:
        """Forget snapshots of places past this one: what they followed was not delivered."""
        if self._recorded and (self._recorded[-1][0], self._recorded[-1][1].step) > (epoch, step):
            self._recorded = tuple(known for known in self._recorded if (known[0], known[1].step) <= (epoch, step))

    def abandon(self, epoch: int) -> None:
        """Begin the next epoch as this one began, because the caller has left it."""
        self._recorded = tuple(known for known in self._recorded if known[0] <= epoch)
        begun = [snapshot for at, snapshot in self._recorded if at == epoch and snapshot.step == 0]
        if begun:
            self.record(epoch + 1, begun[0])

    def load_sampler_state(self, epoch: int, state: Mapping[str, Any] | None) -> None:
        """Do nothing: the states of a strand are recorded."""
