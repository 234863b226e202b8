"""An epoch whose weights change: consecutive phases, each planned like an epoch."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.order.batching import BatchCounts
from fkat_data.streaming.order.plan import Plan

_Integers = npt.NDArray[np.int64]

_PHASE_BITS = 24
#: The last epoch: the bits above its number are those of the phase.
LAST_EPOCH = (1 << _PHASE_BITS) - 1


def epoch_of_phase(epoch: int, phase: int) -> int:
    """Return the epoch number that seeds a phase. Each phase of each epoch has a different one."""
    return epoch + (phase << _PHASE_BITS)


def phase_of(epoch: int) -> int:
    """Return the phase of an epoch number that ``epoch_of_phase`` returned."""
    return epoch >> _PHASE_BITS


class JoinedBatches:
    """The global batches of consecutive phases. Only the last phase may end with a short one.

    Args:
        phases: The batches of each phase, of at least one.
    """

    def __init__(self, phases: Sequence[BatchCounts]) -> None:
        self._phases = phases
        counts = [phase.num_even_batches for phase in phases]
        self.firsts: npt.NDArray[np.int64] = np.cumsum([0, *counts[:-1]])
        self.num_even_batches: int = sum(counts)
        self.num_batches: int = sum(counts[:-1]) + phases[-1].num_batches

    def num_rank_samples(self, num_batches: int) -> int:
        """Return how many samples each rank has read after ``num_batches`` global batches."""
        last = int(np.searchsorted(self.firsts, num_batches, side="right")) - 1
        before = sum(phase.num_rank_samples(phase.num_even_batches) for phase in self._phases[:last])
        return before + self._phases[last].num_rank_samples(num_batches - int(self.firsts[last]))


class JoinedPlan(Plan):
    """The plan of consecutive phases.

    Args:
        plans: The plan of each phase, of at least one, all for the same grid.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        batches = JoinedBatches([plan.batching for plan in plans])
        super().__init__(batches, plans[0].grid)
        self._plans = plans
        self._first_slots = batches.firsts * plans[0].grid.global_batch_size

    def sample_ids(self, slots: _Integers) -> _Integers:
        """Return the id of each slot's sample, -1 if it reads none: shape (len(slots),), int64."""
        return self._found(slots, [plan.sample_ids for plan in self._plans])

    def places(self, slots: _Integers) -> _Integers:
        """Return each slot's place in the epoch's order, -1 if it reads none: shape (len(slots),), int64."""
        return self._found(slots, [plan.places for plan in self._plans])

    def _found(self, slots: _Integers, of_phases: Sequence[Callable[[_Integers], _Integers]]) -> _Integers:
        phases = np.searchsorted(self._first_slots, slots, side="right") - 1
        found = np.empty(len(slots), np.int64)
        for phase in np.unique(phases).tolist():
            where = phases == phase
            found[where] = of_phases[phase](slots[where] - self._first_slots[phase])
        return found
