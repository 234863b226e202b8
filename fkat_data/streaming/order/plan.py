"""What is planned of an epoch: the sample that each rank reads in each step."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.order.batching import BatchCounts
from fkat_data.streaming.order.partition import Grid

__all__ = ["Plan"]

_Integers = npt.NDArray[np.int64]


class Plan(ABC):
    """The rest of an epoch, from a place on.

    Args:
        batching: How many batches there are.
        grid: Who reads.
        is_cheap: Whether a few slots cost little; else all that are wanted should be asked for at once.
    """

    def __init__(self, batching: BatchCounts, grid: Grid, *, is_cheap: bool) -> None:
        self.batching = batching
        self.grid = grid
        self.is_cheap = is_cheap

    @property
    def num_batches(self) -> int:
        """Number of global batches, the last of which may be short."""
        return self.batching.num_batches

    @abstractmethod
    def sample_ids(self, slots: _Integers) -> _Integers:
        """Return the sample that is read in each slot; -1 where none is."""

    def rank_batches(self, rank: int, batches: _Integers) -> _Integers:
        """Return a rank's batches: samples by batch, -1 where a batch is short."""
        size = self.grid.batch_size
        slots = batches[:, None] * self.grid.global_batch_size + rank * size + np.arange(size)
        return self.sample_ids(slots.reshape(-1)).reshape(len(batches), size)

    def global_batches(self, batches: _Integers) -> _Integers:
        """Return whole global batches: samples by batch and rank, -1 where a batch is short."""
        slots = batches[:, None] * self.grid.global_batch_size + np.arange(self.grid.global_batch_size)
        found = self.sample_ids(slots.reshape(-1))
        return found.reshape(len(batches), self.grid.num_ranks, self.grid.batch_size)
