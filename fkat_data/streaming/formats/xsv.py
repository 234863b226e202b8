"""Shards of separated values, such as CSV and TSV."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fkat_data.streaming.formats.encoding import EncodingError
from fkat_data.streaming.formats.entry import ShardEntry
from fkat_data.streaming.formats.mapping import MapRegister
from fkat_data.streaming.formats.split import SplitReader

__all__ = ["XSVReader"]

_PARSERS: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}


class XSVReader(SplitReader):
    """An open shard of separated values. The first line has the columns' names. Quotes have no special meaning."""

    def __init__(self, directory: Path, entry: ShardEntry, register: MapRegister | None = None) -> None:
        self._separator = entry.separator
        super().__init__(directory, entry, register)
        self._parsers = [(column.name, _PARSERS[column.encoding]) for column in entry.columns]

    def _header(self, entry: ShardEntry) -> bytes:
        return (entry.separator.join(column.name for column in entry.columns) + entry.newline).encode()

    def _parsed(self, line: bytes) -> dict[str, Any]:
        values = line.decode().split(self._separator)
        if len(values) != len(self._parsers):
            raise EncodingError(f"{len(values)} values for {len(self._parsers)} columns")
        return {name: parse(value) for (name, parse), value in zip(self._parsers, values, strict=True)}
