"""Normalize indices as a list does, and read several items of a dataset at once."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

__all__ = ["counted_from_start", "is_map_style", "items_at"]


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


def is_map_style(dataset: object) -> bool:
    """Return whether a dataset has ``__len__`` and ``__getitem__``."""
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def items_at(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return a dataset's items at ``indices``, in one call if it has ``__getitems__``, as torch does."""
    fetch = cast("Callable[[Sequence[int]], list[Any]] | None", getattr(dataset, "__getitems__", None))
    return fetch(indices) if fetch else [dataset[index] for index in indices]
