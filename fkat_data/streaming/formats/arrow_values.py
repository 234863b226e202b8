"""A decoded Arrow column: numbers and arrays by one gather, other values as Python objects."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.arrow_column import ArrowColumn, plain_array
from fkat_data.requirement import required

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")

#: What a short text takes as a Python string, beside its bytes.
_TEXT_BYTES = 64


class ArrowValues:
    """The values of a column of a pyarrow table.

    Numbers and booleans, and lists of them with a fixed size, nested or not, are arrays with the column's dtype. Lists
    of numbers whose sizes vary are arrays of their own. Times with nanoseconds are NumPy's. Everything else is what
    pyarrow's ``to_pylist`` returns, and a null is None.

    Args:
        column: The column.

    Attributes:
        size_bytes: The memory that it takes, approximately.
    """

    def __init__(self, column: Any) -> None:
        plain = plain_array(column)
        self.size_bytes: int = plain.nbytes + (0 if _is_number(plain.type) else _TEXT_BYTES * len(plain))
        self._column = ArrowColumn.of(plain)
        self._offsets: npt.NDArray[Any] | None = None
        self._items: npt.NDArray[Any] | None = None
        self._is_missing: npt.NDArray[np.bool_] | None = None
        kind = plain.type
        if (_arrow.types.is_list(kind) or _arrow.types.is_large_list(kind)) and _is_plain_number(kind.value_type):
            # Its values are those of the whole array, which its offsets refer to.
            items = plain.values
            if not items.null_count:
                self._items = items.to_numpy(zero_copy_only=False)
                self._offsets = plain.offsets.to_numpy(zero_copy_only=False)
                if plain.null_count:
                    self._is_missing = plain.is_null().to_numpy(zero_copy_only=False)

    @property
    def can_gather(self) -> bool:
        """Whether all values are numbers, or arrays of one shape; ``gathered`` needs that."""
        return self._column.numbers is not None and self._column.objects is None

    def gathered(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return values as a new array: shape (len(rows), ...), the column's dtype."""
        if self._column.numbers is None:
            raise TypeError("the values of this column are no numbers")
        return self._column.numbers.take(rows, 0)

    def listed(self, rows: npt.NDArray[np.int64], *, arrays: Literal["numpy", "torch"], is_writable: bool) -> list[Any]:
        """Return values one by one.

        Args:
            rows: Their rows.
            arrays: Whether arrays are NumPy's or tensors.
            is_writable: Whether NumPy's arrays belong to the caller.
        """
        if self._offsets is not None and self._items is not None:
            return self._slices(rows, self._offsets, self._items, arrays, is_writable)
        if self._column.numbers is None:
            return self._column.values_at(rows)
        numbers = self.gathered(rows)
        values: list[Any]
        if self._column.is_python_number:
            values = numbers.tolist()
        elif numbers.ndim > 1:
            values = _given(numbers, arrays, is_writable)
        else:
            values = list(numbers)
        for position, value in self._column.objects_at(np.arange(len(rows)), rows):
            values[position] = value
        return values

    def _slices(
        self, rows: npt.NDArray[np.int64], offsets: npt.NDArray[Any], items: npt.NDArray[Any], arrays: str, own: bool
    ) -> list[Any]:
        begins, ends = offsets[rows], offsets[rows + 1]
        # Copies: a view of the row group would keep all of it alive.
        values: list[Any] = [items[begin:end].copy() for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        if arrays == "torch":
            values = [torch.from_numpy(value) for value in values]
        elif not own:
            for value in values:
                value.flags.writeable = False
        if self._is_missing is not None:
            for position in np.flatnonzero(self._is_missing[rows]).tolist():
                values[position] = None
        return values


def _given(numbers: npt.NDArray[Any], arrays: str, is_writable: bool) -> list[Any]:
    if arrays == "torch":
        return list(torch.from_numpy(numbers).unbind(0))
    numbers.flags.writeable = is_writable
    return list(numbers)


def _is_number(kind: Any) -> bool:
    while _arrow.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return _is_plain_number(kind)


def _is_plain_number(kind: Any) -> bool:
    return _arrow.types.is_integer(kind) or _arrow.types.is_floating(kind) or _arrow.types.is_boolean(kind)
