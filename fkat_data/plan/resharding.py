"""Another number of ranks in an epoch: how far the ranks had come, what they have left, and where the next ones begin.

What an item is, is the caller's: a shard, a batch, a window of samples. A strand of an iterable dataset has a position of
its own, which it keeps on any rank; nothing is to be known of the ranks that had it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, reduce
from typing import NamedTuple

from fkat_data.plan.position import ONE_BY_ONE, Dealing, Position, Reshard


class Resharded(NamedTuple):
    """Where the next ranks begin.

    Attributes:
        reshards: Those that matter to the epoch or to a later one.
        epoch: The earliest epoch of the ranks before.
        step: The largest step that one of them had in it.
    """

    reshards: tuple[Reshard, ...]
    epoch: int
    step: int


def reshard(reshards: Sequence[Reshard], positions: Sequence[Position], dealing: Dealing = ONE_BY_ONE) -> Resharded:
    """Return where other ranks go on after these.

    Args:
        reshards: All reshards so far.
        positions: Each rank's, in what the last reshard has given it; a rank that has finished an epoch is at the start of
            the next one.
        dealing: How batches are dealt out to them.
    """
    added = Reshard.at(positions, dealing)
    return Resharded(kept_in_state((*reshards, added), added.epoch), added.epoch, added.step)


def of_epoch(reshards: Sequence[Reshard], epoch: int) -> tuple[Reshard, ...]:
    """Return the reshards that decide on an epoch or a later one: those at which a rank had something of it.

    Two reshards with nothing delivered in between leave the same as the second one alone, unless one leaves samples out.
    """
    return tuple(
        each
        for each in reshards
        if any(position[:3] > (epoch, 0, 0) for position in each.positions)
        or (each.exclusion is not None and each.epoch == epoch)
    )


def kept_in_state(reshards: Sequence[Reshard], epoch: int) -> tuple[Reshard, ...]:
    """Return the reshards that a state keeps in an epoch: what was left out in an earlier one stays left out."""
    amended = {each.epoch for each in reshards if each.exclusion is not None}
    present = of_epoch(reshards, epoch)
    return tuple(each for each in reshards if each.epoch in amended or each in present)


def excluded_before(reshards: Sequence[Reshard], epoch: int) -> set[int]:
    """Return the samples that were left out in earlier epochs: no step of this one has them."""
    earlier = (each.exclusion.samples for each in reshards if each.exclusion is not None and each.epoch < epoch)
    return {sample for samples in earlier for sample in samples}


def reshards_until(reshards: Sequence[Reshard], epoch: int, step: int) -> tuple[Reshard, ...]:
    """Return the reshards that the microbatch at a step comes after."""
    return tuple(each for each in reshards if (each.epoch, each.step) <= (epoch, step))


def first_step(reshards: Sequence[Reshard], epoch: int) -> int:
    """Return the ``step`` at which every rank begins its part of an epoch: 0, except in the epoch of the last reshard.

    There, it is the largest one of the ranks before: the count of microbatches goes on, and none of their numbers, and so
    no random stream, comes twice on a rank.
    """
    return reshards[-1].step if reshards and reshards[-1].epoch == epoch else 0


class Remainder:
    """What ranks have left of a sequence, each time of what the ranks before them had left: items, by their offsets in it.

    Args:
        length: Items of the sequence.
    """

    def __init__(self, length: int, parts: "tuple[_Dealt | _Reduced, ...]" = ()) -> None:
        self._length = length
        self._parts = parts

    def after(self, part_size: int, counts: Sequence[int]) -> "Remainder":
        """Return what is left after ranks have had some of what is left now.

        Args:
            part_size: Items of a rank's part of a round; those that the last round lacks are at its end.
            counts: Parts that each rank has had.
        """
        return Remainder(self._length, (*self._parts, _Dealt(len(self), part_size, counts)))

    def without(self, ranges: Iterable[tuple[int, int]]) -> "Remainder":
        """Return what is left without some of it; ``ranges``: disjoint, of offsets in what is left now."""
        removed = sorted(ranges)
        return Remainder(self._length, (*self._parts, _Reduced(len(self), removed))) if removed else self

    def __len__(self) -> int:
        return len(self._parts[-1]) if self._parts else self._length

    def runs(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return where the items from ``first`` to ``end`` of what is left are in the sequence, as ranges."""
        return reduce(_in_all_before, reversed(self._parts), [(first, end)])

    def offsets_of(self, items: Iterable[int]) -> list[int]:
        """Return where items of the sequence are in what is left; those that are not left are none."""
        found = [*items]
        for part in self._parts:
            found = [offset for offset in map(part.offset_of, found) if offset is not None]
        return found


def _in_all_before(runs: list[tuple[int, int]], part: "_Dealt | _Reduced") -> list[tuple[int, int]]:
    return [run for begin, stop in runs for run in part.runs(begin, stop)]


class _Reduced:
    """A sequence of which some ranges were left out."""

    def __init__(self, length: int, removed: Sequence[tuple[int, int]]) -> None:
        edges = [0, *(edge for each in removed for edge in each), length]
        # The ranges that stay, and how much of the sequence is left before each.
        self._ranges = [(begin, stop) for begin, stop in zip(edges[::2], edges[1::2], strict=True) if begin < stop]
        self._firsts = [0]
        for begin, stop in self._ranges:
            self._firsts.append(self._firsts[-1] + stop - begin)

    def __len__(self) -> int:
        return self._firsts[-1]

    def runs(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield where the items from ``first`` to ``end`` of what is left are in the sequence, as ranges."""
        for index in range(bisect_right(self._firsts, first) - 1, len(self._ranges)):
            before, (begin, stop) = self._firsts[index], self._ranges[index]
            if max(before, first) >= end:
                return
            yield begin + max(first - before, 0), min(stop, begin + end - before)

    def offset_of(self, item: int) -> int | None:
        """Return where an item of the sequence is in what is left; None: it is not."""
        index = bisect_right(self._ranges, item, key=lambda each: each[0]) - 1
        if index < 0 or item >= self._ranges[index][1]:
            return None
        return self._firsts[index] + item - self._ranges[index][0]


class _Dealt:
    """A sequence that was dealt out to ranks in rounds, and of which each has had some parts."""

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
        rounds, within = divmod(first - before, num_ranks * self._part_size)
        part, offset = divmod(within, self._part_size)
        rank = self._lacking(num_ranks)[part]
        begin = (first_round + rounds) * self._round_size + rank * self._part_size + offset
        return begin, begin + min(end - first, self._part_size - offset)

    def offset_of(self, item: int) -> int | None:
        """Return where an item of the sequence is in what is left; None: a rank has had it."""
        round_index, within = divmod(item, self._round_size)
        rank, offset = divmod(within, self._part_size)
        if self._counts[rank] > round_index:
            return None
        before, first_round, num_ranks = self._stretches[self._stretch_of_round(round_index)]
        part = (round_index - first_round) * num_ranks + self._lacking(num_ranks).index(rank)
        return before + part * self._part_size + offset

    def _lacking(self, num_ranks: int) -> list[int]:
        if num_ranks not in self._sorted_ranks:
            self._sorted_ranks.clear()
            self._sorted_ranks[num_ranks] = sorted(self._ranks[:num_ranks])
        return self._sorted_ranks[num_ranks]

    @cached_property
    def _sorted_ranks(self) -> dict[int, list[int]]:
        return {}

    def __reduce__(self) -> tuple[type["_Dealt"], tuple[int, int, tuple[int, ...]]]:
        return _Dealt, (self._sequence_length, self._part_size, self._counts)
