"""The index of a dataset, checked field by field."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from fkat_data.errors import ShardCorruptError
from fkat_data.files.encoding import EncodingError
from fkat_data.files.encodings import encoding_of
from fkat_data.files.shard import Column, FileInfo, ShardEntry
from fkat_data.files.stored import FAMILIES, file_size
from fkat_data.runtime.interruption import genuine


class Fields:
    """A JSON object and its path in a file, for messages.

    Args:
        file: Name of the file.
        path: Path of the object in the file, such as ``shards[3].raw_data``; empty for the whole file.
        content: The parsed JSON.

    Raises:
        ShardCorruptError: ``content`` is not a JSON object.
    """

    __slots__ = ("content", "file", "path")

    def __init__(self, file: str, path: str, content: object) -> None:
        if not isinstance(content, dict):
            raise ShardCorruptError.of_field(file, path or "the whole file", "a JSON object", content)
        self.file: str = file
        self.path: str = path
        self.content: dict[str, Any] = cast("dict[str, Any]", content)

    def wrong(self, name: str, expected: str, found: object) -> ShardCorruptError:
        """Return the error for an invalid field."""
        return ShardCorruptError.of_field(self.file, f"{self.path}.{name}".lstrip("."), expected, found)

    def version(self, expected: int) -> None:
        """Check that the field ``version`` is as expected.

        Raises:
            ShardCorruptError: The field is missing or invalid, as in every method here.
        """
        found = self.content.get("version")
        if isinstance(found, bool) or found != expected:
            raise self.wrong("version", str(expected), found)

    def integer(self, name: str, minimum: int, maximum: int) -> int:
        """Return a field that must be an integer from ``minimum`` to ``maximum``, both inclusive."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.wrong(name, f"an integer from {minimum} to {maximum}", value)
        return value

    def text(self, name: str, options: Sequence[str] = ()) -> str:
        """Return a field that must be a string; one of ``options`` unless they are empty."""
        value = self._value(name)
        if not isinstance(value, str) or (options and value not in options):
            raise self.wrong(name, f"one of {', '.join(options)}" if options else "a string", value)
        return value

    def nonempty_text(self, name: str) -> str:
        """Return a field that must be a string of at least one character."""
        value = self._value(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a string of at least one character", value)
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a field that must be a string if present; None if it is missing or null."""
        return None if self.content.get(name) is None else self.text(name)

    def listing(self, name: str) -> list[Any]:
        """Return a field that must be a list."""
        value = self._value(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list", value)
        return cast("list[Any]", value)

    def texts(self, name: str) -> list[str]:
        """Return a field that must be a list of strings."""
        values = self.listing(name)
        if not all(isinstance(value, str) for value in values):
            raise self.wrong(name, "a list of strings", values)
        return values

    def fields(self, name: str) -> "Fields":
        """Return a field that must be an object."""
        return Fields(self.file, f"{self.path}.{name}".lstrip("."), self._value(name))

    def _value(self, name: str) -> Any:
        if name not in self.content:
            raise ShardCorruptError(self.file, f"{self.path}.{name} is missing".lstrip("."), f"{self.path}.{name}")
        return self.content[name]


#: Encodings of columns in JSON lines and separated values.
TEXT_ENCODINGS = ("str", "int", "float")

_MAX_BYTES = (1 << 32) - 1


def columns_of(shard: Fields, kind: str) -> tuple[Column, ...]:
    """Return the columns of a shard in the order in which they are stored.

    Args:
        shard: The entry.
        kind: Its format.

    Raises:
        ShardCorruptError: The description is missing or invalid. The message names the field.
    """
    if kind == "json":
        columns = shard.fields("columns")
        return tuple(Column(name, columns.text(name, TEXT_ENCODINGS)) for name in columns.content)
    names, encodings = shard.texts("column_names"), shard.texts("column_encodings")
    if len(set(names)) < len(names) or not names:
        raise shard.wrong("column_names", "at least one name, without duplicates", names)
    if len(encodings) != len(names):
        raise shard.wrong("column_encodings", f"{len(names)} encodings, one for each column", encodings)
    if kind == "mds":
        return _mds_columns(shard, names, encodings)
    for number, encoding in enumerate(encodings):
        if encoding not in TEXT_ENCODINGS:
            raise shard.wrong(f"column_encodings[{number}]", f"one of {', '.join(TEXT_ENCODINGS)}", encoding)
    return tuple(map(Column, names, encodings))


def _mds_columns(shard: Fields, names: list[str], encodings: list[str]) -> tuple[Column, ...]:
    sizes = shard.listing("column_sizes")
    if len(sizes) != len(names):
        raise shard.wrong("column_sizes", f"{len(names)} sizes, one for each column", sizes)
    columns: list[Column] = []
    for number, (name, encoding, size) in enumerate(zip(names, encodings, sizes, strict=True)):
        try:
            own_size = encoding_of(encoding).size_bytes
        except EncodingError as error:
            raise shard.wrong(f"column_encodings[{number}]", str(error), encoding) from None
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _MAX_BYTES):
            raise shard.wrong(f"column_sizes[{number}]", "null or a number of bytes", size)
        # Some writers state a variable size as 0.
        if own_size is not None and size != own_size:
            raise shard.wrong(f"column_sizes[{number}]", f"{own_size}, the size of {encoding}", size)
        columns.append(Column(name, encoding, size or None))
    return tuple(columns)


INDEX_NAME = "index.json"
INDEX_FORMATS = ("mds", "json", "xsv", "csv", "tsv")

_VERSION = 2
_SHARD_KEYS = frozenset(("samples", "raw_data", "zip_data", "raw_meta", "zip_meta"))
#: No other object of an index has all of these.
_OF_SHARD = frozenset(("format", "raw_data", "samples"))
_SEPARATORS = {"csv": ",", "tsv": "\t"}
# Offsets in a shard are 32 bits wide.
_LONGEST_NAME_BYTES = 255
_LONGEST_PATH_BYTES = 4000
_NO_HASHES: dict[str, str] = {}
_PLAIN_PATH = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


def read_index(path: Path) -> list[ShardEntry]:
    """Return the shards in an ``index.json``, in its order.

    Ignore unknown keys, and open no shard.

    Args:
        path: Path of the index.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The file is not a valid index of version 2. The message names the field.
    """
    file_size(path)
    return parse_index(path.read_bytes(), str(path))


def parse_index(text: bytes, file: str) -> list[ShardEntry]:
    """Return the shards in the text of an index, in its order.

    Args:
        text: Content of the file.
        file: Name of the file, for messages.

    Raises:
        ShardCorruptError: The text is not a valid index of version 2. The message names the field.
    """
    parser = _Parser(file)
    try:
        # A large index is in memory once: each shard is converted as soon as it is read.
        content = json.loads(text.decode(), object_hook=parser.converted)
    except genuine(ValueError, RecursionError) as error:
        raise ShardCorruptError(file, f"not valid JSON: {error}") from error
    index = Fields(file, "", content)
    index.version(_VERSION)
    shards = index.listing("shards")
    return [item if isinstance(item, ShardEntry) else parser.entry(number, item) for number, item in enumerate(shards)]


class _Common(NamedTuple):
    """The fields that most shards of a dataset have in common."""

    format: str
    compression: str | None
    hashes: tuple[str, ...]
    columns: tuple[Column, ...]
    newline: str
    separator: str

    @classmethod
    def of(cls, shard: Fields) -> "_Common":
        shard.version(_VERSION)
        kind = shard.text("format", INDEX_FORMATS)
        compression = shard.optional_text("compression") or None
        if compression is not None and compression.partition(":")[0] not in FAMILIES:
            raise shard.wrong("compression", f"one of {', '.join(FAMILIES)}", compression)
        return cls(
            kind,
            compression,
            tuple(shard.texts("hashes")) if "hashes" in shard.content else (),
            columns_of(shard, kind),
            "" if kind == "mds" else shard.nonempty_text("newline"),
            shard.nonempty_text("separator") if kind == "xsv" else _SEPARATORS.get(kind, ""),
        )


class _Parser:
    """Parser of an index's shards, which parses what consecutive shards have in common once."""

    def __init__(self, file: str) -> None:
        self._name = file
        # The previous shard's common fields, as given and as parsed.
        self._given: dict[str, Any] | None = None
        self._common: _Common | None = None
        self._num_converted = 0

    def converted(self, content: dict[str, Any]) -> Any:
        """Return the shard that an object of the JSON describes, or the object itself."""
        if not content.keys() >= _OF_SHARD:
            return content
        self._num_converted += 1
        return self.entry(self._num_converted - 1, content)

    def entry(self, number: int, content: Any) -> ShardEntry:
        shard = Fields(self._name, f"shards[{number}]", content)
        given = {key: value for key, value in shard.content.items() if key not in _SHARD_KEYS}
        if self._common is None or given != self._given:
            self._common, self._given = _Common.of(shard), given
        common = self._common
        samples = shard.integer("samples", 0, _MAX_BYTES // 4)
        raw_data, zip_data = self._pair(shard, "data", common.compression)
        raw_meta = zip_meta = None
        if common.format == "mds":
            self._check_size(shard, "raw_data", raw_data, samples, common.columns)
        else:
            raw_meta, zip_meta = self._pair(shard, "meta", common.compression)
            self._check_size(shard, "raw_meta", raw_meta, samples, ())
        return ShardEntry(
            common.format,
            samples,
            common.columns,
            raw_data,
            zip_data,
            raw_meta,
            zip_meta,
            common.compression,
            common.hashes,
            common.newline,
            common.separator,
        )

    def _pair(self, shard: Fields, part: str, compression: str | None) -> tuple[FileInfo, FileInfo | None]:
        raw = self._file(shard.fields(f"raw_{part}"), _MAX_BYTES)
        if compression is None:
            if shard.content.get(f"zip_{part}") is not None:
                raise shard.wrong(f"zip_{part}", "null, because compression is null", shard.content[f"zip_{part}"])
            return raw, None
        compressed = self._file(shard.fields(f"zip_{part}"), (1 << 63) - 1)
        if compressed.basename == raw.basename:
            raise shard.wrong(f"zip_{part}.basename", "a name different from the raw file's", raw.basename)
        return raw, compressed

    def _file(self, info: Fields, max_bytes: int) -> FileInfo:
        basename = info.text("basename")
        expected = _expected_name(basename)
        if expected:
            raise info.wrong("basename", expected, basename)
        hashes = info.fields("hashes")
        for algorithm, digest in hashes.content.items():
            if not isinstance(digest, str):
                raise hashes.wrong(algorithm, "hexadecimal digits", digest)
        return FileInfo(basename, info.integer("bytes", 0, max_bytes), hashes.content or _NO_HASHES)

    def _check_size(self, shard: Fields, part: str, info: FileInfo, samples: int, columns: tuple[Column, ...]) -> None:
        least_bytes = sum(column.size_bytes or 4 for column in columns)
        needed = 8 + samples * (4 + least_bytes)
        if info.bytes < needed:
            raise shard.wrong(
                "samples", f"fewer: {part} has {info.bytes} bytes, and this many need at least {needed}", samples
            )


def _expected_name(basename: str) -> str | None:
    """Return None for a valid name, otherwise which names are valid."""
    if len(basename) < _LONGEST_NAME_BYTES and _PLAIN_PATH.fullmatch(basename) and basename != INDEX_NAME:
        return None  # the fast path for nearly all names
    try:
        encoded = basename.encode()
    except genuine(UnicodeEncodeError):
        return "a name that UTF-8 can encode"
    parts = basename.split("/")
    if not basename or basename.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in basename:
        return "a path within the dataset's directory"
    if basename == INDEX_NAME:
        return "a name other than the index's"
    if len(encoded) > _LONGEST_PATH_BYTES or max(len(part.encode()) for part in parts) > _LONGEST_NAME_BYTES:
        return f"a path of at most {_LONGEST_PATH_BYTES} bytes, with names of at most {_LONGEST_NAME_BYTES} bytes"
    return None
