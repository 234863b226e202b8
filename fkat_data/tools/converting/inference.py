"""Infer encodings from values."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

__all__ = ["columns_of_rows", "encoding_of_values"]

_ROWS = 1_000
_INT64 = range(-(1 << 63), 1 << 63)


def columns_of_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return an encoding for each column, inferred from the first 1,000 rows.

    A column that is missing or null in one of them is ``json``.
    """
    first = list(islice(rows, _ROWS))
    names = dict.fromkeys(name for row in first for name in row)
    return {name: encoding_of_values([row.get(name) for row in first]) for name in names}


def encoding_of_values(values: list[Any]) -> str:
    """Return the narrowest encoding that stores all values unchanged."""
    kinds: set[Any] = {type(value) for value in values}
    if kinds == {int}:
        return "int" if all(value in _INT64 for value in values) else "str_int"
    if kinds == {float}:
        return "float64"
    return {frozenset({str}): "str", frozenset({bytes}): "bytes"}.get(frozenset(kinds), "json")
