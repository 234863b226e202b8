"""Columns of Arrow tables as rows: numbers by one gather, anything else as pyarrow gives it."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.requirement import required

__all__ = ["ArrowColumn", "rows_of"]

# pyarrow ships no types: what comes from it is Any, and not Unknown.
_arrow = required("pyarrow", "parquet")


class ArrowColumn(NamedTuple):
    """A decoded column of some rows.

    Attributes:
        numbers: The rows as numbers, (rows, ...); None for a column of anything else.
        objects: The rows as pyarrow has them; None where ``numbers`` says it all.
        has_null: Which rows hold a null where numbers should be, bool[rows]; None if none does.
    """

    numbers: npt.NDArray[Any] | None
    objects: Any = None
    has_null: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, column: Any) -> "ArrowColumn":
        """Return a column of a pyarrow table or record batch, decoded."""
        array = column.combine_chunks() if isinstance(column, _arrow.ChunkedArray) else column
        shape: list[int] = []
        leaf = array
        is_null = np.zeros(len(array), np.bool_)
        while _arrow.types.is_fixed_size_list(leaf.type):
            is_null |= _null_rows(leaf, len(array))
            shape.append(leaf.type.list_size)
            # A slice's `values` are those of the whole array; `flatten` would leave out those of null lists.
            size: int = leaf.type.list_size
            leaf = leaf.values.slice(leaf.offset * size, len(leaf) * size)
        kind = leaf.type
        if not (_arrow.types.is_integer(kind) or _arrow.types.is_floating(kind) or _arrow.types.is_boolean(kind)):
            return cls(None, array)
        is_null |= _null_rows(leaf, len(array))
        filled = leaf.fill_null(_arrow.scalar(0).cast(kind)) if leaf.null_count else leaf
        numbers = filled.to_numpy(zero_copy_only=False).reshape(len(array), *shape)
        return cls(numbers, array, is_null) if is_null.any() else cls(numbers)

    def values_at(self, rows: npt.NDArray[np.int64]) -> list[Any]:
        """Return the values of ``rows``, in that order."""
        if self.numbers is None:
            return self.objects.take(_arrow.array(rows)).to_pylist()
        values = list(torch.from_numpy(self.numbers.take(rows, 0)).unbind(0))
        for place, value in self.objects_at(np.arange(len(rows)), rows):
            values[place] = value
        return values

    def objects_at(self, places: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
        """Yield (place, value) for those of ``rows`` that are no numbers."""
        if self.objects is None:
            return
        if self.has_null is not None:
            places, rows = places[self.has_null[rows]], rows[self.has_null[rows]]
        yield from zip(places.tolist(), self.objects.take(_arrow.array(rows)).to_pylist(), strict=True)


#: The places of rows in a microbatch, the rows in their columns, and the columns.
_Part: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Mapping[str, ArrowColumn]]


def rows_of(
    num_rows: int,
    parts: Iterable[_Part],
) -> list[dict[str, Any]]:
    """Return rows that are gathered from several parts, as dicts from column to value.

    The rows' tensors are cut from one new array for each column of numbers: they belong to the caller.

    Args:
        num_rows: Rows to return.
        parts: (places, rows, columns): the row ``rows[i]`` of these columns becomes the row at ``places[i]``. Every
            place is in one part, and every part has the same columns.
    """
    found = list(parts)
    if len(found) == 1:
        _, rows, columns = found[0]
        values = {name: column.values_at(rows) for name, column in columns.items()}
    else:
        values = _scattered(num_rows, found)
    # In C from end to end: a comprehension takes half as long again.
    return list(map(dict, map(zip, repeat(tuple(values)), zip(*values.values(), strict=True))))


def _scattered(num_rows: int, parts: list[_Part]) -> dict[str, list[Any]]:
    numbers: dict[str, npt.NDArray[Any]] = {}  # column -> (num_rows, ...)
    values: dict[str, list[Any]] = {}  # column -> value of each row
    for places, rows, columns in parts:
        for name, column in columns.items():
            of_column = values.setdefault(name, [None] * num_rows)
            if column.numbers is not None:
                if name not in numbers:
                    numbers[name] = np.empty((num_rows, *column.numbers.shape[1:]), column.numbers.dtype)
                    of_column[:] = torch.from_numpy(numbers[name]).unbind(0)
                numbers[name][places] = column.numbers[rows]
            for place, value in column.objects_at(places, rows):
                of_column[place] = value
    return values


def _null_rows(array: Any, num_rows: int) -> npt.NDArray[np.bool_]:
    if not array.null_count:
        return np.zeros(num_rows, np.bool_)
    return array.is_null().to_numpy(zero_copy_only=False).reshape(num_rows, -1).any(axis=1)
