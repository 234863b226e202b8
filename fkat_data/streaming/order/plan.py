"""The plan of an epoch: the sample that each rank reads in each step."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.order.batching import BatchCounts
from fkat_data.streaming.order.partition import Grid

_Integers = npt.NDArray[np.int64]


class Plan(ABC):
    """The plan of the rest of an epoch.

    Args:
        batching: Number of batches.
        grid: Ranks and batch size.
    """

    def __init__(self, batching: BatchCounts, grid: Grid) -> None:
        self.batching = batching
        self.grid = grid

    @property
    def num_batches(self) -> int:
        """Number of global batches. The last one may be short."""
        return self.batching.num_batches

    @abstractmethod
    def sample_ids(self, slots: _Integers) -> _Integers:
        """Return the id of each slot's sample, -1 if it reads none: shape (len(slots),), int64."""

    @abstractmethod
    def places(self, slots: _Integers) -> _Integers:
        """Return each slot's place in the epoch's order, -1 if it reads none: shape (len(slots),), int64.

        A place is the same number in every world. Where samples are repeated to fill up an epoch, their places are.
        """

    def rank_places(self, rank: int, batches: _Integers) -> _Integers:
        """Return the places of a rank's batches: shape (len(batches), batch_size), int64, -1 if short."""
        return self.places(self._rank_slots(rank, batches)).reshape(len(batches), self.grid.batch_size)

    def rank_batches(self, rank: int, batches: _Integers) -> _Integers:
        """Return the sample ids of a rank's batches: shape (len(batches), batch_size), int64, -1 if short."""
        return self.sample_ids(self._rank_slots(rank, batches)).reshape(len(batches), self.grid.batch_size)

    def global_batches(self, batches: _Integers) -> _Integers:
        """Return the sample ids of global batches: shape (len(batches), num_ranks, batch_size), int64, -1 if short."""
        slots = batches[:, None] * self.grid.global_batch_size + np.arange(self.grid.global_batch_size)
        found = self.sample_ids(slots.reshape(-1))
        return found.reshape(len(batches), self.grid.num_ranks, self.grid.batch_size)

    def _rank_slots(self, rank: int, batches: _Integers) -> _Integers:
        size = self.grid.batch_size
        return (batches[:, None] * self.grid.global_batch_size + rank * size + np.arange(size)).reshape(-1)
