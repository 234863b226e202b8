"""Make numbers of texts, unless a number would change what the text says."""

import contextlib
import json
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fkat_data.tools.converting.inference import ColumnKinds

#: A text that is no number, though Python parses it as one: a number would not keep its zeros, or its underscores.
_NO_NUMBER = re.compile(r"\s*[+-]?0\d|.*_")


class TextKinds:
    """The narrowest encoding that stores the texts of a column as numbers, or as texts.

    Args:
        allows_nulls: Whether an empty text among numbers is null.
    """

    def __init__(self, allows_nulls: bool) -> None:
        self._allows_nulls = allows_nulls
        self._has_null = False
        self._has_value = False
        self._kinds: dict[Callable[[str], Any], ColumnKinds] = {exact_int: ColumnKinds(), exact_float: ColumnKinds()}

    def add(self, text: str) -> None:
        """Take a text into account."""
        if self._allows_nulls and not text:
            self._has_null = True
            return
        self._has_value = True
        for parse in list(self._kinds):
            try:
                self._kinds[parse].add(parse(text))
            except ValueError:
                del self._kinds[parse]

    @property
    def encoding(self) -> str:
        """The encoding."""
        if not self._kinds or not self._has_value:
            return "str"
        return "json" if self._has_null else next(iter(self._kinds.values())).encoding


def parser_of(encoding: str, as_int: Callable[[str], int], as_float: Callable[[str], float]) -> Callable[[str], Any]:
    """Return what parses texts for an encoding.

    Args:
        encoding: The encoding.
        as_int: Parses an int.
        as_float: Parses a float.
    """
    if encoding in ("int", "str_int") or encoding.startswith(("int", "uint")):
        return as_int
    if encoding.startswith("float") or encoding == "str_float":
        return as_float
    if encoding == "json":
        return partial(_json_value, parsers=(json.loads, as_int, as_float))
    return str.encode if encoding == "bytes" else str


def exact_int(text: str) -> int:
    """Return the int that a text is.

    Raises:
        ValueError: It is none, or one that would not keep its text.
    """
    if _NO_NUMBER.match(text):
        raise ValueError(text)
    return int(text)


def exact_float(text: str) -> float:
    """Return the float that a text is, rounded if it has a fraction.

    Raises:
        ValueError: It is none, one that would not keep its text, a whole number that would be rounded, or too large.
    """
    number = float(text)
    is_rounded = text.strip().lstrip("+-").isdecimal() and not is_kept(int(text), "float64")
    is_too_large = math.isinf(number) and "inf" not in text.lower()
    if is_rounded or is_too_large or _NO_NUMBER.match(text):
        raise ValueError(text)
    return number


def is_kept(value: object, encoding: str) -> bool:
    """Return whether an ``int`` or ``float64`` column keeps a value, if it takes it at all."""
    if not isinstance(value, int):
        return True
    try:
        return not isinstance(value, bool) and (encoding == "int" or int(float(value)) == value)
    except OverflowError:
        return False


def _json_value(text: str, parsers: Sequence[Callable[[str], Any]]) -> Any:
    """Return the value of a text of JSON; a number may be written as Python does, and nothing is null."""
    if not text:
        return None
    for parse in parsers:
        with contextlib.suppress(ValueError):
            return parse(text)
    raise ValueError(text)
