"""Normalize indices as a list does, and read several items of a dataset at once."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt


def counted_from_start(index: int, length: int) -> int:
    """Return the non-negative index for one that may count from the end.

    Raises:
        IndexError: ``index`` is out of range.
        TypeError: ``index`` is not an integer.
    """
    number = operator.index(index)
    if not -length <= number < length:
        raise IndexError(f"index {number} is out of range for a dataset of {length} items")
    return number + length if number < 0 else number


def counted_from_starts(indices: Sequence[int], length: int, noun: str) -> npt.NDArray[np.int64]:
    """Return the non-negative indices for many, each of which may count from the end.

    Args:
        indices: The indices.
        length: The number of items.
        noun: What an item is, for messages.

    Raises:
        IndexError: An index is out of range.
        TypeError: An index is not an integer.
    """
    numbers = np.asarray(indices) if len(indices) else np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{noun} indices must be integers, not {indices!r}")
    found = numbers.astype(np.int64, copy=False)
    # As unsigned numbers, negative ones are the largest: one comparison finds all that need a closer look.
    if not np.count_nonzero(found.view(np.uint64) >= length):
        return found
    outside = (numbers < -length) | (numbers >= length)
    if outside.any():
        raise IndexError(f"index {int(numbers[outside][0])} is out of range for a dataset of {length} {noun}s")
    return np.where(found < 0, found + length, found)


def in_parts(
    items: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield the parts that items are in: a part, which of the items are in it, and their numbers within the part.

    Args:
        items: Numbers of items, from the start of all parts.
        ends: For each part, the number of items up to its end.
    """
    if not len(items):
        return
    part_of_item = np.searchsorted(ends, items, side="right")
    part = int(part_of_item[0])
    if np.count_nonzero(part_of_item == part) == len(items):  # most often, and quicker
        yield part, np.arange(len(items)), items - ends[part - 1] if part else items
        return
    for part in cast("list[int]", np.unique(part_of_item).tolist()):
        positions = np.flatnonzero(part_of_item == part)
        yield part, positions, items[positions] - ends[part - 1] if part else items[positions]


def is_map_style(dataset: object) -> bool:
    """Return whether a dataset has ``__len__`` and ``__getitem__``."""
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def items_at(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return a dataset's items at ``indices``, in one call if it has ``__getitems__``, as torch does."""
    fetch = cast("Callable[[Sequence[int]], list[Any]] | None", getattr(dataset, "__getitems__", None))
    return fetch(indices) if fetch else [dataset[index] for index in indices]
