"""Turn columns of Arrow tables into rows: numbers by one gather, other values by pyarrow."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.requirement import required

__all__ = ["ArrowColumn", "rows_of"]

#: Converting one string at a time costs as much as converting this many in a whole column.
_COST_OF_ONE = 4
#: Longer strings are not kept: copying them dominates either way, and they take too much memory.
_SHORT_TEXT_BYTES = 1024
_PYTHON_NUMBERS = {"int64", "float64", "bool"}

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_compute = required("pyarrow.compute", "parquet")
_UNCHECKED = _compute.TakeOptions(boundscheck=False)


@dataclass(slots=True)
class ArrowColumn:
    """A decoded column of some rows.

    Attributes:
        numbers: Rows of a numeric column, (rows, ...); None for other columns.
        objects: Rows as a pyarrow array; None if ``numbers`` holds every row.
        has_null: Rows of a numeric column that contain a null, bool[rows]; None if none does.
        is_python_number: Whether each row is one number of a Python type: int64, float64 or bool.
        texts: Rows as Python strings, once enough of them were read.
        num_taken: Number of rows converted one by one from ``objects``.
    """

    numbers: npt.NDArray[Any] | None
    objects: Any = None
    has_null: npt.NDArray[np.bool_] | None = None
    is_python_number: bool = False
    texts: npt.NDArray[np.object_] | None = None
    num_taken: int = 0

    @classmethod
    def of(cls, column: Any) -> "ArrowColumn":
        """Decode a column of a pyarrow table or record batch."""
        array = column.combine_chunks() if isinstance(column, _arrow.ChunkedArray) else column
        shape: list[int] = []
        leaf = array
        is_null = np.zeros(len(array), np.bool_)
        while _arrow.types.is_fixed_size_list(leaf.type):
            is_null |= _null_rows(leaf, len(array))
            shape.append(leaf.type.list_size)
            # `values` of a slice are those of the whole array; `flatten` would drop those of null lists.
            size: int = leaf.type.list_size
            leaf = leaf.values.slice(leaf.offset * size, len(leaf) * size)
        kind = leaf.type
        if not (_arrow.types.is_integer(kind) or _arrow.types.is_floating(kind) or _arrow.types.is_boolean(kind)):
            return cls(None, array)
        is_null |= _null_rows(leaf, len(array))
        filled = leaf.fill_null(_arrow.scalar(0).cast(kind)) if leaf.null_count else leaf
        numbers = filled.to_numpy(zero_copy_only=False).reshape(len(array), *shape)
        # Python numbers are ten times cheaper than tensors, and torch collates both to the same tensor.
        is_python = not shape and numbers.dtype.name in _PYTHON_NUMBERS
        return cls(numbers, array, is_null, is_python) if is_null.any() else cls(numbers, is_python_number=is_python)

    def values_at(self, rows: npt.NDArray[np.int64]) -> list[Any]:
        """Return the values of ``rows``, in that order."""
        if self.numbers is None and self.texts is None:
            self._count(len(rows))
        if self.texts is not None:
            return self.texts.take(rows).tolist()
        if self.numbers is None:
            # array.take() would build these options on each call. The caller has checked the row numbers.
            return _compute.call_function("take", [self.objects, _arrow.array(rows)], _UNCHECKED).to_pylist()
        values = _values(self.numbers.take(rows, 0), self)
        if self.objects is None:
            return values
        for position, value in self.objects_at(np.arange(len(rows)), rows):
            values[position] = value
        return values

    def _count(self, num_rows: int) -> None:
        """Count rows that are read; convert all strings at once when that has become cheaper."""
        self.num_taken += num_rows
        length = len(self.objects)
        if self.num_taken * _COST_OF_ONE < length or not _is_text(self.objects.type):
            return
        if self.objects.nbytes <= _SHORT_TEXT_BYTES * length:
            self.texts = self.objects.to_numpy(zero_copy_only=False)

    def objects_at(self, positions: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
        """Yield (position, value) for each of ``rows`` that is not in ``numbers``."""
        if self.objects is None:
            return
        if self.texts is not None:
            yield from zip(positions.tolist(), self.texts.take(rows).tolist(), strict=True)
            return
        if self.has_null is not None:
            positions, rows = positions[self.has_null[rows]], rows[self.has_null[rows]]
        yield from zip(positions.tolist(), self.objects.take(_arrow.array(rows)).to_pylist(), strict=True)


#: Indices of rows in a microbatch, indices of the rows in their columns, and the columns.
_Part: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Mapping[str, ArrowColumn]]


def rows_of(
    num_rows: int,
    parts: Iterable[_Part],
) -> list[dict[str, Any]]:
    """Gather rows from several parts, as dicts from column to value.

    The tensors of the rows are views of one new array per numeric column: they belong to the caller.

    Args:
        num_rows: Number of rows to return.
        parts: (positions, rows, columns): row ``rows[i]`` of these columns becomes row ``positions[i]`` of the result. The
            parts cover every row of the result once, and have the same columns.
    """
    found = list(parts)
    if not found:
        return []
    if len(found) == 1:
        _, rows, columns = found[0]
        values = {name: column.values_at(rows) for name, column in columns.items()}
    else:
        values = _scattered(num_rows, found)
    # Filling all rows column by column takes half the time of building row by row.
    if not values:
        return [{} for _ in range(num_rows)]
    first, *others = values
    samples: list[dict[str, Any]] = [{first: value} for value in values[first]]
    for name in others:
        for sample, value in zip(samples, values[name], strict=True):
            sample[name] = value
    return samples


def _scattered(num_rows: int, parts: list[_Part]) -> dict[str, list[Any]]:
    numbers: dict[str, npt.NDArray[Any]] = {}  # column -> (num_rows, ...)
    for positions, rows, columns in parts:
        for name, column in columns.items():
            if column.numbers is not None:
                if name not in numbers:
                    numbers[name] = np.empty((num_rows, *column.numbers.shape[1:]), column.numbers.dtype)
                numbers[name][positions] = column.numbers[rows]
    values = {
        name: _values(numbers[name], column) if name in numbers else [None] * num_rows
        for name, column in parts[0][2].items()
    }
    for positions, rows, columns in parts:
        for name, column in columns.items():
            for position, value in column.objects_at(positions, rows):
                values[name][position] = value
    return values


def _values(numbers: npt.NDArray[Any], column: ArrowColumn) -> list[Any]:
    return numbers.tolist() if column.is_python_number else list(torch.from_numpy(numbers).unbind(0))


def _is_text(kind: Any) -> bool:
    return _arrow.types.is_string(kind) or _arrow.types.is_large_string(kind)


def _null_rows(array: Any, num_rows: int) -> npt.NDArray[np.bool_]:
    if not array.null_count:
        return np.zeros(num_rows, np.bool_)
    return array.is_null().to_numpy(zero_copy_only=False).reshape(num_rows, -1).any(axis=1)
