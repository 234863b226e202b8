"""What the samples of a column are, and whether files of several writers have the same ones.

Writers differ in how they hold a value: texts with offsets of 32 or 64 bits or as views, as dictionaries, names of list
items, nullability. A type here says what a sample is alone. It is plain JSON: a name such as ``"string"`` or ``"int64"``,
or a list such as ``["list", "int64"]``.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from fkat_data.errors import ConfigurationError
from fkat_data.files.opening import shown_path
from fkat_data.machine import required

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_types = _arrow.types

SampleType: TypeAlias = str | list[Any]

_NUMBERS = {
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
_NAMES = {dtype: name for name, dtype in _NUMBERS.items()}
_ARROW = {**{name: getattr(_arrow, dtype)() for name, dtype in _NUMBERS.items()}, "bool": _arrow.bool_()}
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


def joined(first: SampleType, second: SampleType) -> SampleType | None:
    """Return the type that has the samples of both, each unchanged; None: there is none."""
    if second in (first, "null"):
        return first
    if first == "null":
        return second
    if isinstance(first, str) or isinstance(second, str):
        return _wider(first, second) if isinstance(first, str) and isinstance(second, str) else None
    if first[0] != second[0] or len(first) != len(second) or first[0] == "extension":
        return None
    parts = [_joined_parts(*pair) for pair in zip(first[1:], second[1:], strict=True)]
    return None if None in parts else [first[0], *parts]


def _joined_parts(first: Any, second: Any) -> Any:
    if isinstance(first, int):
        return first if first == second else None
    if not isinstance(first, dict):
        return joined(first, second)
    fields, others = cast("dict[str, SampleType]", first), cast("dict[str, SampleType]", second)
    if fields.keys() != others.keys():
        return None
    parts = {name: joined(kind, others[name]) for name, kind in fields.items()}
    return None if None in parts.values() else parts


def _wider(first: str, second: str) -> str | None:
    """Return the narrowest type of numbers that holds those of both."""
    if first not in _NUMBERS or second not in _NUMBERS:
        return None
    dtypes = [np.dtype(_NUMBERS[first]), np.dtype(_NUMBERS[second])]
    wider = np.promote_types(*dtypes)
    # Of signed and unsigned integers of 64 bits, NumPy makes floats, which round; and 1 is not 1.0 to a model.
    return _NAMES[wider.name] if len({dtype.kind in "iu" for dtype in (*dtypes, wider)}) == 1 else None


class ColumnTypes:
    """The columns of files that are read as one dataset.

    Args:
        columns: The columns to read; None: those of the first file, which all must have and no others.

    Attributes:
        types: The type of each column, of all files so far.
    """

    def __init__(self, columns: Sequence[str] | None) -> None:
        self.types: dict[str, SampleType] = {}
        self._columns = columns
        self._first: dict[str, tuple[str, str]] = {}  # the file that a type is of, and how that file holds it
        self._first_file: str | None = None

    def add(self, file: str, present: Sequence[tuple[str, str, SampleType]]) -> None:
        """Take a file into account.

        Args:
            file: The file.
            present: Its columns: name, Arrow type, and type of samples.

        Raises:
            ConfigurationError: It lacks a column, has one that the first lacks, or samples that are no type together with
                those of the files before; or it has two columns of one name.
        """
        shown = shown_path(file)
        for name, count in Counter(name for name, *_ in present).items():
            if count > 1 and (self._columns is None or name in self._columns):
                expected = f"names that a file has once; in {shown} it comes {count} times"
                raise ConfigurationError("columns", name, f"{expected}: choose the others with columns=[...]")
        of_file = {name: (text, kind) for name, text, kind in present}
        if self._first_file is None:
            self._first_file = shown
            for name in of_file if self._columns is None else self._columns:
                self.types[name] = "null"
        for name in self.types:
            if name not in of_file:
                beside = "" if shown == self._first_file else f"; {self._first_file} has it, choose those of all files"
                raise ConfigurationError("columns", name, f"columns of {shown}: {', '.join(of_file)}{beside}")
            text, kind = of_file[name]
            before, held = self._first.setdefault(name, (shown, text))
            together = joined(self.types[name], kind)
            if together is None:
                expected = f"a column of one type; it is {text} in {shown}, and {held} in {before}"
                raise ConfigurationError("columns", name, f"{expected}: choose the others with columns=[...]")
            if together != self.types[name]:
                self._first[name] = (shown, text)
            self.types[name] = together
        more = [name for name in of_file if name not in self.types] if self._columns is None else []
        if more:
            expected = f"a column that all files have; {shown} has it, and {self._first_file} has not"
            raise ConfigurationError("columns", more[0], f"{expected}: choose the columns with columns=[...]")


def encoding_of(kind: SampleType) -> str:
    """Return a type as text."""
    return kind if isinstance(kind, str) else json.dumps(kind)


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
