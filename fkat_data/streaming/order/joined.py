"""An epoch whose mixture changes: phases one after the other, each planned as an epoch is."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.order.batching import BatchCounts
from fkat_data.streaming.order.plan import Plan

__all__ = ["JoinedBatches", "JoinedPlan", "epoch_of_phase"]

_Integers = npt.NDArray[np.int64]


def epoch_of_phase(epoch: int, phase: int) -> int:
    """Return the epoch by whose number a phase of an epoch draws: no phase draws as another one does."""
    return epoch + (phase << 24)


class JoinedBatches:
    """The global batches of phases, one after the other; all but the last have full ones.

    Args:
        phases: At least one.
    """

    def __init__(self, phases: Sequence[BatchCounts]) -> None:
        self._phases = phases
        counts = [phase.num_even_batches for phase in phases]
        self.firsts = np.cumsum([0, *counts[:-1]])
        self.num_even_batches = sum(counts)
        self.num_batches = sum(counts[:-1]) + phases[-1].num_batches

    def num_rank_samples(self, num_batches: int) -> int:
        """Return the samples that each rank has read after so many of the batches."""
        last = int(np.searchsorted(self.firsts, num_batches, side="right")) - 1
        before = sum(phase.num_rank_samples(phase.num_even_batches) for phase in self._phases[:last])
        return before + self._phases[last].num_rank_samples(num_batches - int(self.firsts[last]))


class JoinedPlan(Plan):
    """The plans of phases, one after the other.

    Args:
        plans: At least one, all for the same grid.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        batches = JoinedBatches([plan.batching for plan in plans])
        super().__init__(batches, plans[0].grid, is_cheap=all(plan.is_cheap for plan in plans))
        self._plans = plans
        self._first_slots = batches.firsts * plans[0].grid.global_batch_size

    def sample_ids(self, slots: _Integers) -> _Integers:
        """Return the sample that is read in each slot; -1 where none is."""
        phases = np.searchsorted(self._first_slots, slots, side="right") - 1
        found = np.empty(len(slots), np.int64)
        for phase in np.unique(phases).tolist():
            where = phases == phase
            found[where] = self._plans[phase].sample_ids(slots[where] - self._first_slots[phase])
        return found
