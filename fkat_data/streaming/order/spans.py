"""Spans ``(start, stop)`` of consecutive sample numbers: an epoch's shuffle units, divided, and found by a number."""

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

_Integers = npt.NDArray[np.int64]


def canonical_bounds(size: int, num_canonical_nodes: int) -> _Integers:
    """Return the bounds of the canonical nodes' parts: shape (num_canonical_nodes + 1,), int64."""
    return np.array([size * node // num_canonical_nodes for node in range(num_canonical_nodes + 1)], np.int64)


def divided(spans: Sequence[tuple[int, int]], num_parts: int) -> list[list[tuple[int, int]]]:
    """Divide spans among parts of equal length, in order, and cut those that cross a bound.

    An empty span goes to the first part that does not end before it.
    """
    ends = canonical_bounds(sum(stop - start for start, stop in spans), num_parts)[1:].tolist()
    parts: list[list[tuple[int, int]]] = [[] for _ in range(num_parts)]
    position, part = 0, 0
    for start, stop in spans:
        begin = start
        while position + stop - begin > ends[part]:
            cut = begin + ends[part] - position
            if cut > begin:
                parts[part].append((begin, cut))
            position, begin, part = ends[part], cut, part + 1
        parts[part].append((begin, stop))
        position += stop - begin
    return parts


class SpanLine:
    """Spans laid end to end, as a sequence of numbers that computes any part of itself alone."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        table = np.array(spans, np.int64).reshape(-1, 2)
        lengths = table[:, 1] - table[:, 0]
        self._ends = np.cumsum(lengths)
        self._offsets = table[:, 0] - (self._ends - lengths)
        self.size: int = int(lengths.sum())

    def at(self, positions: _Integers) -> _Integers:
        """Return the numbers at positions from 0 to ``size - 1``: same shape, int64."""
        return positions + self._offsets[np.searchsorted(self._ends, positions, side="right")]

    def stretch(self, start: int, stop: int) -> _Integers:
        """Return the numbers at the positions from ``start`` to ``stop - 1``: shape (stop - start,), int64."""
        return self.at(np.arange(start, stop, dtype=np.int64))


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
