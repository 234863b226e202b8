"""The columns of files, and the encoding that stores those of all of them, each value unchanged."""

import contextlib
import copy
import math
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol, TypeVar, cast

from fkat_data.errors import ConfigurationError
from fkat_data.files.sample_types import NUMBERS, SampleType, joined, of_several_types

#: Encodings of numbers, and the types of samples that they store.
_NUMBERS = {
    **{dtype: kind for kind, dtype in NUMBERS.items()},
    "int": "int64",
}
_ENCODINGS: dict[SampleType, str] = {**NUMBERS, "int64": "int"}
#: JSON has no bytes, and these store no null.
NOT_FOR_JSON = ("bytes", "jpeg", "png", "pkl")


class FoundColumn(Protocol):
    """A column, as a file's schema or its first rows describe it."""

    @property
    def encoding(self) -> str:
        """The narrowest encoding that stores its values unchanged."""
        ...


class EncodedColumn:
    """A column of which files say the encoding alone.

    Args:
        encoding: The encoding of the first file.
    """

    def __init__(self, encoding: str) -> None:
        self.encoding: str = encoding
        """The encoding of all files so far."""

    def add(self, encoding: str) -> None:
        """Take the encoding of another file into account; one of them may be ``json``."""
        self.encoding = joined_encoding(self.encoding, encoding) or encoding


def joined_encoding(first: str, second: str) -> str | None:
    """Return the encoding that stores what either stores, each value unchanged; None: there is none."""
    if first == second:
        return first
    if "json" in (first, second):
        return None if {first, second} & {*NOT_FOR_JSON} else "json"
    if first in _NUMBERS and second in _NUMBERS:
        return number_encoding(joined(_NUMBERS[first], _NUMBERS[second]))
    return None


def number_encoding(kind: SampleType | None) -> str | None:
    """Return the encoding of numbers, or of lists of them; None: the type is another one."""
    if kind is None or isinstance(kind, str):
        return None if kind is None else _ENCODINGS.get(kind)
    shape = list[int]()
    leaf: Any = kind
    while isinstance(leaf, list) and leaf[0] == "fixed":
        _, size, leaf = cast("list[Any]", leaf)
        shape.append(size)
    if not shape and isinstance(leaf, list) and leaf[0] == "list":
        _, leaf = cast("list[Any]", leaf)
    if not isinstance(leaf, str) or leaf not in NUMBERS or not all(shape):
        return None
    return f"ndarray:{NUMBERS[leaf]}" + (f":{','.join(map(str, shape))}" if shape else "")


Found = TypeVar("Found", bound=FoundColumn)


class FoundColumns:
    """The columns of all files together.

    Args:
        given: The columns whose encoding the user has chosen.
        only: The columns that are kept; none: all.
        allows_nulls: Whether a column with a value that its encoding cannot store, such as null or an empty list of
            numbers, or that a file lacks, is ``json``. Finding these takes a look at all rows.
    """

    def __init__(self, given: Mapping[str, str], only: Collection[str], allows_nulls: bool) -> None:
        self.given = given
        self.only = only
        self.allows_nulls = allows_nulls
        self._kinds: dict[type[FoundColumn], dict[str, Any]] = {}
        self._files: dict[tuple[type[FoundColumn], str], str] = {}  # the first one with a column
        self._names: dict[str, Collection[str]] = {}  # of each file

    def of_kind(self, kind: "type[Found]") -> "dict[str, Found]":
        """Return what the files of one kind have said, to add to."""
        return self._kinds.setdefault(kind, {})

    def add_file(self, file: str, kind: type[FoundColumn], names: Collection[str]) -> None:
        """Take the names of a file's columns into account; none: it says nothing of them."""
        for name in names:
            self._files.setdefault((kind, name), file)
        if names:
            self._names[file] = names

    def encodings(self) -> dict[str, str]:
        """Return the encoding of each column; if nulls are refused, of each that the first file has.

        Raises:
            ConfigurationError: No encoding stores the values of files of several kinds; or a file lacks a column whose
                encoding stores no null.
        """
        files = list(self._names.values())[: None if self.allows_nulls else 1]
        found = {name: self._encoding(name) for name in dict.fromkeys(name for names in files for name in names)}
        for name, encoding in found.items():
            lacking = [file for file, names in self._names.items() if name not in names]
            if not lacking or name in self.given or (self.only and name not in self.only):
                continue
            if encoding != "json" and (encoding in NOT_FOR_JSON or not self.allows_nulls):
                raise self._lacking(name, lacking[0])
            found[name] = "json"
        return found

    def _lacking(self, name: str, file: str) -> ConfigurationError:
        other = next(other for other, names in self._names.items() if name in names)
        remedy = "leave it out with only=[...]" + ("" if self.allows_nulls else ", or pass nulls='json'")
        expected = f"a column that all files have; {file} has it not, and {other} has: {remedy}"
        return ConfigurationError("columns", name, expected)

    def _encoding(self, name: str) -> str:
        if name in self.given:
            return self.given[name]
        together: tuple[str, str] | None = None
        for kind, columns in self._kinds.items():
            if name not in columns:
                continue
            found = self._files[kind, name], columns[name].encoding
            joined_with = found[1] if together is None else joined_encoding(together[1], found[1])
            if joined_with is None:
                raise of_several_types(name, found, cast("Any", together), one_encoding(name))
            if together is None or joined_with != together[1]:
                together = found[0], joined_with
        return "json" if together is None else together[1]


def one_encoding(column: str) -> str:
    """Return what would do where files hold a column in several ways."""
    return f"columns={{{column!r}: 'json'}} or another encoding stores it as you say, and only=[...] leaves it out"


_INT64 = range(-(1 << 63), 1 << 63)


class ColumnKinds:
    """The kinds of values that a column has shown so far."""

    def __init__(self) -> None:
        self._types: set[Any] = set()
        self._has_large_int = False

    def add(self, value: Any) -> None:
        """Take a value into account."""
        self._types.add(type(value))
        self._has_large_int |= type(value) is int and value not in _INT64

    @property
    def encoding(self) -> str:
        """The narrowest encoding that stores all these values unchanged."""
        if self._types == {int}:
            return "str_int" if self._has_large_int else "int"
        names: dict[Any, str] = {float: "float64", str: "str", bytes: "bytes"}
        return names.get(next(iter(self._types)), "json") if len(self._types) == 1 else "json"


def exact_int(text: str) -> int:
    """Return the int that a text is.

    Raises:
        ValueError: It is none, or would be another text of it.
    """
    number = int(text)
    if str(number) != text:
        raise ValueError(text)
    return number


#: A decimal number as programs write it. What has zeros before it, a plus or blanks is a code, or a telephone number.
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)?(?:\.([0-9]+))?(?:e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)


class FloatTexts:
    """Parses the texts of a column of floats, and refuses those that say more than their number.

    Attributes:
        has_point: Whether one of them has a point.
    """

    def __init__(self) -> None:
        self.has_point = False
        self._lengths: set[int] = set()  # of what is behind the point
        self._zeros: set[int] = set()  # of those that end with a zero, such as 1.10

    def parse(self, text: str) -> float:
        """Return the float that a text is.

        Raises:
            ValueError: It is none; it is written as no float of the others is; or a float would not keep its digits.
        """
        number = float(text)
        found = _DECIMAL.fullmatch(text)
        fraction: str = (found and found[1]) or ""
        if repr(number) != text and not (found and _keeps(number, text, fraction)):
            raise ValueError(text)
        if found and (fraction or "e" not in text):
            self.has_point |= bool(fraction)
            self._lengths.add(len(fraction))
            self._zeros |= {len(fraction)} if fraction.endswith("0") else set()
            # 2.0 is the shortest text of a float, and 2 beside it another one.
            if len(self._lengths) > 1 and (max(self._zeros, default=0) > 1 or (self._zeros and 0 in self._lengths)):
                raise ValueError(text)
        return number


def _keeps(number: float, text: str, fraction: str) -> bool:
    """Return whether a float has the value of a text, or is written so with as many digits."""
    has_exponent = "e" in text.lower()
    if math.isinf(number) or (has_exponent and not fraction):
        return False
    rounded = f"{number:.{len(fraction)}{'e' if has_exponent else 'f'}}"
    with contextlib.suppress(InvalidOperation):  # an exponent that even Decimal does not hold
        return text == rounded or Decimal(text) in (Decimal(rounded), Decimal(repr(number)))
    return False


class TextKinds:
    """The narrowest encoding that stores the texts of a column as numbers, or as texts.

    Args:
        allows_nulls: Whether an empty text among numbers is null.
    """

    def __init__(self, allows_nulls: bool) -> None:
        self._allows_nulls = allows_nulls
        self._has_null = False
        self._has_value = False
        self._floats = FloatTexts()
        self._parsers: dict[str, Callable[[str], Any]] = {"int": exact_int, "float64": self._floats.parse}
        self._ints = ColumnKinds()

    def add(self, text: str) -> None:
        """Take a text into account."""
        if self._allows_nulls and not text:
            self._has_null = True
            return
        self._has_value = True
        for encoding, parse in list(self._parsers.items()):
            try:
                number = parse(text)
            except ValueError:
                del self._parsers[encoding]
            else:
                if encoding == "int":
                    self._ints.add(number)

    @property
    def encoding(self) -> str:
        """The encoding."""
        is_int, is_float = "int" in self._parsers, "float64" in self._parsers and self._floats.has_point
        if not self._has_value or not (is_int or is_float):
            return "str"
        if self._has_null:
            return "json"
        return self._ints.encoding if is_int else "float64"

    def float_texts(self) -> FloatTexts:
        """Return what parses a text that comes beside those so far."""
        return copy.deepcopy(self._floats) if "float64" in self._parsers else FloatTexts()
