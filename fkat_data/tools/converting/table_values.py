"""Turn the values of an Arrow column into what a writer takes."""

import contextlib
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, cast
from uuid import UUID

import numpy as np

from fkat_data.error_text import made_from_text
from fkat_data.errors import SampleError
from fkat_data.requirement import required
from fkat_data.tools.converting.json_values import is_plain, plain_value
from fkat_data.tools.converting.table_types import NUMBERS, is_file, peeled
from fkat_data.tools.converting.time_texts import time_texts

__all__ = ["UnfitValueError", "has_unfit_value", "values_of_column"]

_NO_NULL = "a value without null (nulls='json' stores such a column as JSON)"
_NO_NULL_IN_BYTES = "bytes (JSON cannot store a column of bytes that has nulls)"
_NO_PATH = "an image or a recording in the table (this is the path of a file elsewhere)"
_NO_EMPTY = "a list of at least one number (nulls='json' stores such a column as JSON)"
_IN_PYTHON = "a value that Python can represent"


@made_from_text
class UnfitValueError(Exception):
    """A column has a value that its encoding cannot store.

    Args:
        row: Its row in the batch.
        error: What is wrong with it.
    """

    def __init__(self, row: int, error: SampleError) -> None:
        self.row = row
        self.error = error
        super().__init__(row, error)


def values_of_column(name: str, column: Any, extension: str, encoding: str) -> list[Any]:
    """Return the values of a column in the form that a writer takes.

    Lists of numbers become arrays, images the bytes of their files, and times and UUIDs text.

    Args:
        name: Its name.
        column: A pyarrow array.
        extension: The name of its extension type; "" if it has none.
        encoding: The column's encoding in the dataset.

    Raises:
        UnfitValueError: A value is null, an empty list or beyond Python's range, and the encoding cannot store that.
    """
    column = _stored(column, extension)
    types = required("pyarrow", "parquet").types
    if encoding.startswith("ndarray"):
        values = _arrays(types, column)
    elif extension == "arrow.json" and encoding == "json":
        # The writer checks bytes as ready-made JSON.
        values = [None if text is None else text.encode() for text in column.to_pylist()]
    else:
        values = _objects(name, types, column)
        if encoding == "json" and not is_plain(types, column.type):
            values = _each(name, values, partial(plain_value, types, column.type))
        elif is_file(types, column.type):
            values = _each(name, values, _content)
    if encoding not in ("json", "pkl") and (column.null_count or encoding.startswith(("ndarray", "jpeg", "png"))):
        for row, value in enumerate(values):
            expected = _reason_against(value, encoding)
            if expected is not None:
                raise UnfitValueError(row, SampleError(name, value, expected))
    return values


def has_unfit_value(name: str, column: Any, extension: str, encoding: str) -> bool:
    """Return whether a column has a null, or another value that its encoding cannot store and JSON can."""
    if not encoding.startswith("ndarray"):
        return bool(_stored(column, extension).null_count)
    try:
        values_of_column(name, column, extension, encoding)
    except UnfitValueError:
        return True
    return False


def _reason_against(value: Any, encoding: str) -> str | None:
    if value is None:
        return _NO_NULL_IN_BYTES if encoding in ("bytes", "jpeg", "png") else _NO_NULL
    if not encoding.startswith("ndarray"):
        return None
    if isinstance(value, list):
        return _NO_NULL if _has_null(value) else None
    return _NO_EMPTY if isinstance(value, np.ndarray) and not value.size else None


def _has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_null, cast("list[Any]", value))))


def _stored(column: Any, extension: str) -> Any:
    """Return the array under dictionaries and extensions; UUIDs as text."""
    arrow = required("pyarrow", "parquet")
    while True:
        if hasattr(column, "storage"):
            column = column.storage
        elif arrow.types.is_dictionary(column.type):
            dictionary = column.dictionary
            # pyarrow cannot look up views of strings.
            if str(dictionary.type) == "string_view":
                dictionary = dictionary.cast(arrow.large_string())
            column = dictionary.take(column.indices)
        elif extension == "arrow.uuid":
            texts = [None if value is None else str(UUID(bytes=value)) for value in column.to_pylist()]
            return arrow.array(texts, arrow.string())
        else:
            return column


def _arrays(types: Any, column: Any) -> list[Any]:
    """Return lists of numbers as arrays; a list that contains null stays a list, and null stays None."""
    if not column.null_count:
        return _present_arrays(types, column)
    present = iter(_present_arrays(types, column.drop_null()))
    return [next(present) if is_valid else None for is_valid in column.is_valid().to_pylist()]


def _present_arrays(types: Any, column: Any) -> list[Any]:
    shape, leaf = peeled(types, column.type)
    if shape and str(leaf) in NUMBERS:
        flat, num_nulls = column, 0
        for _ in shape:
            flat = flat.flatten()
            num_nulls += flat.null_count
        if not num_nulls:
            return list(flat.to_numpy(zero_copy_only=False).reshape(len(column), *shape))
    elif (types.is_list(column.type) or types.is_large_list(column.type)) and str(column.type.value_type) in NUMBERS:
        offsets = column.offsets.to_pylist() or [0]
        numbers = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        if not numbers.null_count:
            array = numbers.to_numpy(zero_copy_only=False)
            return [array[begin - offsets[0] : end - offsets[0]] for begin, end in pairwise(offsets)]
        parts = [numbers.slice(begin - offsets[0], end - begin) for begin, end in pairwise(offsets)]
        return [part.to_pylist() if part.null_count else part.to_numpy(zero_copy_only=False) for part in parts]
    nested: list[Any] = column.to_pylist()
    while hasattr(leaf, "value_type"):
        leaf = leaf.value_type
    return [_array(value, NUMBERS[str(leaf)]) for value in nested] if str(leaf) in NUMBERS else nested


def _array(value: Any, dtype: str) -> Any:
    """Return nested lists as an array; the lists themselves if they contain null or have no common shape."""
    if isinstance(value, list) and not _has_null(value):
        with contextlib.suppress(ValueError):
            return np.array(value, dtype)
    return cast("object", value)


def _objects(name: str, types: Any, column: Any) -> list[Any]:
    """Return the Python values of a column, with times as text."""
    try:
        return time_texts(types, column) if types.is_temporal(column.type) else column.to_pylist()
    except (ValueError, OverflowError, OSError, LookupError):
        return list(_one_by_one(name, types, column))


def _one_by_one(name: str, types: Any, column: Any) -> Iterator[Any]:
    for row in range(len(column)):
        part = column.slice(row, 1)
        try:
            yield from time_texts(types, part) if types.is_temporal(column.type) else part.to_pylist()
        except (ValueError, OverflowError, OSError, LookupError) as error:
            shown = f"<{getattr(part[0], 'value', '?')} of type {column.type}>"
            raise UnfitValueError(row, SampleError(name, shown, f"{_IN_PYTHON} ({error})")) from error


def _each(name: str, values: list[Any], change: Any) -> list[Any]:
    changed: list[Any] = []
    for row, value in enumerate(values):
        try:
            changed.append(change(value))
        except ValueError as error:
            raise UnfitValueError(row, SampleError(name, value, str(error))) from None
    return changed


def _content(value: Any) -> Any:
    """Return the bytes of a file that Hugging Face datasets store."""
    if value is not None and value["bytes"] is None and value["path"] is not None:
        raise ValueError(_NO_PATH)
    return None if value is None else value["bytes"]
