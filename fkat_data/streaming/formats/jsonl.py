"""Shards of JSON lines."""

import json
from pathlib import Path
from typing import Any, cast

from fkat_data.interruption import genuine
from fkat_data.streaming.formats.encoding import EncodingError
from fkat_data.streaming.formats.entry import ShardEntry
from fkat_data.streaming.formats.mapping import MapRegister
from fkat_data.streaming.formats.split import SplitReader

__all__ = ["JSONReader"]

# Types of a column's values. Another program may have written a float without a decimal point.
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int)}


class JSONReader(SplitReader):
    """An open shard of JSON lines. Each line is an object with a sample."""

    def __init__(self, directory: Path, entry: ShardEntry, register: MapRegister | None = None) -> None:
        super().__init__(directory, entry, register)
        self._types = [(column.name, column.encoding, _TYPES[column.encoding]) for column in entry.columns]

    def _header(self, entry: ShardEntry) -> bytes:
        del entry
        return b""

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except genuine(RecursionError):
            raise EncodingError("the JSON is nested too deeply") from None
        if not isinstance(value, dict):
            raise EncodingError("not a JSON object")
        sample = cast("dict[str, Any]", value)
        for name, encoding, types in self._types:
            if not isinstance(sample.get(name), types):
                raise EncodingError(f"column {name!r} is missing or not {encoding}")
        return sample
