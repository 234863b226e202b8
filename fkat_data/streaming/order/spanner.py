"""From a sample's number to its shard and its row in it."""

import operator
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

_Integers = npt.NDArray[np.int64]


class Spanner:
    """The shard and row of each sample. Its memory grows with the number of shards.

    Args:
        shard_sizes: Samples in each shard: shape (num_shards,), int64.

    Attributes:
        size: Samples in all shards.
        starts: Number of each shard's first sample: shape (num_shards,), int64.
    """

    def __init__(self, shard_sizes: _Integers) -> None:
        self._ends = np.cumsum(shard_sizes)
        self.starts: _Integers = self._ends - shard_sizes
        self.size: int = int(shard_sizes.sum())

    def __getitem__(self, sample: SupportsIndex) -> tuple[int, int]:
        """Return a sample's shard and row.

        Raises:
            IndexError: The sample does not exist.
        """
        number = operator.index(sample)
        if not 0 <= number < self.size:
            raise IndexError(f"sample {number} is out of range for {self.size} samples")
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - int(self.starts[shard])

    def locate(self, samples: _Integers) -> tuple[_Integers, _Integers]:
        """Return the shards and rows of samples, all of which must exist: two int64 arrays like ``samples``."""
        shards = self.shards(samples)
        return shards, samples - self.starts[shards]

    def shards(self, samples: _Integers) -> _Integers:
        """Return the shards of samples, all of which must exist: an int64 array like ``samples``."""
        return np.searchsorted(self._ends, samples, side="right")
