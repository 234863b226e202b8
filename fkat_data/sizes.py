"""Parse sizes and counts with suffixes: ``"64mb"`` bytes, ``"2m"`` samples."""

import math

from fkat_data.arguments import is_number
from fkat_data.errors import ConfigurationError

__all__ = ["count_of", "size_bytes_of"]

_BYTES = {suffix: 1024**power for power, suffix in enumerate(("kb", "mb", "gb", "tb", "pb", "eb", "zb", "yb"), start=1)}
# More than any size has; Python refuses to convert thousands of digits.
_MOST_DIGITS = 100
_COUNTS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def size_bytes_of(argument: str, value: object) -> int:
    """Return a size in bytes, from a number or a string such as ``"100"``, ``"100b"``, ``"64mb"`` or ``"1.5gb"``.

    Units are powers of 1024.

    Raises:
        ConfigurationError: ``value`` is not a size.
    """
    expected = "a size in bytes: a number, or a string such as '100b', '64mb' or '1.5gb'"
    if isinstance(value, str):
        text = value.lower().strip()
        if text[-2:] in _BYTES:
            return _scaled(argument, value, text[:-2], _BYTES[text[-2:]], expected)
        return _digits(argument, value, text.removesuffix("b"), expected)
    return _number(argument, value, expected)


def count_of(argument: str, value: object) -> int:
    """Return a count, from a number or a string such as ``"100"``, ``"64k"``, ``"1.5m"``, ``"2b"`` or ``"1t"``.

    Units are powers of 1000.

    Raises:
        ConfigurationError: ``value`` is not a count.
    """
    expected = "a count: a number, or a string such as '100', '64k', '1.5m' or '2b' (10^9)"
    if isinstance(value, str):
        text = value.lower().strip()
        if text[-1:] in _COUNTS:
            return _scaled(argument, value, text[:-1], _COUNTS[text[-1:]], expected)
        return _digits(argument, value, text, expected)
    return _number(argument, value, expected)


def _scaled(argument: str, value: str, number: str, unit: int, expected: str) -> int:
    try:
        return int(float(number) * unit)
    except (ValueError, OverflowError):
        raise ConfigurationError(argument, value, expected) from None


def _digits(argument: str, value: str, text: str, expected: str) -> int:
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise ConfigurationError(argument, value, expected)
    return int(text)


def _number(argument: str, value: object, expected: str) -> int:
    if not is_number(value) or not math.isfinite(value):
        raise ConfigurationError(argument, value, expected)
    return int(value)
