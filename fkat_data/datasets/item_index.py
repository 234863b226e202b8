"""Indices as a list takes them, and items of a dataset below, several at once where it can."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

__all__ = ["counted_from_start", "is_map_style", "items_at"]


def counted_from_start(index: int, length: int) -> int:
    """Return an index from 0 on for one that may count from the end.

    Raises:
        IndexError: There is no such item.
        TypeError: It is no integer.
    """
    number = operator.index(index)
    if not -length <= number < length:
        raise IndexError(f"index {number} of a dataset of {length} items")
    return number + length if number < 0 else number


def is_map_style(dataset: object) -> bool:
    """Return whether it has a length and items by index."""
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def items_at(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return a dataset's items at the indices, in one call if it has ``__getitems__``, as torch asks for them."""
    fetch = cast("Callable[[Sequence[int]], list[Any]] | None", getattr(dataset, "__getitems__", None))
    return fetch(indices) if fetch else [dataset[index] for index in indices]
