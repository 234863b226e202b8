"""Infer encodings from values."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

_ROWS = 1_000
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


def columns_of_rows(rows: Iterable[Mapping[str, Any]], *, is_thorough: bool = False) -> dict[str, str]:
    """Return an encoding for each column, inferred from the first 1,000 rows, or from all.

    A column that is missing or null in one of them is ``json``.

    Args:
        rows: The rows.
        is_thorough: Whether to look at all rows.
    """
    columns: dict[str, ColumnKinds] = {}
    for number, row in enumerate(rows if is_thorough else islice(rows, _ROWS)):
        for name in row:
            if name not in columns:
                columns[name] = ColumnKinds()
                if number:
                    columns[name].add(None)
        for name, kinds in columns.items():
            kinds.add(row.get(name))
    return {name: kinds.encoding for name, kinds in columns.items()}
