"""Transfers of one node, side by side: each gets an equal part of the line."""

import heapq
import math
from collections.abc import Sequence

__all__ = ["Link", "fair_rates"]


class Link:
    """Bytes on their way to a node.

    All transfers go at one rate, so it is enough to know how many bytes each of them has had since the beginning of
    time: a transfer ends when that count has grown by its size.

    Attributes:
        num_moving: Transfers under way.
    """

    def __init__(self) -> None:
        self.num_moving = 0
        self._at_s = 0.0
        self._rate = 0.0
        self._served = 0.0
        self._ends: list[tuple[float, int]] = []

    def add(self, at_s: float, key: int, num_bytes: int) -> None:
        """Begin a transfer; the rate has to be set afterwards."""
        self._move_to(at_s)
        heapq.heappush(self._ends, (self._served + num_bytes, key))
        self.num_moving += 1

    def set_rate(self, at_s: float, bytes_per_s: float) -> None:
        """Let each transfer go so fast from now on."""
        self._move_to(at_s)
        self._rate = bytes_per_s

    def next_s(self) -> float:
        """Return when the next transfer ends if nothing changes; infinite if there is none."""
        if not self._ends:
            return math.inf
        missing = self._ends[0][0] - self._served
        if missing <= 0 or math.isinf(self._rate):
            return self._at_s
        return self._at_s + missing / self._rate if self._rate > 0 else math.inf

    def pop(self, at_s: float) -> int:
        """Return the key of the transfer that ends now; the rate has to be set afterwards."""
        self._move_to(at_s)
        end, key = heapq.heappop(self._ends)
        # Not a rounding error later than this one ended.
        self._served = max(self._served, end) if not math.isinf(self._rate) else self._served
        self.num_moving -= 1
        return key

    def _move_to(self, at_s: float) -> None:
        if not math.isinf(self._rate):
            self._served += self._rate * (at_s - self._at_s)
        self._at_s = at_s


def fair_rates(num_moving: Sequence[int], node: float, connection: float, store: float) -> list[float]:
    """Return the rate of each transfer, by node: as even as the limits of nodes, transfers and the store let them be.

    Args:
        num_moving: Transfers of each node.
        node: What a node receives, in bytes a second.
        connection: What a transfer receives at the most.
        store: What all transfers receive together.
    """
    alone = [min(node / count, connection) if count else 0.0 for count in num_moving]
    if math.isinf(store) or sum(rate * count for rate, count in zip(alone, num_moving, strict=True)) <= store:
        return alone
    # Whoever cannot take an even part leaves the rest to the others.
    left, num_left = store, sum(num_moving)
    rates = list(alone)
    for rate, index in sorted((rate, index) for index, rate in enumerate(alone) if num_moving[index]):
        even = left / num_left
        rates[index] = min(rate, even)
        left -= rates[index] * num_moving[index]
        num_left -= num_moving[index]
    return rates
