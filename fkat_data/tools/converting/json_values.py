"""Turn values of Arrow types that JSON lacks into those that it has."""

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

from fkat_data.tools.converting.table_types import NUMBERS, is_text, stored_type

__all__ = ["is_plain", "plain_value"]


def is_plain(types: Any, kind: Any) -> bool:
    """Return whether JSON has all values of an Arrow type."""
    if types.is_struct(kind):
        return all(is_plain(types, field.type) for field in kind)
    if _is_list(types, kind):
        return is_plain(types, kind.value_type)
    return is_text(kind) or str(kind) in NUMBERS or types.is_boolean(kind) or types.is_null(kind)


def plain_value(types: Any, kind: Any, value: Any) -> Any:
    """Return a value with what JSON lacks as text, and a map with texts as keys as a dict.

    Args:
        types: The module ``pyarrow.types``.
        kind: Its Arrow type.
        value: What pyarrow makes of it.

    Raises:
        ValueError: A key of a map comes twice.
    """
    kind = stored_type(kind)
    if value is None:
        return None
    if types.is_map(kind):
        return _plain_map(types, kind, value)
    if types.is_struct(kind):
        return {field.name: plain_value(types, field.type, value[field.name]) for field in kind}
    if _is_list(types, kind):
        return [plain_value(types, kind.value_type, item) for item in value]
    return _plain_leaf(value)


def _plain_map(types: Any, kind: Any, value: Any) -> Any:
    pairs = [(plain_value(types, kind.key_type, key), plain_value(types, kind.item_type, item)) for key, item in value]
    if not is_text(stored_type(kind.key_type)):
        return pairs
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a map with each key once")
    return dict(pairs)


def _plain_leaf(value: Any) -> Any:
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    return str(value) if isinstance(value, (dt.timedelta, Decimal, UUID)) else value


def _is_list(types: Any, kind: Any) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
