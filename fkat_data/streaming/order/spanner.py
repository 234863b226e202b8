"""From a sample's number to its shard, and its row there."""

import operator
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

__all__ = ["Spanner"]

_Integers = npt.NDArray[np.int64]


class Spanner:
    """Shards of known sizes, end to end; what it keeps grows with their number.

    Args:
        shard_sizes: Samples of each shard.

    Attributes:
        size: Samples of all shards.
        starts: The number of each shard's first sample.
    """

    def __init__(self, shard_sizes: _Integers) -> None:
        self._ends = np.cumsum(shard_sizes)
        self.starts: _Integers = self._ends - shard_sizes
        self.size = int(shard_sizes.sum())

    def __getitem__(self, sample: SupportsIndex) -> tuple[int, int]:
        """Return a sample's shard and its row.

        Raises:
            IndexError: There is no such sample.
        """
        number = operator.index(sample)
        if not 0 <= number < self.size:
            raise IndexError(f"sample {number} of {self.size}")
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - int(self.starts[shard])

    def locate(self, samples: _Integers) -> tuple[_Integers, _Integers]:
        """Return the shards and the rows of samples that exist."""
        shards = np.searchsorted(self._ends, samples, side="right")
        return shards, samples - self.starts[shards]
