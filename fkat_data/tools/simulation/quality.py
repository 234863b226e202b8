"""Measure how well an order mixes: the distance of neighbours in the dataset, and the number of shards in a step."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.order.spanner import Spanner

__all__ = ["Quality", "entropy_bits", "quality_of"]

_Integers = npt.NDArray[np.int64]

#: The number of classes of distances, at most: few enough that part of an epoch shows how the distances spread.
_MOST_CLASSES = 4096
_LEAST_PER_CLASS = 16


@dataclass(frozen=True)
class Quality:
    """Measurements of the beginning of an epoch, and their values for a full shuffle (every sample can be anywhere).

    Attributes:
        num_samples: The number of samples measured.
        sample_bits: Entropy of the distance in the dataset between samples that a rank reads consecutively.
        perfect_sample_bits: The same for a full shuffle.
        shard_bits: Entropy of the distance between their shards.
        perfect_shard_bits: The same for a full shuffle.
        shards_per_step: The average number of shards that a step reads, on all ranks together.
        perfect_shards_per_step: The same for a full shuffle.
    """

    num_samples: int
    sample_bits: float
    perfect_sample_bits: float
    shard_bits: float
    perfect_shard_bits: float
    shards_per_step: float
    perfect_shards_per_step: float

    @property
    def spread(self) -> float:
        """The distance between neighbours: 0: side by side, 1: as in a full shuffle."""
        return _share(self.sample_bits, self.perfect_sample_bits)

    @property
    def mixture(self) -> float:
        """The number of shards in a step, as a share of that in a full shuffle."""
        return _share(self.shards_per_step, self.perfect_shards_per_step)


def quality_of(ids: _Integers, spanner: Spanner) -> Quality:
    """Measure an order.

    Args:
        ids: Sample ids by step, rank and sample; -1 for no sample.
        spanner: Where the shards begin.
    """
    flat = ids[ids >= 0]
    shards = spanner.shards(flat)
    num_classes = max(1, min(_MOST_CLASSES, len(flat) // _LEAST_PER_CLASS))
    together = max(1, -(-spanner.size // num_classes))
    steps = np.broadcast_to(np.arange(len(ids))[:, None, None], ids.shape)[ids >= 0]
    num_shards = len(spanner.starts)
    per_step = len(np.unique(steps * num_shards + shards)) / max(1, len(ids))
    shares = np.diff(np.append(spanner.starts, spanner.size)) / spanner.size
    mean_size = len(flat) / max(1, len(ids))
    # The probability that a step misses each shard, drawing samples without replacement.
    missed = np.clip(1 - mean_size / spanner.size, 0, 1) ** (shares * spanner.size)
    return Quality(
        num_samples=len(flat),
        sample_bits=entropy_bits(np.abs(np.diff(flat)) // together),
        perfect_sample_bits=_triangle_bits(-(-spanner.size // together)),
        shard_bits=entropy_bits(np.abs(np.diff(shards))),
        perfect_shard_bits=_triangle_bits(num_shards),
        shards_per_step=per_step,
        perfect_shards_per_step=float((1 - missed).sum()),
    )


def entropy_bits(values: _Integers) -> float:
    """Return the entropy of the distribution of non-negative integers."""
    if not len(values):
        return 0.0
    counts = np.bincount(values)
    parts = counts[counts > 0] / len(values)
    return max(0.0, float(-(parts * np.log2(parts)).sum()))


def _triangle_bits(num_places: int) -> float:
    """Return the entropy of the distance between two independent, uniformly drawn places."""
    distances = np.arange(num_places)
    parts = 2.0 * (num_places - distances) / num_places**2
    parts[0] = 1 / num_places
    return max(0.0, float(-(parts * np.log2(parts)).sum()))


def _share(found: float, perfect: float) -> float:
    return min(1.0, found / perfect) if perfect > 0 and math.isfinite(perfect) else 1.0
