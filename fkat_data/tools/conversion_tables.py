"""Read Parquet files, and Arrow files as Hugging Face datasets write them: their encodings, and their rows."""

import contextlib
import datetime as dt
import json
import os
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import numpy as np

from fkat_data.errors import FkatDataError, SampleError
from fkat_data.errors.wording import made_from_text
from fkat_data.files.arrow import ArrowColumn, ArrowValues
from fkat_data.files.arrow_extensions import ExtensionCheck, TensorShape, extensions_of
from fkat_data.files.arrow_times import is_beyond_nanoseconds, is_restored, known_type
from fkat_data.files.column_types import sample_type
from fkat_data.files.opening import shown_path
from fkat_data.files.parquet import WholeFile
from fkat_data.files.row_groups import unreadable
from fkat_data.files.sample_types import NUMBERS, SampleType, joined, of_several_types
from fkat_data.files.signatures import START_BYTES, check_kind
from fkat_data.runtime.machine import required
from fkat_data.tools.conversion_columns import FoundColumns, number_encoding, one_encoding
from fkat_data.tools.conversion_texts import RowSource, check_unique

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_parquet = required("pyarrow.parquet", "parquet")
_types = _arrow.types

_KINDS = {dtype: kind for kind, dtype in NUMBERS.items()}
_TEXTS = ("string", "large_string", "string_view")
_BYTES = ("binary", "large_binary", "binary_view")
#: The fields of the struct in which Hugging Face datasets store an image or a recording.
_FILE_FIELDS = ["bytes", "path"]
_EXTENSIONS = {"arrow.json": "json", "arrow.uuid": "str", "arrow.bool8": "json"}


class TableColumn:
    """A column of tables."""

    def __init__(self) -> None:
        self.encoding: str = ""
        """The encoding that stores the samples of all files, each unchanged; "" before the first."""
        self._kind: SampleType = "null"
        self._before = "", ""  # the file that the kind is of, and how that file holds it

    def add(self, file: str, field: Any, encoding: str) -> None:
        """Take a file into account.

        Args:
            file: The file.
            field: The field of its schema.
            encoding: The encoding that follows from that, or from a value in it.

        Raises:
            ConfigurationError: Its samples are of no type together with those of the files before.
        """
        found = shown_path(file), str(field.type)
        kind = _sample_type(field)
        together = joined(self._kind, kind)
        both = self._joined(encoding, together) if self.encoding and together is not None else encoding
        if together is None or both is None:
            raise of_several_types(field.name, found, self._before, one_encoding(field.name))
        if together != self._kind or not self.encoding:
            self._before = found
        self._kind, self.encoding = together, both

    def _joined(self, encoding: str, kind: SampleType) -> str | None:
        """Return the encoding of what this one stores and of what another one does, of one type."""
        encodings = {self.encoding, encoding}
        for whole in ("bytes", "jpeg"):  # of a null, too, which is an error where a row has it
            if whole in encodings and encodings <= {"bytes", "jpeg", "json"}:
                return whole
        if len(encodings) == 1 or "json" in encodings:
            return encoding if len(encodings) == 1 else "json"
        return number_encoding(kind)


def _sample_type(field: Any) -> SampleType:
    extension = extension_name(field)
    is_unknown_here = extension in _EXTENSIONS and not isinstance(field.type, _arrow.BaseExtensionType)
    return ["extension", extension] if is_unknown_here else sample_type(known_type(field.type))


def encodings_of_schema(schema: Any) -> dict[str, str]:
    """Return an encoding for each field of a schema.

    Args:
        schema: The schema. Its metadata say which files of a Hugging Face dataset are images.
    """
    features = _hugging_face_features(schema.metadata or {})
    found: dict[str, str] = {}
    for field in schema:
        extension = _EXTENSIONS.get(extension_name(field))
        encoding = extension or _encoding_of_tensors(field.type) or _encoding_of(stored_type(field.type))
        is_image = features.get(field.name, "Image") == "Image"
        found[field.name] = "bytes" if encoding == "jpeg" and not is_image else encoding
    return found


def stored_type(kind: Any) -> Any:
    """Return the type under dictionaries and extensions, such as categoricals and periods."""
    while True:
        if hasattr(kind, "storage_type"):
            kind = kind.storage_type
        elif hasattr(kind, "index_type"):
            kind = kind.value_type
        else:
            return kind


def is_text(kind: Any) -> bool:
    """Return whether a type is one of those of strings."""
    return str(kind) in _TEXTS


def is_file(kind: Any) -> bool:
    """Return whether a type is the struct in which Hugging Face datasets store an image or a recording."""
    return _types.is_struct(kind) and sorted(field.name for field in kind) == _FILE_FIELDS


def _encoding_of(kind: Any) -> str:
    tests: dict[str, bool] = {
        "str": is_text(kind) or _types.is_temporal(kind),
        "bytes": str(kind) in _BYTES or _types.is_fixed_size_binary(kind),
        "str_decimal": _types.is_decimal(kind),
        "jpeg": is_file(kind),
    }
    found = next((encoding for encoding, is_true in tests.items() if is_true), None)
    return found or _encoding_of_numbers(kind)


def _encoding_of_tensors(kind: Any) -> str | None:
    tensor = TensorShape.of(kind)
    if tensor is None:
        return None
    leaf = NUMBERS.get(str(kind.value_type))
    is_array = leaf and tensor.shape and all(tensor.shape)
    return f"ndarray:{leaf}:{','.join(map(str, tensor.shape))}" if is_array else "json"


def _encoding_of_numbers(kind: Any) -> str:
    if str(kind) in NUMBERS:
        return "int" if str(kind) == "int64" else NUMBERS[str(kind)]
    shape, leaf = list[int](), kind
    while _types.is_fixed_size_list(leaf):
        shape.append(leaf.list_size)
        leaf = leaf.value_type
    if shape and all(shape) and str(leaf) in NUMBERS:
        return f"ndarray:{NUMBERS[str(leaf)]}:{','.join(map(str, shape))}"
    if (_types.is_list(kind) or _types.is_large_list(kind)) and str(kind.value_type) in NUMBERS:
        return f"ndarray:{NUMBERS[str(kind.value_type)]}"
    return "json"


def extension_name(field: Any) -> str:
    """Return the name of a field's extension type; "" if it has none."""
    # A version of pyarrow that does not know the extension leaves its name in the field's metadata.
    metadata: dict[bytes, bytes] = field.metadata or {}
    in_metadata = metadata.get(b"ARROW:extension:name", b"").decode(errors="replace")
    return str(getattr(field.type, "extension_name", "")) or in_metadata


def _hugging_face_features(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the kind of each feature that a Hugging Face dataset's metadata name."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {name: str(feature["_type"]) for name, feature in features.items() if "_type" in feature}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}  # no such dataset, or one of an unknown version


_NO_NULL = "a value without null (nulls='json' stores such a column as JSON)"
_NO_NULL_IN_BYTES = "bytes (no encoding stores null beside bytes; only=[...] leaves the column out)"
_NO_PATH = "an image or a recording in the table (this is the path of a file elsewhere)"
_NO_EMPTY = "a list of at least one number (nulls='json' stores such a column as JSON)"
_IN_PYTHON = "a value that Python can represent"


@made_from_text
class UnfitValueError(Exception):
    """A column has a value that its encoding cannot store.

    Args:
        row: Its row in the batch.
        error: What is wrong with it.
    """

    def __init__(self, row: int, error: SampleError) -> None:
        self.row = row
        self.error = error
        super().__init__(row, error)


def values_of_column(name: str, column: Any, extension: str, encoding: str, seconds: Any = None) -> list[Any]:
    """Return the values of a column in the form that a writer takes.

    Lists of numbers become arrays, images the bytes of their files, and times and UUIDs text.

    Args:
        name: Its name.
        column: A pyarrow array.
        extension: The name of its extension type; "" if it has none.
        encoding: The column's encoding in the dataset.
        seconds: The column, its times of 96 bits read as seconds; None: it has none.

    Raises:
        UnfitValueError: A value is null, an empty list or beyond Python's range, and the encoding cannot store that.
    """
    is_tensor = TensorShape.of(column.type) is not None
    column = column if is_tensor else _stored(column, extension)
    if encoding.startswith("ndarray") or is_tensor:
        values = _arrays(column, encoding)
        if encoding == "json":
            values = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
            if not is_plain(column.type.storage_type):
                values = _each(name, values, partial(plain_value, column.type))
    elif extension == "arrow.json" and encoding == "json":
        # The writer checks bytes as ready-made JSON.
        values = [None if text is None else text.encode() for text in column.to_pylist()]
    else:
        values = _objects(name, column, seconds)
        if encoding == "json" and not is_plain(column.type):
            values = _each(name, values, partial(plain_value, column.type))
        elif is_file(column.type):
            values = _each(name, values, _content)
    if encoding not in ("json", "pkl") and (column.null_count or encoding.startswith(("ndarray", "jpeg", "png"))):
        for row, value in enumerate(values):
            expected = _reason_against(value, encoding)
            if expected is not None:
                raise UnfitValueError(row, SampleError(name, value, expected))
    return values


def has_unfit_value(name: str, column: Any, extension: str, encoding: str) -> bool:
    """Return whether a column has a null, or another value that its encoding cannot store and JSON can."""
    if not encoding.startswith("ndarray"):
        return bool(_stored(column, extension).null_count)
    try:
        values_of_column(name, column, extension, encoding)
    except UnfitValueError:
        return True
    return False


def _reason_against(value: Any, encoding: str) -> str | None:
    if value is None:
        return _NO_NULL_IN_BYTES if encoding in ("bytes", "jpeg", "png") else _NO_NULL
    if not encoding.startswith("ndarray"):
        return None
    if isinstance(value, list):
        return _NO_NULL if _has_null(value) else None
    return _NO_EMPTY if isinstance(value, np.ndarray) and not value.size else None


def _has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_null, cast("list[Any]", value))))


def _stored(column: Any, extension: str) -> Any:
    """Return the array under dictionaries and extensions; UUIDs as text."""
    if extension == "arrow.bool8" and hasattr(column, "storage"):
        return column.storage.cast(_arrow.bool_())
    while True:
        if hasattr(column, "storage"):
            column = column.storage
        elif _arrow.types.is_dictionary(column.type):
            dictionary = column.dictionary
            # pyarrow cannot look up views of strings.
            if str(dictionary.type) == "string_view":
                dictionary = dictionary.cast(_arrow.large_string())
            column = dictionary.take(column.indices)
        elif extension == "arrow.uuid":
            texts = [None if value is None else str(UUID(bytes=value)) for value in column.to_pylist()]
            return _arrow.array(texts, _arrow.string())
        else:
            return column


def _arrays(column: Any, encoding: str) -> list[Any]:
    """Return lists of numbers as arrays; a list that contains null stays a list, and null stays None.

    Their dtype is the encoding's where that keeps each number, as where another file needs a wider one.
    """
    leaf = stored_type(column.type)
    while hasattr(leaf, "value_type"):
        leaf = leaf.value_type
    dtype = NUMBERS.get(str(leaf))
    values = ArrowValues(column).listed(np.arange(len(column)), arrays="numpy", is_writable=True)
    arrays: list[Any] = [_array(value, dtype) if isinstance(value, list) and dtype else value for value in values]
    wider = _KINDS.get(encoding.split(":")[1]) if ":" in encoding else None
    if wider is None or wider == str(leaf) or joined(str(leaf), wider) != wider:
        return arrays
    return [value.astype(NUMBERS[wider]) if isinstance(value, np.ndarray) else value for value in arrays]


def _array(value: Any, dtype: str) -> Any:
    """Return nested lists as an array; the lists themselves if they contain null or have no common shape."""
    if isinstance(value, list) and not _has_null(value):
        with contextlib.suppress(ValueError):
            return np.array(value, dtype)
    return cast("object", value)


def _objects(name: str, column: Any, seconds: Any) -> list[Any]:
    """Return the Python values of a column, with times as text; those within others only if they have nanoseconds."""
    try:
        return _texts_or_objects(column, seconds)
    except (ValueError, OverflowError, OSError, LookupError):
        return list(_one_by_one(name, column, seconds))


def _texts_or_objects(column: Any, seconds: Any) -> list[Any]:
    is_temporal = _types.is_temporal(column.type)
    if not is_restored(column.type):
        return time_texts(column) if is_temporal else column.to_pylist()
    if is_temporal and (seconds is None or not is_beyond_nanoseconds(seconds)):
        return time_texts(column)
    values = ArrowColumn.of(column, seconds).values_at(np.arange(len(column)))
    return [plain_value(column.type, value) for value in values] if is_temporal else values


def _one_by_one(name: str, column: Any, seconds: Any) -> Iterator[Any]:
    for row in range(len(column)):
        part = column.slice(row, 1)
        try:
            yield from _texts_or_objects(part, None if seconds is None else seconds.slice(row, 1))
        except (ValueError, OverflowError, OSError, LookupError) as error:
            shown = f"<{getattr(part[0], 'value', '?')} of type {column.type}>"
            raise UnfitValueError(row, SampleError(name, shown, f"{_IN_PYTHON} ({error})")) from error


def _each(name: str, values: list[Any], change: Any) -> list[Any]:
    changed: list[Any] = []
    for row, value in enumerate(values):
        try:
            changed.append(change(value))
        except ValueError as error:
            raise UnfitValueError(row, SampleError(name, value, str(error))) from None
    return changed


def _content(value: Any) -> Any:
    """Return the bytes of a file that Hugging Face datasets store."""
    if value is not None and value["bytes"] is None and value["path"] is not None:
        raise ValueError(_NO_PATH)
    return None if value is None else value["bytes"]


def is_plain(kind: Any) -> bool:
    """Return whether JSON has all values of an Arrow type."""
    if _types.is_struct(kind):
        return all(is_plain(field.type) for field in kind)
    if _is_list(kind):
        return is_plain(kind.value_type)
    return is_text(kind) or str(kind) in NUMBERS or _types.is_boolean(kind) or _types.is_null(kind)


def plain_value(kind: Any, value: Any) -> Any:
    """Return a value with what JSON lacks as text, and a map with texts as keys as a dict.

    Args:
        kind: Its Arrow type.
        value: What a reader makes of it.

    Raises:
        ValueError: A key of a map comes twice.
    """
    if value is None:
        return None
    if TensorShape.of(kind) is not None:
        return _plain_tensor(kind.value_type, value)
    kind = stored_type(kind)
    if _types.is_map(kind):
        return _plain_map(kind, value)
    if _types.is_struct(kind):
        return {field.name: plain_value(field.type, value[field.name]) for field in kind}
    if _is_list(kind):
        return [plain_value(kind.value_type, item) for item in value]
    return _plain_leaf(kind, value)


def _plain_tensor(kind: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_tensor(kind, item) for item in cast("list[Any]", value)]
    return plain_value(kind, value)


def _plain_map(kind: Any, value: Any) -> Any:
    pairs = [(plain_value(kind.key_type, key), plain_value(kind.item_type, item)) for key, item in value]
    if not is_text(stored_type(kind.key_type)):
        return pairs
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a map with each key once")
    return dict(pairs)


def _plain_leaf(kind: Any, value: Any) -> Any:
    if isinstance(value, np.datetime64) and value.dtype == np.dtype("datetime64[us]"):
        # Of a year that datetime does not have.
        return str(cast("object", value)).removesuffix(".000000")
    if isinstance(value, (np.datetime64, np.timedelta64)):
        microseconds, nanoseconds = divmod(int(value.astype(np.int64)), 1_000)
        return _fine_text(_in_microseconds(kind, [microseconds])[0], nanoseconds)
    return _text(value) if isinstance(value, (dt.date, dt.time, dt.timedelta, Decimal, UUID)) else value


def _is_list(kind: Any) -> bool:
    # Views of lists among them, which older versions of pyarrow lack.
    return hasattr(kind, "value_field")


def time_texts(column: Any) -> list[str | None]:
    """Return the times of a column as text: ISO 8601, and durations such as ``1 day, 0:00:02.5``.

    Args:
        column: A pyarrow array of dates, times, timestamps, durations or intervals.

    Raises:
        ValueError: A time is beyond the years 1 to 9999.
        OverflowError: A time is far beyond them.
        LookupError: The time zone is unknown.
    """
    if not str(column.type).startswith(("timestamp[ns", "time64[ns", "duration[ns")):
        return [None if value is None else _text(value) for value in column.to_pylist()]
    # pyarrow returns another type for nanoseconds if pandas is installed, and an error otherwise.
    whole = column.cast(_arrow.int64()).to_pylist()
    parts = [(None, 0) if value is None else divmod(value, 1_000) for value in whole]
    rounded = _in_microseconds(column.type, [part[0] for part in parts])
    return [None if value is None else _fine_text(value, part[1]) for value, part in zip(rounded, parts, strict=True)]


def _in_microseconds(kind: Any, counts: list[int | None]) -> list[Any]:
    if _types.is_timestamp(kind):
        coarse = _arrow.timestamp("us", kind.tz)
    else:
        coarse = _arrow.time64("us") if _types.is_time(kind) else _arrow.duration("us")
    return _arrow.array(counts, _arrow.int64()).cast(coarse).to_pylist()


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, (dt.date, dt.time)) else str(value)


def _fine_text(value: Any, nanoseconds: int) -> str:
    if not nanoseconds:
        return _text(value)
    if isinstance(value, dt.timedelta):
        return f"{value}{'' if value.microseconds else '.000000'}{nanoseconds:03}"
    if isinstance(value, dt.time):
        return f"{value.isoformat('microseconds')}{nanoseconds:03}"
    local = value.replace(tzinfo=None)
    zone = value.isoformat()[len(local.isoformat()) :]
    return f"{local.isoformat(timespec='microseconds')}{nanoseconds:03}{zone}"


_ROWS_AT_ONCE = 1_000
#: JSON has no bytes, and the others store null.
_NOT_SOUGHT = ("bytes", "jpeg", "json", "pkl")


class TableSource(RowSource):
    """A file that pyarrow reads in batches of rows."""

    #: What its first bytes may say that it is.
    _kinds: tuple[str, ...]

    def __init__(self, path: str) -> None:
        self.name = path

    def infer(self, found: FoundColumns) -> None:
        """Look at the schema, and at all rows if they may have nulls."""
        columns = found.of_kind(TableColumn)
        with self._errors():
            schema = self._schema()
            names: list[str] = [name for name in schema.names if not found.only or name in found.only]
            check_unique(names, self.name, "schema")
            of_schema = encodings_of_schema(schema)
            encodings = {name: of_schema[name] for name in names if name not in found.given}
            if found.allows_nulls:
                encodings |= dict.fromkeys(self._unfit(schema, encodings), "json")
        for name, encoding in encodings.items():
            if name not in columns:
                columns[name] = TableColumn()
            columns[name].add(self.name, schema.field(name), encoding)
        found.add_file(self.name, TableColumn, names)

    def names(self) -> Iterable[str]:
        """Return the columns of the schema."""
        with self._errors():
            return self._schema().names

    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the rows, with lists of numbers as arrays, images as the bytes of their files, and times as text."""
        num_rows = 0
        with self._errors():
            schema = self._schema()
            chosen = [name for name in schema.names if name in columns]
            absent = {name: None for name, encoding in columns.items() if name not in chosen and encoding == "json"}
            ExtensionCheck().check(self.name, {name: extensions_of(schema.field(name)) for name in chosen})
            extensions = {name: extension_name(schema.field(name)) for name in chosen}
            for batch, seconds in self._batches(chosen):
                try:
                    values = [
                        values_of_column(name, batch.column(name), extensions[name], columns[name], seconds.get(name))
                        for name in chosen
                    ]
                except UnfitValueError as unfit:
                    unfit.error.add_note(f"row {num_rows + unfit.row} (from 0) of {self.name}")
                    raise unfit.error from unfit.__cause__
                for row in zip(*values, strict=True):
                    yield absent | dict(zip(chosen, row, strict=True))
                num_rows += batch.num_rows

    def _unfit(self, schema: Any, encodings: Mapping[str, str]) -> list[str]:
        """Return the columns with a value that JSON can store and their encoding cannot. It reads them."""
        unknown = [name for name, encoding in encodings.items() if encoding not in _NOT_SOUGHT]
        found: list[str] = []
        for batch, _ in self._batches(unknown) if unknown else ():
            for name in unknown:
                extension = extension_name(schema.field(name))
                if has_unfit_value(name, batch.column(name), extension, encodings[name]):
                    found.append(name)
            unknown = [name for name in unknown if name not in found]
        return found

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Name the file in pyarrow's errors."""
        try:
            yield
        except FkatDataError:
            raise
        except (_arrow.ArrowException, OSError) as error:
            if Path(self.name).is_file():
                with Path(self.name).open("rb") as file:
                    check_kind(self.name, file.read(START_BYTES), *self._kinds)
            raise unreadable(self.name, "it cannot be read", error) from error

    @abstractmethod
    def _schema(self) -> Any: ...

    @abstractmethod
    def _batches(self, names: list[str]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield batches of rows, and those of their columns that have times of 96 bits, these as seconds."""


class ParquetSource(TableSource):
    """A Parquet file."""

    _kinds = ("Parquet",)

    def _schema(self) -> Any:
        return WholeFile(self.name, {}).schema

    def _batches(self, names: list[str]) -> Iterator[tuple[Any, dict[str, Any]]]:
        file = WholeFile(self.name, {})
        for group in range(len(file.num_rows)):
            seconds = file.in_seconds(group, names)
            first = 0
            for batch in file.row_batches(group, names, _ROWS_AT_ONCE):
                parts = {name: column.slice(first, batch.num_rows) for name, column in seconds.items()}
                yield batch, {name: column.combine_chunks() for name, column in parts.items()}
                first += batch.num_rows
            if names:
                file.check_decoded(group, first)


class ArrowSource(TableSource):
    """An Arrow IPC file or stream."""

    _kinds = ("Arrow", "an Arrow stream")

    def _schema(self) -> Any:
        with self._opened() as reader:
            return reader.schema

    def _batches(self, names: list[str]) -> Iterator[tuple[Any, dict[str, Any]]]:
        del names  # the file is mapped: a column that is not read costs nothing
        with self._opened() as reader:
            if hasattr(reader, "num_record_batches"):
                whole: Iterator[Any] = map(reader.get_batch, range(reader.num_record_batches))
            else:
                whole = iter(reader)
            for batch in whole:
                for begin in range(0, batch.num_rows, _ROWS_AT_ONCE):
                    yield batch.slice(begin, _ROWS_AT_ONCE), {}

    def _opened(self) -> Any:
        try:
            return _arrow.ipc.open_stream(_arrow.memory_map(os.fsencode(self.name)))
        except _arrow.ArrowInvalid:
            return _arrow.ipc.open_file(_arrow.memory_map(os.fsencode(self.name)))
