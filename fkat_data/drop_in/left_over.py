"""What several ranks have left of a sequence that was dealt out to them in rounds: pure arithmetic.

A round has a part for each rank, one after the other. What is left, in the sequence's order, is a sequence again, which
can be dealt out to other ranks. Nothing here grows with the length of the sequence.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property


class LeftOver:
    """The items that ranks have left, by their places in the sequence.

    Args:
        length: Items of the sequence.
        part_size: Items of a rank's part of a round; those that the last round lacks are at its end.
        counts: Parts that each rank has had.
    """

    def __init__(self, length: int, part_size: int, counts: Sequence[int]) -> None:
        self._sequence_length = length
        self._part_size = part_size
        self._counts = tuple(counts)

    def __len__(self) -> int:
        return self._length

    @property
    def _round_size(self) -> int:
        return self._part_size * len(self._counts)

    @cached_property
    def _stretches(self) -> list[tuple[int, int, int]]:
        """Rounds that the same ranks lack: what is left before them, their first round, and how many ranks it are."""
        found: list[tuple[int, int, int]] = []
        first = num_ranks = 0
        before = 0
        for count in sorted(self._counts):
            if num_ranks and count > before:
                found.append((first, before, num_ranks))
                first += (count - before) * num_ranks * self._part_size
            before = count
            num_ranks += 1
        return [*found, (first, before, num_ranks)]

    @cached_property
    def _ranks(self) -> list[int]:
        """The ranks, those that have had the fewest parts first."""
        return sorted(range(len(self._counts)), key=self._counts.__getitem__)

    @cached_property
    def _length(self) -> int:
        """What is left: only the last round of the sequence can lack something."""
        round_index, rest = divmod(self._sequence_length, self._round_size)
        first, first_round, num_ranks = self._stretches[self._stretch_of_round(round_index)]
        if round_index < first_round:  # every rank had it
            return 0
        whole = first + (round_index - first_round) * num_ranks * self._part_size
        lacking = self._ranks[:num_ranks]
        return whole + sum(min(self._part_size, max(0, rest - rank * self._part_size)) for rank in lacking)

    def _stretch_of_round(self, round_index: int) -> int:
        rounds = [first_round for _, first_round, _ in self._stretches]
        return max(0, bisect_right(rounds, round_index) - 1)

    def runs(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield where the items from ``first`` to ``end`` of what is left are in the sequence, as ranges."""
        while first < end:
            begin, stop = self._run(first, end)
            yield begin, stop
            first += stop - begin

    def _run(self, first: int, end: int) -> tuple[int, int]:
        index = bisect_right(self._stretches, first, key=lambda stretch: stretch[0]) - 1
        before, first_round, num_ranks = self._stretches[index]
        if num_ranks == len(self._counts):
            begin = first_round * self._round_size + first - before
            return begin, begin + end - first
        rounds, place = divmod(first - before, num_ranks * self._part_size)
        part, offset = divmod(place, self._part_size)
        rank = self._lacking(num_ranks)[part]
        begin = (first_round + rounds) * self._round_size + rank * self._part_size + offset
        return begin, begin + min(end - first, self._part_size - offset)

    def _lacking(self, num_ranks: int) -> list[int]:
        if num_ranks not in self._sorted_ranks:
            self._sorted_ranks.clear()
            self._sorted_ranks[num_ranks] = sorted(self._ranks[:num_ranks])
        return self._sorted_ranks[num_ranks]

    @cached_property
    def _sorted_ranks(self) -> dict[int, list[int]]:
        return {}

    def __reduce__(self) -> tuple[type["LeftOver"], tuple[int, int, tuple[int, ...]]]:
        return LeftOver, (self._sequence_length, self._part_size, self._counts)


def in_the_first(rests: Sequence[LeftOver], first: int, end: int) -> list[tuple[int, int]]:
    """Return where items of what is left in the end are in the first sequence, as ranges.

    Args:
        rests: What was left, each time of what was left before.
        first: The first item.
        end: The end of the items.
    """
    runs = [(first, end)]
    for rest in reversed(rests):
        runs = [run for begin, stop in runs for run in rest.runs(begin, stop)]
    return runs
