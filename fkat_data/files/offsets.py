"""The byte offsets at which the parts of a file begin, in four bytes each."""

from array import array
from bisect import bisect_right

import numpy as np
import numpy.typing as npt

_LOW_BITS = 32
_LOW = (1 << _LOW_BITS) - 1


class Offsets:
    """Ascending offsets in bytes: of each the low 32 bits, and the indices at which the high ones grow. It pickles."""

    __slots__ = ("_carries", "_low")

    def __init__(self) -> None:
        self._low = array("I")
        self._carries: list[int] = []

    def extend(self, offsets: npt.NDArray[np.int64]) -> None:
        """Append offsets, none of which is smaller than the one before it."""
        first, high = len(self._low), int(offsets[-1]) >> _LOW_BITS if len(offsets) else 0
        self._low.frombytes((offsets & _LOW).astype(np.uint32).tobytes())
        for number in range(len(self._carries) + 1, high + 1):
            self._carries.append(first + int(np.searchsorted(offsets, number << _LOW_BITS)))

    def halve(self) -> None:
        """Keep every second one."""
        self._low = self._low[::2]
        self._carries = [(index + 1) // 2 for index in self._carries]

    def values(self) -> npt.NDArray[np.int64]:
        """Return all, as an array."""
        found = np.array(self._low, np.int64)
        for index in self._carries:
            found[index:] += 1 << _LOW_BITS
        return found

    def __len__(self) -> int:
        return len(self._low)

    def __getitem__(self, number: int) -> int:
        return (bisect_right(self._carries, number) << _LOW_BITS) + self._low[number]
