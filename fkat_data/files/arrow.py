"""Turn columns of Arrow tables into rows: numbers by one gather, other values by pyarrow.

Values do not depend on whether pandas is installed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.files.arrow_extensions import TensorShape, is_honoured
from fkat_data.files.arrow_times import exact_form, has_nanoseconds, is_beyond_nanoseconds, python_form, with_parts
from fkat_data.files.sample_types import NUMBERS
from fkat_data.runtime.interruption import suppress
from fkat_data.runtime.machine import required

#: Converting one string at a time costs as much as converting this many in a whole column.
_COST_OF_ONE = 4
#: Longer strings are not kept: copying them dominates either way, and they take too much memory.
_SHORT_TEXT_BYTES = 1024
_MOST_OFFSET_BYTES = (1 << 31) - 1
_PYTHON_NUMBERS = {np.dtype(name) for name in ("int64", "float64", "bool")}
#: Values of rows that are made at a time where they are used one by one: they fit into a processor's cache.
_VALUES_AT_ONCE = 8192
#: Dicts with more keys than this are quicker to copy than to make.
_FEW_COLUMNS = 8
#: Columns that are put into dicts by one pass over them, which costs a sixth of a pass for each.
_COLUMNS_AT_ONCE = 4

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_compute = required("pyarrow.compute", "parquet")
_UNCHECKED = _compute.TakeOptions(boundscheck=False)
#: The types of `_is_plain_number`, which is asked of each column of each batch.
_NUMBER_IDS = {_arrow.from_numpy_dtype(dtype).id for dtype in NUMBERS.values()} | {_arrow.bool_().id}


@dataclass(slots=True)
class ArrowColumn:
    """A decoded column of some rows.

    Attributes:
        numbers: Rows of a numeric column, (rows, ...); None for other columns.
        objects: Rows as a pyarrow array; None if ``numbers`` holds every row.
        restored: Makes a row's value of what ``to_pylist`` gives of ``objects``; None: that is the value.
        has_null: Rows of a numeric column that contain a null, bool[rows]; None if none does.
        is_python_number: Whether each row is one number of a Python type: int64, float64 or bool.
        texts: Rows as Python strings, once enough of them were read.
        num_taken: Number of rows converted one by one from ``objects``.
    """

    numbers: npt.NDArray[Any] | None
    objects: Any = None
    restored: Callable[[Any], Any] | None = None
    has_null: npt.NDArray[np.bool_] | None = None
    is_python_number: bool = False
    texts: npt.NDArray[np.object_] | None = None
    num_taken: int = 0

    @classmethod
    def of(cls, column: Any, seconds: Any = None, tensor: TensorShape | None = None) -> "ArrowColumn":
        """Decode a column of a pyarrow table or record batch.

        Args:
            column: The column.
            seconds: The same, its times of 96 bits read as seconds; None: it has none.
            tensor: How its values are stored; None: as its type says.
        """
        array = plain_array(column)
        if seconds is None and tensor is None and _is_plain_number(array.type) and not array.null_count:
            numbers = array.to_numpy(zero_copy_only=False)
            return cls(numbers, is_python_number=numbers.dtype in _PYTHON_NUMBERS)
        tensor = tensor or TensorShape.of(column.type)
        if seconds is not None and is_beyond_nanoseconds(plain := plain_array(seconds)):
            return cls(None, *exact_form(array, plain))
        shape: list[int] = []
        leaf = array
        is_null: npt.NDArray[np.bool_] | None = None  # None: no value is
        while _arrow.types.is_fixed_size_list(leaf.type):
            is_null = _null_rows(leaf, len(array), is_null)
            shape.append(leaf.type.list_size)
            # `values` of a slice are those of the whole array; `flatten` would drop those of null lists.
            size: int = leaf.type.list_size
            leaf = leaf.values.slice(leaf.offset * size, len(leaf) * size)
        kind = leaf.type
        if not _is_plain_number(kind):
            return cls(None, *python_form(array))
        is_null = _null_rows(leaf, len(array), is_null)
        filled = leaf.fill_null(_arrow.scalar(0).cast(kind)) if leaf.null_count else leaf
        numbers = filled.to_numpy(zero_copy_only=False).reshape(len(array), *shape)
        if tensor is not None:
            numbers = tensor.of_rows(numbers)
        # Python numbers are ten times cheaper than tensors, and torch collates both to the same tensor.
        is_python = not shape and numbers.dtype in _PYTHON_NUMBERS
        if is_null is None:
            return cls(numbers, is_python_number=is_python)
        # A null within a tensor makes nested lists of it.
        restored = None if tensor is None else partial(_nested, tensor)
        return cls(numbers, array, restored, has_null=is_null, is_python_number=is_python)

    def values_at(self, rows: npt.NDArray[np.int64]) -> list[Any]:
        """Return the values of ``rows``, in that order."""
        if self.numbers is None and self.texts is None:
            self._count(len(rows))
        if self.texts is not None:
            return self.texts.take(rows).tolist()
        if self.numbers is None:
            # array.take() would build these options on each call. The caller has checked the row numbers.
            return self._python(_compute.call_function("take", [self.objects, _arrow.array(rows)], _UNCHECKED))
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
            # Damage in one row is no error of the others.
            with suppress(UnicodeDecodeError, _arrow.ArrowException):
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
        yield from zip(positions.tolist(), self._python(self.objects.take(_arrow.array(rows))), strict=True)

    def _python(self, taken: Any) -> list[Any]:
        values: list[Any] = taken.to_pylist()
        return values if self.restored is None else [self.restored(value) for value in values]


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
    return _dicts(num_rows, values)


def rows_in_turn(num_rows: int, columns: Mapping[str, ArrowColumn]) -> Iterator[list[dict[str, Any]]]:
    """Yield all rows of columns, in lists, as ``rows_of`` returns them.

    Args:
        num_rows: Number of rows.
        columns: The columns.

    Raises:
        Exception: A value cannot be made; before any row is yielded.
    """
    rows = np.arange(num_rows)
    values: dict[str, list[Any]] = {}
    numbers: dict[str, npt.NDArray[Any]] = {}  # made Python's where their rows are made; other values may fail
    for name, column in columns.items():
        if column.numbers is not None and column.objects is None and column.is_python_number:
            numbers[name] = column.numbers
        else:
            values[name] = column.values_at(rows)
    at_once = max(1, _VALUES_AT_ONCE // max(1, len(columns)))
    for first in range(0, num_rows, at_once):
        stop = min(num_rows, first + at_once)
        parts = {
            name: values[name][first:stop] if name in values else numbers[name][first:stop].tolist() for name in columns
        }
        yield _dicts(stop - first, parts)


def _dicts(num_rows: int, values: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return rows, of the values of each column."""
    # Filling all rows column by column takes half the time of building row by row.
    if len(values) > _FEW_COLUMNS:
        empty: dict[str, Any] = dict.fromkeys(values)
        samples = [empty.copy() for _ in range(num_rows)]
        others = list(values)
    elif values:
        first, *others = values
        samples = [{first: value} for value in values[first]]
    else:
        return [{} for _ in range(num_rows)]
    num_together = len(others) - len(others) % _COLUMNS_AT_ONCE
    for first in range(0, num_together, _COLUMNS_AT_ONCE):
        a, b, c, d = others[first : first + _COLUMNS_AT_ONCE]
        together = zip(samples, values[a], values[b], values[c], values[d], strict=True)
        for sample, of_a, of_b, of_c, of_d in together:
            sample[a] = of_a
            sample[b] = of_b
            sample[c] = of_c
            sample[d] = of_d
    for name in others[num_together:]:
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


def _nested(tensor: TensorShape, values: list[Any] | None) -> list[Any] | None:
    return None if values is None else tensor.of_values(values)


def _is_text(kind: Any) -> bool:
    return _arrow.types.is_string(kind) or _arrow.types.is_large_string(kind)


def _null_rows(array: Any, num_rows: int, others: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_] | None:
    """Return which rows have a null in an array, or are among others; None: none."""
    if not array.null_count:
        return others
    found = array.is_null().to_numpy(zero_copy_only=False).reshape(num_rows, -1).any(axis=1)
    return found if others is None else found | others


def plain_array(column: Any) -> Any:
    """Return a column as one array of a type that has no extension of numbers, no view, and no dictionary of small texts.

    Args:
        column: A pyarrow array, or the column of a table.
    """
    if isinstance(column, _arrow.ChunkedArray):
        if _is_plain_number(column.type) and column.num_chunks == 1:
            return column.chunk(0)
    elif _is_plain_number(column.type):
        return column
    else:
        column = _arrow.chunked_array([column])
    column = _without_extension(column)
    if _arrow.types.is_dictionary(column.type) and not _is_large(column):
        column = column.cast(column.type.value_type)
    if (kind := _plain_type(column.type)) != column.type:
        column = column.cast(kind)
    if column.nbytes > _MOST_OFFSET_BYTES:
        # One array of them has offsets of 32 bits.
        column = column.cast(_wide_type(column.type))
    array = column.combine_chunks()
    return array.chunk(0) if isinstance(array, _arrow.ChunkedArray) and array.num_chunks == 1 else array


def _is_large(column: Any) -> bool:
    """Return whether the texts of a column of dictionaries, each as often as it comes, are more than 2 GiB."""
    most = max((chunk.dictionary.nbytes * len(chunk) for chunk in column.chunks), default=0)
    if most <= _MOST_OFFSET_BYTES // max(1, column.num_chunks) or not _has_offsets(column.type.value_type):
        return False
    sizes = (
        _compute.binary_length(chunk.dictionary).cast(_arrow.int64()).take(chunk.indices) for chunk in column.chunks
    )
    return sum(_compute.sum(size).as_py() or 0 for size in sizes) > _MOST_OFFSET_BYTES


def _has_offsets(kind: Any) -> bool:
    types = _arrow.types
    return _is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _wide_type(kind: Any) -> Any:
    """Return a type with offsets of 64 bits."""
    types = _arrow.types
    if types.is_string(kind):
        return _arrow.large_string()
    if types.is_binary(kind):
        return _arrow.large_binary()
    if types.is_list(kind):
        return _arrow.large_list(kind.value_field.with_type(_wide_type(kind.value_type)))
    return with_parts(kind, _wide_type)


def _without_extension(column: Any) -> Any:
    kind = column.type
    if not isinstance(kind, _arrow.BaseExtensionType) or not _is_of_numbers(kind.storage_type):
        return column
    stored = _arrow.chunked_array([chunk.storage for chunk in column.chunks], type=kind.storage_type)
    return stored.cast(_arrow.bool_()) if kind.extension_name == "arrow.bool8" else stored


def _is_of_numbers(kind: Any) -> bool:
    types = _arrow.types
    while types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _plain_type(kind: Any) -> Any:
    """Return a type with large strings and lists instead of views, which pyarrow takes no rows of.

    An extension that is not known becomes its storage, whether the program has registered it or not.
    """
    types = _arrow.types
    if isinstance(kind, _arrow.BaseExtensionType):
        return kind if is_honoured(kind) else _plain_type(kind.storage_type)
    if _is_a(kind, "is_string_view"):
        return _arrow.large_string()
    if _is_a(kind, "is_binary_view"):
        return _arrow.large_binary()
    if types.is_dictionary(kind) and has_nanoseconds(kind.value_type):
        return kind.value_type
    if _is_a(kind, "is_list_view") or _is_a(kind, "is_large_list_view") or types.is_large_list(kind):
        return _arrow.large_list(kind.value_field.with_type(_plain_type(kind.value_type)))
    return with_parts(kind, _plain_type)


def _is_a(kind: Any, question: str) -> bool:
    # Older versions of pyarrow have no views.
    ask = getattr(_arrow.types, question, None)
    return ask is not None and ask(kind)


#: What a short text takes as a Python string, beside its bytes.
_TEXT_BYTES = 64


class ArrowValues:
    """The values of a column of a pyarrow table.

    Numbers and booleans, and lists of them with a fixed size, nested or not, are arrays with the column's dtype. Lists
    of numbers whose sizes vary are arrays of their own. Times with nanoseconds are NumPy's. Everything else is what
    pyarrow's ``to_pylist`` returns, and a null is None.

    Args:
        column: The column.
        seconds: The same, its times of 96 bits read as seconds; None: it has none.

    Attributes:
        size_bytes: The memory that it takes, approximately.
    """

    def __init__(self, column: Any, seconds: Any = None) -> None:
        plain = plain_array(column)
        self.size_bytes: int = plain.nbytes + (0 if _is_number(plain.type) else _TEXT_BYTES * len(plain))
        self._column = ArrowColumn.of(plain, seconds, TensorShape.of(column.type))
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
    return kind.id in _NUMBER_IDS
