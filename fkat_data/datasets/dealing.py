"""Deal the batches of a plan that knows no ranks out to any number of ranks, again and again within an epoch.

A *round* is a batch for each rank. A *layout* is how many batches each of some ranks had been dealt when their number
changed. From the plan and the layouts so far, every process computes every rank's batches.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

Layout: TypeAlias = Sequence[int | None]
"""Batches that each rank had of what the layout before had left; None: all of the epoch."""


class PlannedBatch(NamedTuple):
    """A batch of a plan, or what is left of one.

    Attributes:
        place: Where the batch stands in the plan: numbers in the order of one rank.
        members: Indices of the samples.
        width: Padded length of a sample; batches of one width take about the same time.
        first: How many of the plan's members come before these.
    """

    place: int
    members: list[int]
    width: int
    first: int = 0


def halved(sizes: Sequence[int], count: int) -> list[tuple[int, int, int]] | None:
    """Halve the largest groups until there are ``count`` parts; None if there are too few members for that.

    Args:
        sizes: Number of members of each group, at least 1.
        count: Number of parts, at least that of the groups.

    Returns:
        Parts as group, start and stop, in the order of groups and members: parts of one group stand side by side.
    """
    if sum(sizes) < count:
        return None
    parts = [(-size, group, 0) for group, size in enumerate(sizes)]
    heapq.heapify(parts)
    for _ in range(count - len(sizes)):
        size, group, start = parts[0]
        half = -size // 2
        heapq.heapreplace(parts, (-half, group, start))
        heapq.heappush(parts, (size + half, group, start + half))
    return sorted((group, start, start - size) for size, group, start in parts)


def rounds(
    num_windows: int,
    plan: Callable[[int], list[PlannedBatch]],
    num_ranks: int,
    earlier: Iterable[Layout] = (),
) -> Iterator[list[list[int]]]:
    """Yield the rounds of an epoch, or of what earlier layouts have left of it.

    In each round, all ranks have batches of about one width, because neighbours in the order of widths are dealt
    together. Batches that make no whole round stay for the next window. In the last window, the fullest batches are
    halved until all rounds are whole. If there are too few samples for that, up to ``num_ranks - 1`` batches are left
    out. One rank gets the plan as it is.

    Args:
        num_windows: Number of windows in the epoch.
        plan: Called with a window; returns its batches.
        num_ranks: Number of ranks.
        earlier: Layouts so far.

    Yields:
        A batch for each rank.
    """
    left: list[PlannedBatch] = []  # of the windows before ``window``
    window = 0

    def deal(num_ranks: int) -> tuple[list[list[PlannedBatch]], list[PlannedBatch]]:
        return _dealt(left, num_ranks, is_last=window == num_windows, is_odd=window % 2 == 1)

    for counts in earlier:
        most = None if None in counts else max(count for count in counts if count is not None)
        num_dealt = 0
        undelivered: list[PlannedBatch] = []
        while True:
            dealt, left = deal(len(counts))
            for each in dealt:
                had = [count is None or count > num_dealt for count in counts]
                undelivered += [batch for batch, is_had in zip(each, had, strict=True) if not is_had]
                num_dealt += 1
            if window == num_windows or (most is not None and num_dealt >= most):
                break
            left = left + plan(window)
            window += 1
        left = _joined([*left, *undelivered])
    while True:
        dealt, left = deal(num_ranks)
        for each in dealt:
            yield [batch.members for batch in each]
        if window == num_windows:
            return
        left = left + plan(window)
        window += 1


def _dealt(
    batches: list[PlannedBatch], num_ranks: int, *, is_last: bool, is_odd: bool
) -> tuple[list[list[PlannedBatch]], list[PlannedBatch]]:
    """Return rounds in the order of their first batches, and the batches that make no whole round."""
    if num_ranks == 1:
        return [[batch] for batch in sorted(batches)], []
    batches = sorted(batches, key=attrgetter("width"))
    rest: list[PlannedBatch] = []
    spare = len(batches) % num_ranks
    if spare and is_last:
        parts = halved([len(batch.members) for batch in batches], len(batches) + num_ranks - spare)
        if parts is not None:
            batches = [_part(batches[index], start, stop) for index, start, stop in parts]
            spare = 0
    if spare:
        # In turn the longest and the shortest, so that none stays from window to window.
        kept = len(batches) - spare
        batches, rest = (batches[:kept], batches[kept:]) if is_odd or is_last else (batches[spare:], batches[:spare])
    found: list[list[PlannedBatch]] = []
    for step, start in enumerate(range(0, len(batches), num_ranks)):
        # Ranks take turns, so that the longest batch of each round goes to a different one.
        turn = start + step % num_ranks
        found.append(batches[turn : start + num_ranks] + batches[start:turn])
    found.sort(key=min)
    return found, rest


def _part(batch: PlannedBatch, start: int, stop: int) -> PlannedBatch:
    return batch._replace(members=batch.members[start:stop], first=batch.first + start)


def _joined(batches: list[PlannedBatch]) -> list[PlannedBatch]:
    """Return what is left of each of the plan's batches as one batch."""
    found: dict[int, PlannedBatch] = {}
    for batch in sorted(batches, key=lambda batch: (batch.place, batch.first)):
        before = found.get(batch.place)
        found[batch.place] = batch if before is None else before._replace(members=before.members + batch.members)
    return list(found.values())
