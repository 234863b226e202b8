"""Parse sizes and counts with suffixes: ``"64mb"`` bytes, ``"2m"`` samples."""

from collections.abc import Mapping

from fkat_data.arguments import is_number
from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine

_BYTES = {suffix: 1024**power for power, suffix in enumerate(("kb", "mb", "gb", "tb", "pb", "eb", "zb", "yb"), start=1)}
_COUNTS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def size_bytes_of(argument: str, value: object) -> int:
    """Return a size in bytes, from a number or a string such as ``"100"``, ``"100b"``, ``"64mb"`` or ``"1.5gb"``.

    Units are powers of 1024.

    Raises:
        ConfigurationError: ``value`` is not a size.
    """
    expected = "a size in bytes: a number, or a string such as '100b', '64mb' or '1.5gb'"
    return _number_of(argument, value, {**_BYTES, "b": None}, expected)


def count_of(argument: str, value: object) -> int:
    """Return a count, from a number or a string such as ``"100"``, ``"64k"``, ``"1.5m"``, ``"2b"`` or ``"1t"``.

    Units are powers of 1000.

    Raises:
        ConfigurationError: ``value`` is not a count.
    """
    return _number_of(
        argument, value, _COUNTS, "a count: a number, or a string such as '100', '64k', '1.5m' or '2b' (10^9)"
    )


def _number_of(argument: str, value: object, units: Mapping[str, int | None], expected: str) -> int:
    """Return a number that may have one of some units; a unit without a size takes whole numbers alone."""
    try:
        if is_number(value):
            return int(value)
        text = value.lower().strip() if isinstance(value, str) else ""
        unit = next((unit for unit in units if text.endswith(unit)), "")
        number, size = text.removesuffix(unit), units.get(unit)
        if size is not None:
            return int(float(number) * size)
        if number.isdecimal():
            return int(number)
    except genuine(ValueError, OverflowError):  # no number, infinity, or more digits than Python converts
        pass
    raise ConfigurationError(argument, value, expected)
