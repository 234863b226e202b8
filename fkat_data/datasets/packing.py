"""Best-fit bin packing in linear time."""

from collections.abc import Sequence

__all__ = ["best_fit"]


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack items, largest first, each into the bin that it leaves with the least room.

    Ties go to the newest bin and to the first item, so the result is deterministic. Takes time linear in the number of
    items.

    Args:
        sizes: Size of each item, from 1 to ``capacity``.
        capacity: Maximum sum of the sizes in a bin.

    Returns:
        Bins, as lists of indices into ``sizes``.
    """
    bins: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    rooms = 0  # bit n is set if a bin has room for exactly n more
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size = sizes[index]
        enough = rooms >> size
        if enough:
            room = size + (enough & -enough).bit_length() - 1
            candidates = by_room[room]
            chosen = candidates.pop()
            if not candidates:
                rooms ^= 1 << room
            bins[chosen].append(index)
        else:
            room, chosen = capacity, len(bins)
            bins.append([index])
        left = room - size
        if left:
            by_room.setdefault(left, []).append(chosen)
            rooms |= 1 << left
    return bins
