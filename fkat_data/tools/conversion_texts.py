"""Read JSON lines, and separated values as spreadsheets write them."""

import codecs
import contextlib
import csv
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, cast

from fkat_data.datasets import IterableJsonDataset
from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.files.limits import beyond_limit
from fkat_data.files.opening import TextFile
from fkat_data.tools.conversion_columns import ColumnKinds, FloatTexts, FoundColumns, TextKinds, exact_int


class RowSource(ABC):
    """The rows of a file, or of part of a folder. It can be pickled and read in another process.

    Attributes:
        name: The name to use in messages.
    """

    name: str

    @abstractmethod
    def infer(self, found: FoundColumns) -> None:
        """Take the file's schema, or its first rows, into account.

        Raises:
            ShardCorruptError: The file is damaged.
            ConfigurationError: Its samples have no type together with those of the files before.
        """

    def settle(self, found: FoundColumns) -> None:
        """Take what all files have said into account, where rows depend on it."""

    @abstractmethod
    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the rows as samples for a writer of these columns.

        Raises:
            ShardCorruptError: The file is invalid. The message names the line or the row.
            SampleError: A value does not fit its column's encoding. A note names the row.
        """

    def names(self) -> Iterable[str]:
        """Return the columns of every row; none where each row, or the kind of source, has its own.

        Raises:
            ShardCorruptError: The file is invalid.
        """
        return ()

    def __repr__(self) -> str:
        return repr(self.name)


def check_unique(names: Iterable[str], file: str, location: str) -> None:
    """Check that a table has each name once.

    Args:
        names: The names of its columns that are read.
        file: The file.
        location: Where the names stand in it.

    Raises:
        ConfigurationError: A name comes twice.
    """
    for name, count in Counter(names).items():
        if count > 1:
            expected = f"a table with each name once; in its {location}, {name!r} comes {count} times"
            raise ConfigurationError("paths", file, expected)


_ROWS = 1_000
_LONGEST_FIELD = 1 << 30
_LONGEST_LINE_BYTES = 1 << 62
_LONGEST_REASON = 500


class JsonLinesSource(RowSource):
    """A file of JSON lines, plain, gzip, zstd, xz or bz2. Blank lines are ignored.

    Args:
        path: The file.
        given: Columns whose encoding the user has chosen: it decides what becomes of true, false and large numbers.
            In other columns, a value that a number would change is an error.
    """

    def __init__(self, path: str, given: Collection[str] = ()) -> None:
        self.name = path
        self._given = frozenset(given)

    def infer(self, found: FoundColumns) -> None:
        """Look at the first 1,000 rows, or at all if they may have nulls; what a row lacks is null."""
        columns = found.of_kind(ColumnKinds)
        is_first, names = not columns, dict[str, None]()
        with closing(self._objects()) as objects:
            for number, row in enumerate(objects if found.allows_nulls else islice(objects, _ROWS)):
                for name in row:
                    if name not in columns:
                        columns[name] = ColumnKinds()
                        if number or not is_first:
                            columns[name].add(None)
                names.update(dict.fromkeys(row))
                for name, kinds in columns.items():
                    kinds.add(row.get(name))
        found.add_file(self.name, ColumnKinds, names)

    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the objects. A missing key of a ``json`` column is null."""
        absent = {name: None for name, encoding in columns.items() if encoding == "json"}
        numbers = {
            name: encoding
            for name, encoding in columns.items()
            if encoding in ("int", "float64") and name not in self._given
        }
        for number, row in enumerate(self._objects(), start=1):
            for name, encoding in numbers.items():
                if not is_kept(row.get(name), encoding):
                    location = f"row {number} (from 1)"
                    raise unlike_others(self.name, location, name, encoding, row[name], "'json'} keeps all values")
            yield {**absent, **row}

    def _objects(self) -> Generator[dict[str, Any]]:
        dataset = IterableJsonDataset(self.name, max_line_bytes=_LONGEST_LINE_BYTES)
        for row, location in dataset.located_samples():
            if not isinstance(row, dict):
                expected = f"a JSON object on each line; {dataset.location_text(location)} has another value: {row!r}"
                raise ConfigurationError("paths", self.name, expected[:_LONGEST_REASON])
            yield cast("dict[str, Any]", row)


def unlike_others(
    file: str, location: str, column: str, encoding: str, value: object, keeps: str
) -> ConfigurationError:
    """Return the error of a value that the encoding of its column, which other rows have suggested, would change.

    Args:
        file: The file.
        location: The row.
        column: The column.
        encoding: Its encoding.
        value: The value.
        keeps: The encoding that would keep the value, and what else there is to say of it; "": the user has chosen one.
    """
    found = f"{location} of {file} has {value!r}"[:_LONGEST_REASON]
    if not keeps:
        return ConfigurationError("columns", column, f"texts of {encoding}, as you have chosen; {found}")
    expected = f"values of {encoding}, as other rows suggest; {found}: columns={{{column!r}: {keeps}"
    return ConfigurationError("columns", column, expected)


class SeparatedSource(RowSource):
    """A file of comma- or tab-separated values, with quotes where needed and names in its first line.

    Args:
        path: The file, plain, gzip, zstd, xz or bz2.
        separator: The character between values.
        given: Columns whose encoding the user has chosen: their texts become numbers as Python makes them, ``007`` is 7.
            In other columns, a number that would not keep its text is an error.
    """

    def __init__(self, path: str, separator: str, given: Collection[str] = ()) -> None:
        self.name = path
        self._separator = separator
        self._given = frozenset(given)
        self._kinds: dict[str, TextKinds] = {}

    def infer(self, found: FoundColumns) -> None:
        """Look at the texts of the first 1,000 rows: they are ``int``, ``float64`` or ``str``.

        Texts that a number would not keep, such as ``00123``, ``+7``, ``12E3`` and what ``float64`` would round, are
        ``str``, and so is a column with ``1.9`` and ``1.10``: a fraction ends with a zero only where all are as long.

        If they may have nulls, all rows count, and a column of numbers and empty texts is ``json``.
        """
        columns, names = found.of_kind(TextKinds), list[str]()
        with closing(self._texts(found.only)) as rows:
            for row in rows if found.allows_nulls else islice(rows, _ROWS):
                names = names or list(row)
                for name, text in row.items():
                    if name not in columns:
                        columns[name] = TextKinds(found.allows_nulls)
                    columns[name].add(text)
        found.add_file(self.name, TextKinds, names)

    def settle(self, found: FoundColumns) -> None:
        """Parse texts as those of all files are."""
        self._kinds = dict(found.of_kind(TextKinds))

    def names(self) -> Iterable[str]:
        """Return the names in the header."""
        with self._errors(_RowCounter()):
            return list(self._reader().fieldnames or ())

    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the rows, with each text parsed for its column's encoding.

        In a ``json`` column that the user has not chosen, the texts of a column of texts stay texts.
        """
        parsers = {name: self._parser(name, encoding) for name, encoding in columns.items()}
        for number, row in enumerate(self._texts(columns), start=1):
            values: dict[str, Any] = {}
            for name, parse in parsers.items():
                if name not in row:
                    if columns[name] == "json":
                        values[name] = None
                    continue  # the writer reports any other missing column
                try:
                    values[name] = parse(row[name])
                except ValueError as error:
                    location = f"row {number} (from 1, without the header)"
                    keeps = "" if name in self._given else "'str'} keeps all texts of the column"
                    raise unlike_others(self.name, location, name, columns[name], row[name], keeps) from error
            yield values

    def _parser(self, name: str, encoding: str) -> Callable[[str], Any]:
        if name in self._given:
            return parser_of(encoding, int, float)
        kinds = self._kinds.get(name)
        as_float = (FloatTexts() if kinds is None else kinds.float_texts()).parse
        if encoding == "json":
            are_texts = kinds is not None and kinds.encoding == "str"
            return str if are_texts else partial(_value_of, parsers=(exact_int, as_float))
        return parser_of(encoding, exact_int, as_float)

    def _texts(self, chosen: Collection[str]) -> Generator[dict[str, str]]:
        counter = _RowCounter()
        with self._errors(counter):
            reader = self._reader()
            check_unique(
                [name for name in reader.fieldnames or () if not chosen or name in chosen], self.name, "header"
            )
            counter.next(reader)
            for number, row in enumerate(reader, start=1):
                counter.next(reader)
                found = cast("dict[str | None, str | None]", row)
                if None in found or None in found.values():
                    named = f"row {number} (from 1, without the header)"
                    reason = f"{named} has fewer or more values than the header: {found}"[:_LONGEST_REASON]
                    raise ShardCorruptError(self.name, reason)
                yield cast("dict[str, str]", found)

    def _reader(self) -> "csv.DictReader[str]":
        csv.field_size_limit(_LONGEST_FIELD)
        return csv.DictReader(_lines_of(self.name), delimiter=self._separator, strict=True)

    @contextmanager
    def _errors(self, counter: "_RowCounter") -> Generator[None]:
        try:
            yield
        except csv.Error as error:
            if "field limit" in str(error):
                limit = f"a value has more than {_LONGEST_FIELD:,} characters"
                raise beyond_limit(self.name, counter.text, limit) from error
            advice = "a value that begins with a quote ends with one, and each quote within it is doubled"
            raise ShardCorruptError(self.name, f"{counter.text}: {error}; {advice}", counter.text) from error


class _RowCounter:
    """The number of the next row of separated values, and the line in which it begins, in words."""

    def __init__(self) -> None:
        self.text = "the header"
        self._num_rows = 0

    def next(self, reader: "csv.DictReader[str]") -> None:
        """Go on to the row behind what a reader has read."""
        self._num_rows += 1
        self.text = f"row {self._num_rows} (from 1, without the header), which begins in line {reader.line_num + 1}"


_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)")


def _lines_of(path: str) -> Iterator[str]:
    """Yield the lines of a file of UTF-8, each with its end as it is.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: Compressed bytes are invalid.
        ConfigurationError: The file is no text, or none in UTF-8; or it is zstd, and zstandard is not installed.
    """
    rest, num_bytes, num_lines = "", 0, 0
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    for chunk in chain(TextFile(path, {}).chunks(), [b""]):
        num_bytes += len(chunk)
        try:
            text = rest + decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line = num_lines + 1 + error.object.count(b"\n", 0, error.start)
            found = f"byte {error.object[error.start]:#x} at byte {num_bytes - len(error.object) + error.start:,}"
            expected = (
                f"text in UTF-8; line {line} (from 1) has {found}, which is none: if the text is of another encoding, "
                "write it as UTF-8 first, such as with `iconv -f LATIN1 -t UTF-8 FILE`"
            )
            raise ConfigurationError("paths", path, expected) from error
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        num_lines += text.count("\n", 0, end)
        yield from _LINE.findall(text[:end])
        rest = text[end:]
    if rest:
        yield rest


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
        return partial(_value_of, parsers=(json.loads, as_int, as_float))
    return str.encode if encoding == "bytes" else str


def is_kept(value: object, encoding: str) -> bool:
    """Return whether an ``int`` or ``float64`` column keeps a value, if it takes it at all."""
    if not isinstance(value, int):
        return True
    try:
        return not isinstance(value, bool) and (encoding == "int" or int(float(value)) == value)
    except OverflowError:
        return False


def _value_of(text: str, parsers: Sequence[Callable[[str], Any]]) -> Any:
    """Return what the first of some parsers makes of a text; nothing is null."""
    if not text:
        return None
    for parse in parsers:
        with contextlib.suppress(ValueError):
            return parse(text)
    raise ValueError(text)
