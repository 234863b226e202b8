"""Where the parts of an order are kept that is computed from its start: in this process, or shared with others."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

_Integers = npt.NDArray[Any]


class OrderPart(Protocol):
    """The samples of consecutive places of an order. An array is one."""

    def __getitem__(self, places: Any, /) -> _Integers:
        """Return the samples at an array of places, counted from the part's first."""
        ...


class Keeper(Protocol):
    """Keeps the parts of an order."""

    def __call__(
        self, key: str, size: int, dtype: type[np.signedinteger[Any]], make: Callable[[], Iterator[_Integers]]
    ) -> OrderPart:
        """Return a part, which is computed unless it is kept already.

        Args:
            key: What determines the part's samples.
            size: Number of places.
            dtype: Type of the samples.
            make: Computes the samples in chunks, in order. It may be called again.
        """
        ...


def kept_here(
    key: str,  # noqa: ARG001 - part of the protocol
    size: int,
    dtype: type[np.signedinteger[Any]],
    make: Callable[[], Iterator[_Integers]],
) -> OrderPart:
    """Return a part in this process's memory."""
    kept = np.empty(size, dtype)
    place = 0
    for samples in make():
        kept[place : place + len(samples)] = samples
        place += len(samples)
    return kept
