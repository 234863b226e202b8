"""``block``: this library's shuffle. It computes any position alone, and its memory grows with the number of shards.

A canonical node's line of samples is its shards in random order, cut into *slots*. Every slot deals its samples in
random order, equally many to each slot within its reach. Then every slot puts the samples that it received in random
order. Both random orders are keyed permutations, so the sample at a position needs no other position::

    position -> slot, position within it -> the slot that dealt this sample, position within that one -> shard, row

Near an end of the line, a slot's reach is mirrored there, so that each slot receives as many samples as it deals. The
reach keeps a shard open for as long as ``py1e`` does at the same block size. It advances slot by slot, so new shards
open one after the other instead of all at once.
"""

from math import isqrt

import numpy as np
import numpy.typing as npt

from fkat_data.permutation import draws, keys_of, permutation, permuted
from fkat_data.streaming.order.spans import canonical_bounds

_Integers = npt.NDArray[np.int64]

#: Maximum number of slots that a slot deals to: odd, and includes itself. More slots open new shards more evenly.
_MAX_SHARES = 33

#: A shard is open for the reach plus its own length. Subtract this part of the length from the reach: then neighbours
#: end up as far apart as with py1e, and at most as many shards are open (scripts/plot_shuffle.py measures both).
_LENGTH_COUNTS = 0.8

#: Positions to compute at a time: the arrays fit into the processor's cache.
_CHUNK = 8192


class BlockShuffle:
    """An epoch's order by ``block``.

    Args:
        unit_sizes: Samples in each unit of the shuffle: a shard, or the part of one that the epoch takes.
        num_canonical_nodes: Parts of the order. Each is shuffled separately.
        seed: Seed of the run; it assigns units to canonical nodes.
        epoch: Index of the epoch, from 0.
        block_size: Number of positions over which a unit is spread.
    """

    def __init__(self, unit_sizes: _Integers, num_canonical_nodes: int, seed: int, epoch: int, block_size: int) -> None:
        self.size: int = int(unit_sizes.sum())
        self._seed_and_epoch = (seed, epoch)
        self._bounds = canonical_bounds(self.size, num_canonical_nodes)
        self._lay_out(unit_sizes, seed, epoch)
        self._cut(block_size, float(self.size / max(np.count_nonzero(unit_sizes), 1)))

    def _lay_out(self, unit_sizes: _Integers, seed: int, epoch: int) -> None:
        """Build the line: each piece's end, and the offset from a position in it to the sample's number."""
        order = permutation(len(unit_sizes), b"fkat_data units", seed)
        firsts = (np.cumsum(unit_sizes) - unit_sizes)[order]
        ends = np.cumsum(unit_sizes[order])
        # Pieces are the units, cut where a canonical node ends. Empty units have no piece.
        edges = np.unique(np.concatenate(([0], ends, self._bounds)))
        starts, lengths = edges[:-1], np.diff(edges)
        units = np.searchsorted(ends, starts, side="right")
        piece_firsts = firsts[units] + starts - (ends[units] - unit_sizes[order][units])
        nodes = np.searchsorted(self._bounds[1:], starts, side="right")
        drawn = draws(len(starts), b"fkat_data pieces", seed, epoch)
        mixed = np.lexsort((drawn, nodes))
        self._ends = np.cumsum(lengths[mixed])
        self._offsets = piece_firsts[mixed] - (self._ends - lengths[mixed])

    def _cut(self, block_size: int, mean_unit_size: float) -> None:
        """Choose each canonical node's number of slots, and how many samples a slot deals to each in its reach."""
        sizes = np.diff(self._bounds)
        window = max(int(block_size - _LENGTH_COUNTS * mean_unit_size), block_size // 2, 1)
        # Samples beyond whole shares stay in their slot, so make slots about a whole number of shares long.
        most = (min(isqrt(window), _MAX_SHARES) - 1) | 1
        candidates = range(most, most // 2, -2)
        shares = min(candidates, key=lambda number: abs(round(window / number**2) * number**2 - window))
        num_slots = sizes // (round(window / shares**2) * shares)
        is_cut = num_slots >= shares
        self._sizes = sizes
        self._num_slots = np.where(is_cut, np.maximum(num_slots, 1), 1)
        self._shares = np.where(is_cut, shares, 1)
        self._share_sizes = sizes // self._num_slots // self._shares

    def samples_at(self, positions: _Integers) -> _Integers:
        """Return the number of the sample at each position: same shape, int64."""
        parts = [self._samples_at(positions[start : start + _CHUNK]) for start in range(0, len(positions), _CHUNK)]
        return np.concatenate(parts) if parts else positions

    def _samples_at(self, positions: _Integers) -> _Integers:
        nodes = np.searchsorted(self._bounds[1:], positions, side="right")
        sizes, num_slots = self._sizes[nodes], self._num_slots[nodes]
        local = positions - self._bounds[nodes]
        slots = ((local + 1) * num_slots - 1) // sizes
        starts, lengths = _slot(slots, sizes, num_slots)
        # Undo the slot's own shuffle: an index into the samples it received, ordered by the slot that dealt them.
        dealt = self._permuted(b"fkat_data dealt", nodes, slots, local - starts, lengths)
        givers, given = self._given(nodes, slots, dealt)
        starts, lengths = _slot(givers, sizes, num_slots)
        # Undo the shuffle before dealing: an index into the samples of the slot that dealt this one.
        within = self._permuted(b"fkat_data given", nodes, givers, given, lengths)
        line = self._bounds[nodes] + starts + within
        return line + self._offsets[np.searchsorted(self._ends, line, side="right")]

    def _given(self, nodes: _Integers, slots: _Integers, dealt: _Integers) -> tuple[_Integers, _Integers]:
        """Return the slot that dealt each sample, and the sample's index among those that this slot deals."""
        num_slots, share = self._num_slots[nodes], self._share_sizes[nodes]
        reach = self._shares[nodes] // 2
        steps = dealt // np.maximum(share, 1) - reach
        # Samples beyond whole shares stay in their slot.
        stays = dealt >= share * self._shares[nodes]
        straight = slots + steps
        is_mirrored = (straight < 0) | (straight >= num_slots)
        mirrored = np.where(straight < 0, -1 - straight, 2 * num_slots - 1 - straight)
        givers = np.where(stays, slots, np.where(is_mirrored, mirrored, straight))
        positions = (np.where(is_mirrored, steps, -steps) + reach) * share + dealt % np.maximum(share, 1)
        return givers, np.where(stays, dealt, positions)

    def _permuted(
        self, purpose: bytes, nodes: _Integers, slots: _Integers, numbers: _Integers, sizes: _Integers
    ) -> _Integers:
        # A slot's key must not depend on where other canonical nodes end.
        return permuted(numbers, sizes, keys_of((nodes << 40) + slots, purpose, *self._seed_and_epoch))


def _slot(slots: _Integers, sizes: _Integers, num_slots: _Integers) -> tuple[_Integers, _Integers]:
    starts = slots * sizes // num_slots
    return starts, (slots + 1) * sizes // num_slots - starts
