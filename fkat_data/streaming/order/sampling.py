"""The samples of an epoch: as the reference draws them, and by keyed permutations for ``block``."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fkat_data.errors.arguments import integer
from fkat_data.permutation import draws, keys_of, permutation, permuted

_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StreamSamples:
    """A stream's shards, and how many samples an epoch takes of it.

    Attributes:
        shard_sizes: Samples in each shard: shape (num_shards,), int64.
        first_sample: Id of the stream's first sample.
        choose: Samples that the epoch takes.
    """

    shard_sizes: _Integers
    first_sample: int
    choose: int


class Selection:
    """The samples of an epoch in the order of the shards. A unit is a whole shard or a part of one.

    Args:
        unit_sizes: Samples in each unit.
        unit_firsts: Id of the first sample of each unit that is a whole shard.
        parts: Sample ids of each other unit, by the unit's index.
    """

    def __init__(self, unit_sizes: _Integers, unit_firsts: _Integers, parts: dict[int, _Integers]) -> None:
        self.unit_sizes = unit_sizes
        self.size: int = int(unit_sizes.sum())
        self._firsts = unit_firsts
        self._ends = np.cumsum(unit_sizes)
        self._is_identity = not parts and bool(
            np.array_equal(unit_firsts[1:], unit_firsts[:1] + self._ends[:-1]) if len(unit_firsts) else True
        )
        # One table has the samples of all parts. A unit's samples start at its offset.
        lengths = [len(ids) for ids in parts.values()]
        self._table = np.concatenate([*parts.values(), np.empty(0, np.int64)])
        self._offsets = np.full(len(unit_sizes), -1, np.int64)
        self._offsets[list(parts)] = np.cumsum([0, *lengths])[:-1]

    def sample_ids(self, positions: _Integers) -> _Integers:
        """Return the id of the sample at each position, from 0 to ``size - 1``: same shape, int64."""
        if self._is_identity:
            return positions + (self._firsts[0] if len(self._firsts) else 0)
        units = np.searchsorted(self._ends, positions, side="right")
        within = positions - (self._ends[units] - self.unit_sizes[units])
        ids = self._firsts[units] + within
        offsets = self._offsets[units]
        is_part = offsets >= 0
        ids[is_part] = self._table[offsets[is_part] + within[is_part]]
        return ids


def selected(
    streams: Sequence[StreamSamples], *, seed: int, epoch: int, granularity: int, is_balanced: bool, is_shuffled: bool
) -> Selection:
    """Return the samples of an epoch from some streams, drawn by one generator.

    Args:
        streams: The streams. ``choose`` may be 0.
        seed: Seed of the shuffle.
        epoch: Index of the epoch, from 0.
        granularity: Number of samples to take from a shard at a time.
        is_balanced: Whether each epoch draws different samples.
        is_shuffled: Whether a balanced epoch also takes a different number of samples from each shard.
    """
    generator = np.random.default_rng(seed + epoch if is_balanced else seed)
    sizes: list[_Integers] = []
    firsts: list[_Integers] = []
    parts: dict[int, _Integers] = {}
    num_units = 0
    for stream in streams:
        shard_firsts = stream.first_sample + np.cumsum(stream.shard_sizes) - stream.shard_sizes
        counts = chosen_per_shard(
            stream.shard_sizes, stream.choose, granularity, seed, epoch, use_epoch=is_shuffled and is_balanced
        )
        whole, rest = np.divmod(counts, np.maximum(stream.shard_sizes, 1))
        per_shard = whole + (rest > 0)
        unit_sizes = np.repeat(stream.shard_sizes, per_shard)
        last_units = np.cumsum(per_shard) - 1
        for shard in np.flatnonzero(rest).tolist():
            size, count, first = int(stream.shard_sizes[shard]), int(rest[shard]), int(shard_firsts[shard])
            unit_sizes[last_units[shard]] = count
            drawn = generator.choice(size, count, replace=False)
            parts[num_units + int(last_units[shard])] = np.sort(first + drawn)
        sizes.append(unit_sizes)
        firsts.append(np.repeat(shard_firsts, per_shard))
        num_units += len(unit_sizes)
    nothing = np.empty(0, np.int64)
    return Selection(np.concatenate([*sizes, nothing]), np.concatenate([*firsts, nothing]), parts)


def chosen_per_shard(
    shard_sizes: _Integers, choose: int, granularity: int, seed: int, epoch: int, *, use_epoch: bool
) -> _Integers:
    """Return how many samples an epoch takes of each shard.

    Args:
        shard_sizes: Samples in each shard: shape (num_shards,), int64.
        choose: Samples to take. If the stream has fewer, the epoch takes every shard several times.
        granularity: Samples in a pick. After whole passes over the shards, the epoch takes picks in random order.
        seed: Seed of the shuffle.
        epoch: Index of the epoch, from 0.
        use_epoch: Whether the order of picks changes with the epoch.

    Returns:
        Number of samples by shard: shape (num_shards,), int64.

    Raises:
        ConfigurationError: An argument is out of range.
    """
    integer("choose", choose, minimum=0)
    integer("sampling_granularity", granularity, minimum=1)
    integer("shuffle_seed", seed, minimum=0)
    integer("epoch", epoch, minimum=0)
    size = int(shard_sizes.sum())
    whole, rest = divmod(choose, max(size, 1))
    counts = shard_sizes * whole
    if rest == 0:
        return counts
    num_picks = -(-shard_sizes // granularity)
    order = np.random.default_rng(seed + epoch if use_epoch else seed).permutation(int(num_picks.sum()))
    # Every pick has at least one sample, so the first `rest` picks are enough.
    picks = order[:rest]
    ends = np.cumsum(num_picks)
    shards = np.searchsorted(ends, picks, side="right")
    is_last = picks == ends[shards] - 1
    pick_sizes = np.where(is_last, shard_sizes[shards] - granularity * (num_picks[shards] - 1), granularity)
    before = np.cumsum(pick_sizes) - pick_sizes
    taken = np.clip(rest - before, 0, pick_sizes)
    np.add.at(counts, shards, taken)
    return counts


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
        self._seed_and_epoch = (seed, epoch)
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

    def sample_ids(self, positions: _Integers) -> _Integers:
        """Return the id of the sample at each position, from 0 to ``size - 1``: same shape, int64."""
        units = np.searchsorted(self._ends, positions, side="right")
        rows = positions - (self._ends[units] - self.unit_sizes[units])
        shard_sizes = self._shard_sizes[units]
        in_part = np.flatnonzero(shard_sizes > self.unit_sizes[units])
        if len(in_part):
            keys = keys_of(self._firsts[units[in_part]], b"fkat_data part", *self._seed_and_epoch)
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
