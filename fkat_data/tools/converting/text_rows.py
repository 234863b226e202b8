"""Read JSON lines, and separated values as spreadsheets write them."""

import csv
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, cast

from fkat_data.errors import ShardCorruptError
from fkat_data.tools.converting.inference import columns_of_rows, encoding_of_values
from fkat_data.tools.converting.row_source import RowSource
from fkat_data.tools.converting.text_input import opened, opened_as_text

__all__ = ["JsonLinesSource", "SeparatedSource"]

_LONGEST_FIELD = 1 << 30
_ROWS = 1_000


class JsonLinesSource(RowSource):
    """A file of JSON lines, plain, gzip (``.gz``) or zstd (``.zst``, ``.zstd``). Blank lines are ignored."""

    def __init__(self, path: str) -> None:
        self.name = path

    def columns(self) -> dict[str, str]:
        """Return encodings inferred from the first 1,000 rows."""
        with closing(self._objects()) as objects:
            return columns_of_rows(objects)

    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the objects. A missing key of a ``json`` column is null."""
        absent = {name: None for name, encoding in columns.items() if encoding == "json"}
        for row in self._objects():
            yield {**absent, **row}

    def _objects(self) -> Generator[dict[str, Any]]:
        with opened(self.name) as lines:
            for number, line in enumerate(lines, start=1):
                if line.isspace():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ShardCorruptError(self.name, f"line {number}: {error}", f"line {number}") from error
                if not isinstance(row, dict):
                    raise ShardCorruptError.of_field(self.name, f"line {number}", "a JSON object", row)
                yield cast("dict[str, Any]", row)


class SeparatedSource(RowSource):
    """A file of comma- or tab-separated values, with quotes where needed and names in its first line.

    Args:
        path: The file, plain, gzip or zstd.
        separator: The character between values.
    """

    def __init__(self, path: str, separator: str) -> None:
        self.name = path
        self._separator = separator

    def columns(self) -> dict[str, str]:
        """Return ``int``, ``float64`` or ``str`` for each column, inferred from the first 1,000 rows."""
        texts: dict[str, list[str]] = {}
        with closing(self._texts()) as rows:
            for row, _ in zip(rows, range(_ROWS), strict=False):
                for name, text in row.items():
                    texts.setdefault(name, []).append(text)
        return {name: _encoding_of_texts(found) for name, found in texts.items()}

    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the rows, with each text parsed for its column's encoding."""
        parsers = {name: _parser_of(encoding) for name, encoding in columns.items()}
        for number, row in enumerate(self._texts(), start=1):
            values: dict[str, Any] = {}
            for name, parse in parsers.items():
                if name not in row:
                    continue  # the writer reports the missing column
                try:
                    values[name] = parse(row[name])
                except ValueError as error:
                    place = f"row {number} (from 1, without the header), column {name!r}"
                    raise ShardCorruptError.of_field(self.name, place, columns[name], row[name]) from error
            yield values

    def _texts(self) -> Generator[dict[str, str]]:
        csv.field_size_limit(_LONGEST_FIELD)
        with opened_as_text(self.name) as file:
            try:
                for row in csv.DictReader(file, delimiter=self._separator, strict=True):
                    found = cast("dict[str | None, str | None]", row)
                    if None in found or None in found.values():
                        raise ShardCorruptError(self.name, f"row {found} has fewer or more values than the header")
                    yield cast("dict[str, str]", found)
            except csv.Error as error:
                raise ShardCorruptError(self.name, str(error)) from error


def _encoding_of_texts(texts: list[str]) -> str:
    for parse in (int, float):
        try:
            return encoding_of_values([parse(text) for text in texts])
        except ValueError:
            continue
    return "str"


def _parser_of(encoding: str) -> Callable[[str], Any]:
    if encoding in ("int", "str_int") or encoding.startswith(("int", "uint")):
        return int
    if encoding.startswith("float") or encoding == "str_float":
        return float
    return str.encode if encoding == "bytes" else json.loads if encoding == "json" else str
