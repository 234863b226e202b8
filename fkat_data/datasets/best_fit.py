"""Pack items into bins by best fit, the largest first; or count the bins of many such packings at once."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

_Rows = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_BITS = 63  # a position in a word: the lowest bits of a bit's number
_SHIFT = 6
# Each packing has one count for each size of a gap. This much memory is little, and enough for NumPy to be fast.
_COUNTS_BYTES = 64 << 20


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack items, largest first, each into the bin that it leaves with the least room.

    Ties go to the newest bin and to the first item, so the result is deterministic.

    Args:
        sizes: Size of each item, from 1 to ``capacity``.
        capacity: Maximum sum of the sizes in a bin.

    Returns:
        Bins, as lists of indices into ``sizes``.
    """
    bins: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # that some bin has, in order
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size = sizes[index]
        position = bisect_left(rooms, size)
        if position < len(rooms):
            room = rooms[position]
            candidates = by_room[room]
            chosen = candidates.pop()
            if not candidates:
                del rooms[position]
            bins[chosen].append(index)
        else:
            room, chosen = capacity, len(bins)
            bins.append([index])
        left = room - size
        if left:
            candidates = by_room.setdefault(left, [])
            if not candidates:
                insort(rooms, left)
            candidates.append(chosen)
    return bins


def count_bins(packings: Sequence[npt.NDArray[np.int64]], capacity: int) -> list[int]:
    """Return ``len(best_fit(sizes, capacity))`` for the sizes of each of many packings.

    All packings take their next item together, so that thousands of them cost hardly more than some. Ties do not
    matter here: bins with equal room are alike.

    Args:
        packings: The sizes of each packing's items, from 0 to ``capacity``; items of size 0 need no bin.
        capacity: Maximum sum of the sizes in a bin.
    """
    together = max(1, _COUNTS_BYTES // (4 * (capacity + 1)))
    starts = range(0, len(packings), together)
    return [
        count for start in starts for count in _count_together(packings[start : start + together], capacity).tolist()
    ]


def _count_together(packings: Sequence[npt.NDArray[np.int64]], capacity: int) -> _Rows:
    num_bins = np.zeros(len(packings), np.int64)
    rooms = _Rooms(len(packings), capacity)
    for rows, sizes in _largest_first(packings):
        room = rooms.smallest(rows, sizes)
        is_new = room < 0
        num_bins[rows[is_new]] += 1
        is_found = ~is_new
        rooms.remove(rows[is_found], room[is_found])
        room[is_new] = capacity
        left = room - sizes
        is_open = left > 0
        rooms.add(rows[is_open], left[is_open])
    return num_bins


def _largest_first(packings: Sequence[npt.NDArray[np.int64]]) -> Iterator[tuple[_Rows, _Rows]]:
    """Yield the packings that have another item, and the sizes of those items."""
    sizes = np.zeros((max(map(len, packings), default=0), len(packings)), np.int64)
    for number, each in enumerate(packings):
        sizes[: len(each), number] = np.sort(each)[::-1]
    everyone = np.arange(len(packings))
    for step in sizes:
        rows = everyone if step.all() else np.flatnonzero(step)
        yield rows, step[rows]


class _Rooms:
    """The number of bins of each packing by their room, and a search for the smallest room that is enough.

    A bit for each room that some bin has, a bit for each word of those that is not 0, and so on up to a single word.
    """

    def __init__(self, num_packings: int, capacity: int) -> None:
        self._counts = np.zeros((num_packings, capacity + 1), np.int32)
        self._levels: list[_Words] = []
        num_bits = capacity + 1
        while not self._levels or num_bits > 1:
            num_bits = (num_bits >> _SHIFT) + 1
            # The next one after the last is looked at, too.
            self._levels.append(np.zeros((num_packings, num_bits + 1), np.uint64))

    def smallest(self, rows: _Rows, sizes: _Rows) -> _Rows:
        """Return each packing's smallest room that is at least its size; -1: it has none."""
        bits, words = sizes, self._levels[0]
        word_index = bits >> _SHIFT
        found = words[rows, word_index] & (_ALL << (bits & _BITS).astype(np.uint64))
        missing = np.flatnonzero(found == 0)
        if len(missing):
            further, is_there = self._next_word(1, rows[missing], word_index[missing] + 1)
            word_index[missing] = further
            found[missing] = np.where(is_there, words[rows[missing], further], 0)
        return np.where(found == 0, -1, (word_index << _SHIFT) + _lowest(found))

    def _next_word(self, level: int, rows: _Rows, first: _Rows) -> tuple[_Rows, npt.NDArray[np.bool_]]:
        """Return the first word of the level below that is not 0, from ``first`` on, and whether there is one."""
        if level == len(self._levels):
            return np.zeros_like(first), np.zeros(len(first), bool)
        words = self._levels[level]
        word_index = first >> _SHIFT
        found = words[rows, word_index] & (_ALL << (first & _BITS).astype(np.uint64))
        is_there = found != 0
        missing = np.flatnonzero(~is_there)
        if len(missing):
            further, is_further = self._next_word(level + 1, rows[missing], word_index[missing] + 1)
            word_index[missing], is_there[missing] = further, is_further
            found[missing] = np.where(is_further, words[rows[missing], further], 0)
        return np.where(is_there, (word_index << _SHIFT) + _lowest(found), 0), is_there

    def add(self, rows: _Rows, room: _Rows) -> None:
        """Count a bin more for each packing."""
        self._counts[rows, room] += 1
        for words in self._levels:
            word_index = room >> _SHIFT
            words[rows, word_index] |= _ONE << (room & _BITS).astype(np.uint64)
            room = word_index

    def remove(self, rows: _Rows, room: _Rows) -> None:
        """Count a bin less for each packing."""
        left = self._counts[rows, room] - 1
        self._counts[rows, room] = left
        is_last = left == 0
        for words in self._levels:
            rows, room = rows[is_last], room[is_last]
            if not len(rows):
                return
            word_index = room >> _SHIFT
            now = words[rows, word_index] & ~(_ONE << (room & _BITS).astype(np.uint64))
            words[rows, word_index] = now
            is_last, room = now == 0, word_index


def _lowest(words: _Words) -> _Rows:
    """Return the number of each word's lowest bit that is set; any number for 0."""
    # A power of two is exact as a float.
    return np.frexp((words & (~words + _ONE)).astype(np.float64))[1].astype(np.int64) - 1
