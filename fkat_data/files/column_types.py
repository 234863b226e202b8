"""The types of an Arrow column's samples, and that column with the numbers that other files' samples need.

Writers differ in how they hold a value: texts with offsets of 32 or 64 bits or as views, as dictionaries, names of list
items, nullability.
"""

import json
from typing import Any

from fkat_data.files.sample_types import NUMBERS, SampleType
from fkat_data.runtime.machine import required

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_types = _arrow.types

_ARROW = {**{name: getattr(_arrow, dtype)() for name, dtype in NUMBERS.items()}, "bool": _arrow.bool_()}
_UTC = ("utc", "etc/utc", "z", "zulu", "gmt", "etc/gmt", "+00:00", "-00:00", "+0000", "+00")


def sample_type(kind: Any) -> SampleType:
    """Return what the samples of a column of an Arrow type are."""
    if isinstance(kind, _arrow.BaseExtensionType):
        return "bool" if kind.extension_name == "arrow.bool8" else ["extension", str(kind)]
    if _types.is_dictionary(kind):
        return sample_type(kind.value_type)
    if _types.is_struct(kind):
        return ["struct", {field.name: sample_type(field.type) for field in kind}]
    if _types.is_map(kind):
        return ["map", sample_type(kind.key_type), sample_type(kind.item_type)]
    if not hasattr(kind, "value_type"):
        return _leaf(kind)
    size = [kind.list_size] if _types.is_fixed_size_list(kind) else []
    return ["fixed" if size else "list", *size, sample_type(kind.value_type)]


def _leaf(kind: Any) -> SampleType:
    name = str(kind)
    if name in ("large_string", "string_view"):
        return "string"
    if name in ("large_binary", "binary_view") or _types.is_fixed_size_binary(kind):
        return "binary"
    if _types.is_decimal(kind):
        return "decimal"
    if _types.is_date(kind):
        return "date"
    if _types.is_timestamp(kind) or _types.is_time(kind) or _types.is_duration(kind):
        # Nanoseconds are NumPy's; all other units are Python's.
        unit = "[ns]" if kind.unit == "ns" else ""
        zone = getattr(kind, "tz", None)
        at = "" if zone is None else f" in {'UTC' if zone.lower() in _UTC else zone}"
        return f"{name.partition('[')[0].rstrip('0123456789')}{unit}{at}"
    return name


def fitted(column: Any, kind: SampleType | str) -> Any:
    """Return a column of a file with the numbers of a type that other files' samples need, too.

    Args:
        column: A column of a table or a batch.
        kind: What ``joined`` has returned for the files; or a text that ``encoding_of`` made of it. Any other text: the
            column is returned.
    """
    target: SampleType = json.loads(kind) if isinstance(kind, str) and kind.startswith("[") else kind
    wanted = _wanted(column.type, target)
    if wanted is column.type or wanted == column.type:
        return column
    if _types.is_null(column.type):
        return _arrow.nulls(len(column), wanted)
    if _types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(wanted)


def _wanted(kind: Any, target: SampleType) -> Any:
    """Return an Arrow type with the numbers of a type; itself where a column has none that would become arrays."""
    if isinstance(kind, _arrow.BaseExtensionType) or (
        not isinstance(target, str) and target[0] not in ("list", "fixed")
    ):
        return kind
    if isinstance(target, str):
        return _ARROW.get(target, kind)
    is_fixed = target[0] == "fixed"
    if _types.is_null(kind):
        value = _wanted(kind, target[-1])
        return kind if value is kind else _arrow.list_(value, target[1] if is_fixed else -1)
    field = kind.value_field.with_type(_wanted(kind.value_type, target[-1]))
    if field.type == kind.value_type:
        return kind
    if is_fixed or _types.is_list(kind):
        return _arrow.list_(field, target[1] if is_fixed else -1)
    return _arrow.large_list(field)
