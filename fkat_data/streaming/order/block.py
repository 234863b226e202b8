"""``block``: our shuffle, computed where it is needed; what it keeps grows with the shards, not with the samples.

A canonical node's line of samples is its shards in random order. It is cut into *slots*, and every slot's samples
are dealt out in random order, equally many to each slot within reach; then every slot puts what it was dealt in
random order. Both random orders are keyed permutations, so the sample at any place is found without the others::

    place -> slot, place within -> whose share this is -> that slot, place within -> shard, row

Slots near an end of the line deal beyond it as if it were a mirror: so each slot gets as many as it gives. The reach
is such that a shard is open for as long as ``py1e`` has it open at the same block size; and as it moves on slot by
slot, new shards come one after the other, not all at once.
"""

from math import isqrt

import numpy as np
import numpy.typing as npt

from fkat_data.permutation import draws, keys_of, permutation, permuted
from fkat_data.streaming.order.spans import canonical_bounds

__all__ = ["BlockShuffle"]

_Integers = npt.NDArray[np.int64]

#: Slots that a slot may deal to: odd, itself among them. The more, the more evenly new shards are begun.
_MOST_SHARES = 33

#: A shard is open for the reach and its own length. So much of that is taken off the reach that neighbours are as far
#: apart as py1e has them, and fewer shards open at the most than py1e has (scripts/plot_shuffle.py measures both).
_LENGTH_COUNTS = 0.8

#: Places that are computed together: what they need stays in the processor's cache.
_CHUNK = 8192


class BlockShuffle:
    """An epoch's order.

    Args:
        unit_sizes: Samples of the units that are shuffled: shards, or what an epoch takes of them.
        num_canonical_nodes: Parts that the order is made of, each shuffled on its own.
        seed: Of the run: it decides which units a canonical node has.
        epoch: The epoch.
        block_size: Over how many places a unit is spread.
    """

    def __init__(self, unit_sizes: _Integers, num_canonical_nodes: int, seed: int, epoch: int, block_size: int) -> None:
        self.size = int(unit_sizes.sum())
        self._place = (seed, epoch)
        self._bounds = canonical_bounds(self.size, num_canonical_nodes)
        self._lay_out(unit_sizes, seed, epoch)
        self._cut(block_size, float(self.size / max(np.count_nonzero(unit_sizes), 1)))

    def _lay_out(self, unit_sizes: _Integers, seed: int, epoch: int) -> None:
        """Make the line: the pieces' ends, and what leads from a place in a piece to the sample's number."""
        order = permutation(len(unit_sizes), b"fkat_data units", seed)
        firsts = (np.cumsum(unit_sizes) - unit_sizes)[order]
        ends = np.cumsum(unit_sizes[order])
        # Pieces: the units, cut where a canonical node ends. An empty unit is none.
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
        """Choose the slots of each canonical node: their number, and how many samples a slot gives to each in reach."""
        sizes = np.diff(self._bounds)
        window = max(int(block_size - _LENGTH_COUNTS * mean_unit_size), block_size // 2, 1)
        # What does not divide stays in its slot: so a slot is a whole number of shares.
        most = (min(isqrt(window), _MOST_SHARES) - 1) | 1
        candidates = range(most, most // 2, -2)
        shares = min(candidates, key=lambda number: abs(round(window / number**2) * number**2 - window))
        num_slots = sizes // (round(window / shares**2) * shares)
        is_cut = num_slots >= shares
        self._sizes = sizes
        self._num_slots = np.where(is_cut, np.maximum(num_slots, 1), 1)
        self._shares = np.where(is_cut, shares, 1)
        self._share_sizes = sizes // self._num_slots // self._shares

    def samples_at(self, places: _Integers) -> _Integers:
        """Return the number of the sample at each place."""
        parts = [self._samples_at(places[start : start + _CHUNK]) for start in range(0, len(places), _CHUNK)]
        return np.concatenate(parts) if parts else places

    def _samples_at(self, places: _Integers) -> _Integers:
        nodes = np.searchsorted(self._bounds[1:], places, side="right")
        sizes, num_slots = self._sizes[nodes], self._num_slots[nodes]
        local = places - self._bounds[nodes]
        slots = ((local + 1) * num_slots - 1) // sizes
        starts, lengths = _slot(slots, sizes, num_slots)
        # What a slot was dealt, in the order of its givers.
        dealt = self._permuted(b"fkat_data dealt", nodes, slots, local - starts, lengths)
        givers, given = self._given(nodes, slots, dealt)
        starts, lengths = _slot(givers, sizes, num_slots)
        # What a slot gives, in the order in which it gives it.
        within = self._permuted(b"fkat_data given", nodes, givers, given, lengths)
        line = self._bounds[nodes] + starts + within
        return line + self._offsets[np.searchsorted(self._ends, line, side="right")]

    def _given(self, nodes: _Integers, slots: _Integers, dealt: _Integers) -> tuple[_Integers, _Integers]:
        """Return which slot gave a sample, and the sample's place among those that the slot gives."""
        num_slots, share = self._num_slots[nodes], self._share_sizes[nodes]
        reach = self._shares[nodes] // 2
        steps = dealt // np.maximum(share, 1) - reach
        # What does not divide stays in its slot.
        stays = dealt >= share * self._shares[nodes]
        straight = slots + steps
        is_mirrored = (straight < 0) | (straight >= num_slots)
        mirrored = np.where(straight < 0, -1 - straight, 2 * num_slots - 1 - straight)
        givers = np.where(stays, slots, np.where(is_mirrored, mirrored, straight))
        places = (np.where(is_mirrored, steps, -steps) + reach) * share + dealt % np.maximum(share, 1)
        return givers, np.where(stays, dealt, places)

    def _permuted(
        self, purpose: bytes, nodes: _Integers, slots: _Integers, numbers: _Integers, sizes: _Integers
    ) -> _Integers:
        # A slot's name must not depend on where other canonical nodes end.
        return permuted(numbers, sizes, keys_of((nodes << 40) + slots, purpose, *self._place))


def _slot(slots: _Integers, sizes: _Integers, num_slots: _Integers) -> tuple[_Integers, _Integers]:
    starts = slots * sizes // num_slots
    return starts, (slots + 1) * sizes // num_slots - starts
