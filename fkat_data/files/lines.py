"""Files of lines: JSON, by an index of their lines; and shards of JSON and of separated values."""

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.files.encoding import EncodingError
from fkat_data.files.limits import beyond_limit, limit_of
from fkat_data.files.mapping import mapped, offsets_of
from fkat_data.files.offsets import Offsets
from fkat_data.files.opening import shown_path
from fkat_data.files.shard import (
    ReadOptions,
    ShardEntry,
    checked_row,
    checked_rows,
)
from fkat_data.files.sidecar import read_sidecar, write_sidecar
from fkat_data.runtime.interruption import genuine
from fkat_data.storage.file_identity import FileIdentity


class SplitReader(ABC):
    """An open shard of lines.

    Args:
        directory: Directory of the dataset.
        entry: The shard.
        options: How its rows are read.

    Raises:
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file's size, its offsets or its header contradict the index.
    """

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        if entry.raw_meta is None:
            raise TypeError(f"a shard of format {entry.format!r} needs a file of offsets")
        self.num_samples: int = entry.samples
        self._names = [column.name for column in entry.columns if entry.chosen is None or column.name in entry.chosen]
        self._is_whole = entry.chosen is None
        self._path = directory / entry.raw_data.basename
        self._content = mapped(self._path, entry.raw_data, options.register)
        meta_path = directory / entry.raw_meta.basename
        meta = mapped(meta_path, entry.raw_meta, options.register)
        self._offsets = offsets_of(meta_path, meta, entry.samples, entry.raw_data.bytes)
        self._newline = entry.newline.encode()
        header = self._header(entry)
        if bytes(self._content[: self._offsets.item(0)]) != header:
            found = bytes(self._content[: min(self._offsets.item(0), 2 * len(header) + 1)])
            raise ShardCorruptError.of_field(self._path, "header", repr(header), found)

    def sample(self, row: int) -> dict[str, Any]:
        """Return a sample; see ``ShardReader``."""
        line = bytes(self.raw(row))
        try:
            if not line.endswith(self._newline):
                raise ValueError(f"the line does not end with {self._newline!r}")
            sample = self._parsed(line[: -len(self._newline)])
        except genuine(ValueError, RecursionError) as error:
            if limit := limit_of(error):
                raise beyond_limit(str(self._path), f"row {row}", limit) from error
            raise ShardCorruptError(str(self._path), f"row {row}: {error}", f"row {row}") from error
        return sample if self._is_whole else {name: sample[name] for name in self._names}

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""
        chosen: list[int] = checked_rows(rows, self.num_samples).tolist()
        return [self.sample(row) for row in chosen]

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return each column's values as a list; see ``ShardReader``."""
        samples = self.samples(rows)
        return {name: [sample[name] for sample in samples] for name in self._names}

    def raw(self, row: int) -> memoryview:
        """Return a sample's line; see ``ShardReader``."""
        number = checked_row(row, self.num_samples)
        return self._content[self._offsets.item(number) : self._offsets.item(number + 1)]

    def close(self) -> None:
        """Release the file and have no rows afterwards; see ``ShardReader``."""
        self.num_samples = 0
        self._content = memoryview(b"")
        self._offsets = np.zeros(1, np.int64)

    @abstractmethod
    def _header(self, entry: ShardEntry) -> bytes:
        """Return the bytes that must precede the first sample."""

    @abstractmethod
    def _parsed(self, line: bytes) -> dict[str, Any]:
        """Parse a line, without its newline, into a sample.

        Raises:
            ValueError: The line is invalid.
            RecursionError: It is nested too deeply.
        """


# Types of a column's values. Another program may have written a float without a decimal point.
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int)}


class JSONReader(SplitReader):
    """An open shard of JSON lines. Each line is an object with a sample."""

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        super().__init__(directory, entry, options)
        self._types = [(column.name, column.encoding, _TYPES[column.encoding]) for column in entry.columns]

    def _header(self, entry: ShardEntry) -> bytes:
        return b""

    def _parsed(self, line: bytes) -> dict[str, Any]:
        value = json.loads(line)
        if not isinstance(value, dict):
            raise EncodingError("not a JSON object")
        sample = cast("dict[str, Any]", value)
        for name, encoding, types in self._types:
            if not isinstance(sample.get(name), types):
                raise EncodingError(f"column {name!r} is missing or not {encoding}")
        return sample


_PARSERS: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}


class XSVReader(SplitReader):
    """An open shard of separated values. The first line has the columns' names. Quotes have no special meaning."""

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        self._separator = entry.separator
        super().__init__(directory, entry, options)
        self._parsers = [(column.name, _PARSERS[column.encoding]) for column in entry.columns]

    def _header(self, entry: ShardEntry) -> bytes:
        return (entry.separator.join(column.name for column in entry.columns) + entry.newline).encode()

    def _parsed(self, line: bytes) -> dict[str, Any]:
        values = line.decode().split(self._separator)
        if len(values) != len(self._parsers):
            raise EncodingError(f"{len(values)} values for {len(self._parsers)} columns")
        return {name: parse(value) for (name, parse), value in zip(self._parsers, values, strict=True)}


def parsed(path: str, line: int, offset: int, text: bytes) -> Any:
    """Return the JSON value of a line.

    Args:
        path: File of the text, for error messages.
        line: The line's number, from 0, blank lines not counted.
        offset: The line's offset in bytes.
        text: The line.

    Raises:
        ShardCorruptError: It is no JSON.
        ConfigurationError: It exceeds a limit of Python's; or it is the first line of a document of several.
    """
    try:
        return json.loads(text)
    except genuine(ValueError, RecursionError) as error:
        location = f"line {line} (from 0, blank lines not counted), at byte {offset} of the text"
        if limit := limit_of(error):
            raise beyond_limit(path, location, limit) from error
        found = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
        if not line and isinstance(error, json.JSONDecodeError) and _goes_on(text, error):
            expected = (
                f"JSON lines, each a JSON value of its own; {location}: {found}, as in a document of several lines"
            )
            raise ConfigurationError("file", shown_path(path), expected) from error
        advice = "" if line else "; each line must be a JSON value of its own"
        raise ShardCorruptError(path, f"{location}: {found}{advice}") from error


def _goes_on(text: bytes, error: json.JSONDecodeError) -> bool:
    """Return whether a line is the beginning of a JSON value, which may go on in the next line."""
    return text.endswith(b"\n") and len(error.doc[: error.pos].rstrip()) == len(error.doc.rstrip())


#: Four bytes each: 8 MiB.
_MOST_ANCHORS = 2 << 20
_SIDECAR = "lines"


_TAB, _CARRIAGE_RETURN, _SPACE = b"\t\r "


class LineIndex(NamedTuple):
    """Offsets of every ``stride``-th line of a text. Blank lines do not count.

    Attributes:
        anchors: Where the lines 0, ``stride``, 2 ``stride`` and so on begin.
        stride: Lines per anchor. It doubles whenever there are more anchors than are allowed.
        num_lines: Number of lines in the text.
        num_bytes: Size of the text in bytes.
        checksum: CRC-32 of the text.
    """

    anchors: Offsets
    stride: int
    num_lines: int
    num_bytes: int
    checksum: int

    @classmethod
    def of(
        cls, path: str, chunks: Iterable[bytes], max_line_bytes: int, max_anchors: int = _MOST_ANCHORS
    ) -> "LineIndex":
        """Return the index of a text.

        Args:
            path: File of the text, for error messages.
            chunks: The text, in pieces of any size.
            max_line_bytes: Maximum length of a line in bytes, without its newline.
            max_anchors: Maximum number of anchors; beyond it, every second one is dropped.

        Raises:
            ConfigurationError: A line is longer than ``max_line_bytes``.
        """
        anchors, stride, num_lines, num_bytes = Offsets(), 1, 0, 0
        checksum = 0
        for offset, text in _whole_lines(path, chunks, max_line_bytes):
            begins = _begins(text) + offset
            first = -num_lines % stride
            anchors.extend(begins[first::stride])
            num_lines += len(begins)
            num_bytes = offset + len(text)
            checksum = zlib.crc32(text, checksum)
            stride = _fitted(anchors, stride, max_anchors)
        return cls(anchors, stride, num_lines, num_bytes, checksum)

    @classmethod
    def saved(
        cls, path: str, storage_options: Mapping[str, Any], max_anchors: int = _MOST_ANCHORS
    ) -> "tuple[LineIndex, FileIdentity] | None":
        """Return the index that ``save`` has left beside a file, and what the file is; None: it has none as it is now.

        Args:
            path: The file.
            storage_options: Options for fsspec, for a file that is not local.
            max_anchors: See ``of``.
        """
        found = read_sidecar(path, _SIDECAR, storage_options)
        if found is None:
            return None
        anchors = Offsets()
        anchors.extend(found.values)
        stride, *others = (int(found.facts[name]) for name in cls._fields[1:])
        return cls(anchors, _fitted(anchors, stride, max_anchors), *others), found.identity

    def save(self, path: str, before: FileIdentity, storage_options: Mapping[str, Any]) -> str:
        """Write the index beside its file, for all who open it from now on; return where.

        Args:
            path: The file.
            before: What it was when it was read.
            storage_options: Options for fsspec, for a file that is not local.

        Raises:
            OSError: It cannot be written.
        """
        facts = {name: getattr(self, name) for name in self._fields[1:]}
        return write_sidecar(path, _SIDECAR, self.anchors.values(), facts, before, storage_options)

    def block(self, number: int) -> tuple[int, int]:
        """Return where the ``stride`` lines that begin at an anchor begin and end, in bytes."""
        return self.anchors[number], self.anchors[number + 1] if number + 1 < len(self.anchors) else self.num_bytes


def _fitted(anchors: Offsets, stride: int, max_anchors: int) -> int:
    """Drop every second anchor until there are at most as many as are allowed; return the lines per anchor then."""
    while len(anchors) > max_anchors:
        anchors.halve()
        stride *= 2
    return stride


def lines_of(path: str, chunks: Iterable[bytes], max_line_bytes: int, first: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a text that are not blank, each with its offset in bytes.

    Args:
        path: File of the text, for error messages.
        chunks: The text, in pieces of any size.
        max_line_bytes: Maximum length of a line in bytes, without its newline.
        first: The offset of the first piece.

    Raises:
        ConfigurationError: A line is longer than ``max_line_bytes``.
    """
    for offset, text in _whole_lines(path, chunks, max_line_bytes, first):
        begins: list[int] = _begins(text).tolist()  # empty if all lines are blank
        for begin, end in zip(begins, [*begins, len(text)][1:], strict=True):
            yield offset + begin, text[begin:end]


def _whole_lines(
    path: str, chunks: Iterable[bytes], max_line_bytes: int, offset: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of whole lines, with their offsets; the first one is at ``offset``."""
    rest, rest_bytes = list[bytes](), 0
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if end:
            text = b"".join((*rest, chunk[:end]))
            too_long = _too_long_at(text, max_line_bytes)
            if too_long != 0:
                yield offset, text[:too_long]
            if too_long is not None:
                raise _too_long(path, offset + too_long, max_line_bytes)
            offset += len(text)
            rest, rest_bytes = [], 0
        rest.append(chunk[end:])
        rest_bytes += len(chunk) - end
        if rest_bytes > max_line_bytes:
            raise _too_long(path, offset, max_line_bytes)
    if rest_bytes:
        yield offset, b"".join(rest)


def _too_long_at(text: bytes, max_line_bytes: int) -> int | None:
    """Return where the first line of a piece of whole lines begins that is too long; None: no one is."""
    if len(text) <= max_line_bytes + 1:
        return None
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    begins = np.concatenate([[0], ends[:-1] + 1])
    return next(map(int, begins[ends - begins > max_line_bytes]), None)


def _too_long(path: str, offset: int, max_line_bytes: int) -> ConfigurationError:
    expected = f"at least the size of the longest line; the one at byte {offset} of {shown_path(path)} is longer"
    return ConfigurationError("max_line_bytes", max_line_bytes, expected)


def _begins(text: bytes) -> npt.NDArray[Any]:
    """Return the offsets of the lines that are not blank."""
    if text.find(b"\n", 0, len(text) - 1) < 0 and text and not text.isspace():
        return np.zeros(1, np.int64)  # a single line, as an index often gives it
    content = np.frombuffer(text, np.uint8)
    begins = np.concatenate([[0], np.flatnonzero(content == ord("\n")) + 1])
    begins = begins[begins < len(text)]
    if not len(begins):
        return begins
    # Blank are the space and what lies from tab to carriage return; zeros are no text, and not blank: they are damage.
    is_blank = (content - np.uint8(_TAB) <= _CARRIAGE_RETURN - _TAB) | (content == _SPACE)
    return begins[~np.logical_and.reduceat(is_blank, begins)]
