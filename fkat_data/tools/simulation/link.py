"""The concurrent transfers of a node, which share its bandwidth equally."""

import heapq
import math
from collections.abc import Sequence


class Link:
    """The transfers to one node.

    All transfers have the same rate. So one counter is enough: the bytes that a transfer would have received since
    the start of the run. A transfer ends when that counter has grown by its size.

    Attributes:
        num_moving: The number of active transfers.
    """

    def __init__(self) -> None:
        self.num_moving: int = 0
        self._at_s = 0.0
        self._rate = 0.0
        self._served = 0.0
        self._ends: list[tuple[float, int]] = []

    def add(self, at_s: float, key: int, num_bytes: int) -> None:
        """Begin a transfer. The caller must set the rate afterwards."""
        self._move_to(at_s)
        heapq.heappush(self._ends, (self._served + num_bytes, key))
        self.num_moving += 1

    def set_rate(self, at_s: float, bytes_per_s: float) -> None:
        """Set the rate of each transfer from now on."""
        self._move_to(at_s)
        self._rate = bytes_per_s

    def next_s(self) -> float:
        """Return when the next transfer ends if nothing changes, or infinity if there is none."""
        if not self._ends:
            return math.inf
        missing = self._ends[0][0] - self._served
        if missing <= 0 or math.isinf(self._rate):
            return self._at_s
        return self._at_s + missing / self._rate if self._rate > 0 else math.inf

    def pop(self, at_s: float) -> int:
        """End the next transfer and return its key. The caller must set the rate afterwards."""
        self._move_to(at_s)
        end, key = heapq.heappop(self._ends)
        # A rounding error must not leave the counter short of the end of this transfer.
        self._served = max(self._served, end) if not math.isinf(self._rate) else self._served
        self.num_moving -= 1
        return key

    def _move_to(self, at_s: float) -> None:
        if not math.isinf(self._rate):
            self._served += self._rate * (at_s - self._at_s)
        self._at_s = at_s


def fair_rates(num_moving: Sequence[int], node: float, connection: float, store: float) -> list[float]:
    """Return the rate of a transfer on each node: as equal as the limits of nodes, transfers and the store allow.

    Args:
        num_moving: The number of transfers on each node.
        node: The limit of a node, in bytes a second.
        connection: The limit of a transfer.
        store: The limit of all transfers together.
    """
    alone = [min(node / count, connection) if count else 0.0 for count in num_moving]
    if math.isinf(store) or sum(rate * count for rate, count in zip(alone, num_moving, strict=True)) <= store:
        return alone
    # A transfer that cannot use an equal share leaves the rest to the others.
    left, num_left = store, sum(num_moving)
    rates = list(alone)
    for rate, index in sorted((rate, index) for index, rate in enumerate(alone) if num_moving[index]):
        even = left / num_left
        rates[index] = min(rate, even)
        left -= rates[index] * num_moving[index]
        num_left -= num_moving[index]
    return rates
