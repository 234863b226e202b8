"""Times in columns of Arrow tables: what Python's types lose of them, and times of 96 bits in Parquet files.

Python's times have microseconds. Arrow's have nanoseconds in 64 bits, the years 1677 to 2262; Parquet's Int96, which
Spark, Hive and Impala write, has nanoseconds of any year, of which pyarrow wraps those outside.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from fkat_data.files.arrow_extensions import TensorShape, is_honoured, is_refused
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import required

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_compute = required("pyarrow.compute", "parquet")

_SECOND = 10**9
#: All times with fewer fit in 64 bits of nanoseconds.
_SURE_SECONDS = (1 << 63) // _SECOND
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - times of 96 bits have no zone
_INT64 = range(-(1 << 63) + 1, 1 << 63)  # NumPy has no time with the least one: it is NaT


def python_form(array: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return an array whose ``to_pylist`` loses nothing, and what makes the values of those; None: they are the values.

    Python's times have microseconds, and pyarrow gives pandas' types for nanoseconds where pandas is installed. So
    times with nanoseconds are NumPy's: ``datetime64[ns]`` in UTC, and ``timedelta64[ns]`` of a duration and since
    midnight. Tensors are nested lists of their shape.
    """
    if not is_restored(array.type):
        return array, None
    return array.cast(_as_integers(array.type)), _restored(array.type)


def columns_of_int96(parquet: Any, leaves: Sequence[int] | None = None) -> frozenset[str]:
    """Return the names of a Parquet file's columns that are, or have within them, times of 96 bits.

    Args:
        parquet: pyarrow's open file.
        leaves: The column chunks to look at; None: all.
    """
    schema = parquet.schema
    # Names are ambiguous: "a.b" is a column, and also the field "b" of a column "a".
    paths: list[list[str]] = parquet.reader.column_paths
    chosen = range(len(paths)) if leaves is None else leaves
    return frozenset(paths[index][0] for index in chosen if schema.column(index).physical_type == "INT96")


def is_beyond_nanoseconds(seconds: Any) -> bool:
    """Return whether a column has a time that 64 bits of nanoseconds may not hold.

    Args:
        seconds: An array of the column, its times of 96 bits read as seconds.
    """
    for leaf in _times_of_seconds(seconds):
        # Of no values, the bounds are None.
        bounds: dict[str, int | None] = _compute.min_max(leaf.cast(_arrow.int64())).as_py()
        if any(bound is not None and abs(bound) >= _SURE_SECONDS for bound in bounds.values()):
            return True
    return False


def exact_form(array: Any, seconds: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return an array with all of a column's times of 96 bits, and what makes the values of what its ``to_pylist`` gives.

    A time that nanoseconds in 64 bits hold is NumPy's, as ``python_form`` has it. Any other is a ``datetime``, as those
    of a column of microseconds are: NumPy would wrap it where both are made one array. In a year that ``datetime`` does
    not have, it is a ``datetime64[us]``.

    Args:
        array: The column.
        seconds: The same, its times of 96 bits read as seconds.
    """
    integers = _as_integers(array.type)
    both = _arrow.StructArray.from_arrays([array.cast(integers), seconds.cast(integers)], ["nanoseconds", "seconds"])
    make = _exact(array.type, seconds.type)
    return both, lambda pair: make(pair["nanoseconds"], pair["seconds"])


def _times_of_seconds(array: Any) -> Iterator[Any]:
    types, kind = _arrow.types, array.type
    if types.is_timestamp(kind) and kind.unit == "s":
        yield array
    elif types.is_map(kind):
        yield from (*_times_of_seconds(array.keys), *_times_of_seconds(array.items))
    elif types.is_struct(kind):
        for part in array.flatten():
            yield from _times_of_seconds(part)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from _times_of_seconds(array.flatten())


def _exact(kind: Any, seconds: Any) -> Callable[[Any, Any], Any]:
    """Return what makes a value of a column's from what both readings of it give."""
    types = _arrow.types
    if kind == seconds:
        restored = _restored(kind)
        return lambda value, _: restored(value)
    if types.is_struct(kind):
        parts = {field.name: _exact(field.type, other.type) for field, other in zip(kind, seconds, strict=True)}
        return _unless_either(
            lambda value, other: {name: part(value[name], other[name]) for name, part in parts.items()}
        )
    if types.is_map(kind):
        key_of, item_of = _exact(kind.key_type, seconds.key_type), _exact(kind.item_type, seconds.item_type)
        return _unless_either(
            lambda value, other: [
                (key_of(key, other_key), item_of(item, other_item))
                for (key, item), (other_key, other_item) in zip(value, other, strict=True)
            ]
        )
    if hasattr(kind, "value_type"):
        item_of = _exact(kind.value_type, seconds.value_type)
        return _unless_either(lambda value, other: list(map(item_of, value, other)))
    return _unless_either(_exact_time)


def _exact_time(nanoseconds: int, seconds: int) -> Any:
    """Return a time of which the nanoseconds are known but for multiples of 2**64."""
    exact = seconds * _SECOND
    exact += (nanoseconds - exact + (1 << 63)) % (1 << 64) - (1 << 63)
    if exact in _INT64:
        return np.datetime64(exact, "ns")
    microseconds, rest = divmod(exact, 1000)
    if rest:
        raise OverflowError(f"a time of {seconds} s since 1970, and of a number of nanoseconds")
    try:
        return _EPOCH + dt.timedelta(microseconds=microseconds)
    except genuine(OverflowError):  # a year that datetime does not have
        return np.datetime64(microseconds, "us")


def _unless_either(make: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, other: None if value is None else make(value, other)


def _numpy_time(unit: Any, nanoseconds: int) -> Any:
    if nanoseconds not in _INT64:
        raise OverflowError(f"{nanoseconds} nanoseconds, which NumPy takes for no time")
    return unit(nanoseconds, "ns")


def with_parts(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return a type of the same form, whose parts a function changed; itself if it has none."""
    types = _arrow.types
    if types.is_struct(kind):
        return _arrow.struct([field.with_type(change(field.type)) for field in kind])
    if types.is_list(kind):
        return _arrow.list_(kind.value_field.with_type(change(kind.value_type)))
    if types.is_large_list(kind):
        return _arrow.large_list(kind.value_field.with_type(change(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return _arrow.list_(kind.value_field.with_type(change(kind.value_type)), kind.list_size)
    if types.is_map(kind):
        return _arrow.map_(change(kind.key_type), kind.item_field.with_type(change(kind.item_type)), kind.keys_sorted)
    return kind


def known_type(kind: Any) -> Any:
    """Return a type with the storage of extensions that are not known, whether the program has registered them or not."""
    if isinstance(kind, _arrow.BaseExtensionType):
        return kind if is_honoured(kind) or is_refused(kind) else known_type(kind.storage_type)
    return with_parts(kind, known_type)


def _is_nanoseconds(kind: Any) -> bool:
    types = _arrow.types
    return (types.is_timestamp(kind) or types.is_duration(kind) or types.is_time64(kind)) and kind.unit == "ns"


def has_nanoseconds(kind: Any) -> bool:
    """Return whether a type is, or has within it, one of times with nanoseconds."""
    return _has(_is_nanoseconds, kind)


def is_restored(kind: Any) -> bool:
    """Return whether ``to_pylist`` does not give the values of a type."""
    return _has(lambda part: _is_nanoseconds(part) or TensorShape.of(part) is not None, kind)


def _has(is_such: Callable[[Any], bool], kind: Any) -> bool:
    if is_such(kind):
        return True
    if isinstance(kind, _arrow.BaseExtensionType):
        return _has(is_such, kind.storage_type)
    if _arrow.types.is_dictionary(kind):
        return _has(is_such, kind.value_type)
    return any(_has(is_such, kind.field(index).type) for index in range(kind.num_fields))


def _as_integers(kind: Any) -> Any:
    if TensorShape.of(kind) is not None:
        return _as_integers(kind.storage_type)
    return _arrow.int64() if _is_nanoseconds(kind) else with_parts(kind, _as_integers)


def _restored(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value of a type from what ``to_pylist`` gives of it with integers for nanoseconds."""
    types = _arrow.types
    if _is_nanoseconds(kind):
        return _unless_none(partial(_numpy_time, np.datetime64 if types.is_timestamp(kind) else np.timedelta64))
    if not is_restored(kind):
        return lambda value: value
    if (tensor := TensorShape.of(kind)) is not None:
        item_of = _restored(kind.value_type)
        return _unless_none(lambda value: tensor.of_values([item_of(item) for item in value]))
    if types.is_struct(kind):
        parts = {field.name: _restored(field.type) for field in kind}
        return _unless_none(lambda value: {name: part(value[name]) for name, part in parts.items()})
    if types.is_map(kind):
        key_of, item_of = _restored(kind.key_type), _restored(kind.item_type)
        return _unless_none(lambda value: [(key_of(key), item_of(item)) for key, item in value])
    item_of = _restored(kind.value_type)
    return _unless_none(lambda value: [item_of(item) for item in value])


def _unless_none(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else make(value)
