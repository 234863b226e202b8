"""The types of a column's samples, and the type that holds those of several files, each unchanged.

A type says what a sample is alone, and not how a writer held it. It is plain JSON: a name such as ``"string"`` or
``"int64"``, or a list such as ``["list", "int64"]``. ``column_types`` has the types of Arrow's columns.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from fkat_data.errors import ConfigurationError
from fkat_data.files.opening import shown_path

SampleType: TypeAlias = str | list[Any]

#: Each type of numbers, and its dtype.
NUMBERS = {
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
_NAMES = {dtype: name for name, dtype in NUMBERS.items()}


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
    if first not in NUMBERS or second not in NUMBERS:
        return None
    dtypes = [np.dtype(NUMBERS[first]), np.dtype(NUMBERS[second])]
    wider = np.promote_types(*dtypes)
    # Of signed and unsigned integers of 64 bits, NumPy makes floats, which round; and 1 is not 1.0 to a model.
    return _NAMES[wider.name] if len({dtype.kind in "iu" for dtype in (*dtypes, wider)}) == 1 else None


def of_several_types(column: str, found: tuple[str, str], before: tuple[str, str], remedy: str) -> ConfigurationError:
    """Return the error of a column whose samples are of no one type in all files.

    Args:
        column: The column.
        found: A file, and how it holds the column.
        before: A file before it, and how that one does.
        remedy: What would do.
    """
    expected = f"a column of one type; it is {found[1]} in {found[0]}, and {before[1]} in {before[0]}"
    return ConfigurationError("columns", column, f"{expected}: {remedy}")


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
                raise of_several_types(name, (shown, text), (before, held), "choose the others with columns=[...]")
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
