"""Best fit: fragments into as few bins of one capacity as a simple rule can do with."""

from collections.abc import Sequence

__all__ = ["best_fit"]


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Return bins of places in ``sizes``: each fragment, largest first, goes where it leaves the least room.

    Among bins with the same room the youngest is taken, among fragments of one size the first: it is a function of its
    arguments. It takes time in proportion to the fragments.

    Args:
        sizes: From 1 to ``capacity``.
        capacity: What the sizes in a bin may add up to.
    """
    bins: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    rooms = 0  # bit n is set where a bin has room for n more
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        size = sizes[place]
        enough = rooms >> size
        if enough:
            room = size + (enough & -enough).bit_length() - 1
            candidates = by_room[room]
            chosen = candidates.pop()
            if not candidates:
                rooms ^= 1 << room
            bins[chosen].append(place)
        else:
            room, chosen = capacity, len(bins)
            bins.append([place])
        left = room - size
        if left:
            by_room.setdefault(left, []).append(chosen)
            rooms |= 1 << left
    return bins
