"""The samples of an epoch for ``block``: keyed permutations compute them instead of a sequence of draws."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fkat_data.permutation import draws, keys_of, permutation, permuted
from fkat_data.streaming.order.sampling import StreamSamples

_Integers = npt.NDArray[np.int64]


class KeyedSelection:
    """The samples of an epoch as units: a unit is a whole shard, or a part that a keyed permutation picks.

    Its memory grows with the number of shards, not of samples.

    Args:
        streams: The streams. ``choose`` may be 0.
        seed: Seed of the shuffle.
        epoch: Index of the epoch, from 0; the same in every epoch if sampling is fixed.
        granularity: Number of samples to take from a shard at a time.
    """

    def __init__(self, streams: Sequence[StreamSamples], *, seed: int, epoch: int, granularity: int) -> None:
        self._place = (seed, epoch)
        sizes, firsts, shards = [_NONE], [_NONE], [_NONE]
        for stream in streams:
            counts = fair_counts(stream, granularity, seed, epoch)
            whole, rest = np.divmod(counts, np.maximum(stream.shard_sizes, 1))
            per_shard = whole + (rest > 0)
            unit_sizes = np.repeat(stream.shard_sizes, per_shard)
            is_part = rest > 0
            unit_sizes[(np.cumsum(per_shard) - 1)[is_part]] = rest[is_part]
            sizes.append(unit_sizes)
            shard_firsts = stream.first_sample + np.cumsum(stream.shard_sizes) - stream.shard_sizes
            firsts.append(np.repeat(shard_firsts, per_shard))
            shards.append(np.repeat(stream.shard_sizes, per_shard))
        self.unit_sizes: npt.NDArray[np.int64] = np.concatenate(sizes)
        self.size: int = int(self.unit_sizes.sum())
        self._firsts = np.concatenate(firsts)
        self._shard_sizes = np.concatenate(shards)
        self._ends = np.cumsum(self.unit_sizes)

    def sample_ids(self, places: _Integers) -> _Integers:
        """Return the id of the sample at each place, from 0 to ``size - 1``: same shape, int64."""
        units = np.searchsorted(self._ends, places, side="right")
        rows = places - (self._ends[units] - self.unit_sizes[units])
        shard_sizes = self._shard_sizes[units]
        in_part = np.flatnonzero(shard_sizes > self.unit_sizes[units])
        if len(in_part):
            keys = keys_of(self._firsts[units[in_part]], b"fkat_data part", *self._place)
            rows[in_part] = permuted(rows[in_part], shard_sizes[in_part], keys)
        return self._firsts[units] + rows


def fair_counts(stream: StreamSamples, granularity: int, seed: int, epoch: int) -> _Integers:
    """Return how many samples an epoch takes of each shard: in proportion to its size, to within a pick.

    Args:
        stream: The stream.
        granularity: Samples in a pick. Of shards smaller than this, the epoch takes some whole and skips others.
        seed: Seed of the shuffle.
        epoch: Index of the epoch, from 0.

    Returns:
        Number of samples by shard: shape (num_shards,), int64.
    """
    sizes = stream.shard_sizes
    total = int(sizes.sum())
    whole, rest = divmod(stream.choose, max(total, 1))
    counts = sizes * whole
    if rest == 0:
        return counts
    order = permutation(len(sizes), b"fkat_data shards", seed, epoch, stream.first_sample)
    mixed = sizes[order]
    ends = np.cumsum(mixed)
    # Lay all samples on a line. A pick is due at equal distances, from a random start.
    start = float(draws(1, b"fkat_data shards", seed, epoch, stream.first_sample)[0] >> np.uint64(11)) / 2**53
    due = np.floor(ends * (rest / total / granularity) + start).astype(np.int64)
    taken = np.minimum(np.diff(due, prepend=0) * granularity, mixed)
    # A shard cuts its picks, so some samples may be missing. The last pick may be too large.
    missing = rest - int(taken.sum())
    if missing > 0:
        taken += _filled(mixed - taken, missing)
    else:
        taken -= _filled(taken, -missing)
    counts[order] += taken
    return counts


def _filled(capacities: _Integers, amount: int) -> _Integers:
    before = np.cumsum(capacities) - capacities
    return np.clip(amount - before, 0, capacities)


_NONE = np.empty(0, np.int64)
