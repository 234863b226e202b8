"""Read Parquet files, and Arrow files as Hugging Face datasets write them."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from fkat_data.errors import ShardCorruptError, ShardNotFoundError
from fkat_data.requirement import required
from fkat_data.tools.converting.row_source import RowSource

__all__ = ["ArrowSource", "ParquetSource", "TableSource"]

_ROWS_AT_ONCE = 1_000
_DTYPES = {
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")),
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
#: The fields of the struct in which Hugging Face datasets store an image.
_IMAGE_FIELDS = ["bytes", "path"]


class TableSource(RowSource):
    """A file that pyarrow reads in batches of rows."""

    def __init__(self, path: str) -> None:
        self.name = path

    def columns(self) -> dict[str, str]:
        """Return the encodings that follow from the file's schema."""
        arrow = required("pyarrow", "parquet")
        try:
            return {field.name: _encoding_of(arrow.types, field.type) for field in self._schema()}
        except FileNotFoundError as error:
            raise ShardNotFoundError(self.name, "no such file") from error
        except arrow.ArrowInvalid as error:
            raise ShardCorruptError(self.name, str(error)) from error

    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the rows, with lists of numbers as arrays, images as the bytes of their files, and times as text."""
        arrow = required("pyarrow", "parquet")
        try:
            for batch in self._batches():
                chosen = [name for name in batch.schema.names if name in columns]
                values = [_values(arrow.types, batch.column(name), columns[name]) for name in chosen]
                for row in zip(*values, strict=True):
                    yield dict(zip(chosen, row, strict=True))
        except arrow.ArrowInvalid as error:
            raise ShardCorruptError(self.name, str(error)) from error

    @abstractmethod
    def _schema(self) -> Any: ...

    @abstractmethod
    def _batches(self) -> Iterator[Any]: ...


class ParquetSource(TableSource):
    """A Parquet file."""

    def _schema(self) -> Any:
        return required("pyarrow.parquet", "parquet").read_schema(self.name)

    def _batches(self) -> Iterator[Any]:
        with required("pyarrow.parquet", "parquet").ParquetFile(self.name) as file:
            yield from file.iter_batches(batch_size=_ROWS_AT_ONCE)


class ArrowSource(TableSource):
    """An Arrow IPC file or stream."""

    def _schema(self) -> Any:
        with self._opened() as reader:
            return reader.schema

    def _batches(self) -> Iterator[Any]:
        with self._opened() as reader:
            if hasattr(reader, "num_record_batches"):
                whole: Iterator[Any] = map(reader.get_batch, range(reader.num_record_batches))
            else:
                whole = iter(reader)
            for batch in whole:
                for begin in range(0, batch.num_rows, _ROWS_AT_ONCE):
                    yield batch.slice(begin, _ROWS_AT_ONCE)

    def _opened(self) -> Any:
        arrow = required("pyarrow", "parquet")
        try:
            return arrow.ipc.open_stream(arrow.memory_map(self.name))
        except arrow.ArrowInvalid:
            return arrow.ipc.open_file(arrow.memory_map(self.name))


def _encoding_of(types: Any, kind: Any) -> str:
    """Return the encoding of an Arrow type."""
    if types.is_dictionary(kind):
        return _encoding_of(types, kind.value_type)
    tests: dict[str, tuple[Callable[[Any], bool], ...]] = {
        "str": (types.is_string, types.is_large_string, types.is_temporal),
        "bytes": (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
        "str_decimal": (types.is_decimal,),
    }
    for encoding, of_encoding in tests.items():
        if any(test(kind) for test in of_encoding):
            return encoding
    names: list[str] = sorted(field.name for field in kind) if types.is_struct(kind) else []
    return "jpeg" if names == _IMAGE_FIELDS else _encoding_of_numbers(types, kind)


def _encoding_of_numbers(types: Any, kind: Any) -> str:
    if str(kind) in _DTYPES:
        return "int" if str(kind) == "int64" else _dtype(kind)
    shape, leaf = _peeled(types, kind)
    if shape and all(shape) and str(leaf) in _DTYPES:
        return f"ndarray:{_dtype(leaf)}:{','.join(map(str, shape))}"
    if (types.is_list(kind) or types.is_large_list(kind)) and str(kind.value_type) in _DTYPES:
        return f"ndarray:{_dtype(kind.value_type)}"
    return "json"


def _peeled(types: Any, kind: Any) -> tuple[list[int], Any]:
    """Return the shape of nested lists of fixed size, and the type of their elements."""
    shape: list[int] = []
    while types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return shape, kind


def _dtype(leaf: Any) -> str:
    return _DTYPES[str(leaf)] or str(leaf)


def _values(types: Any, column: Any, encoding: str) -> list[Any]:
    """Return the values of a column in the form that a writer takes."""
    kind = column.type
    if encoding.startswith("ndarray") and not column.null_count:
        shape, leaf = _peeled(types, kind)
        if shape and str(leaf) in _DTYPES:
            flat = column
            for _ in shape:
                flat = flat.flatten()
            if not flat.null_count:
                return list(flat.to_numpy(zero_copy_only=False).reshape(len(column), *shape))
        elif (types.is_list(kind) or types.is_large_list(kind)) and str(kind.value_type) in _DTYPES:
            numbers = column.values
            if not numbers.null_count:
                array = numbers.to_numpy(zero_copy_only=False)
                return [array[begin:end] for begin, end in pairwise(column.offsets.to_pylist())]
    values: list[Any] = column.to_pylist()
    if types.is_temporal(kind):
        return [value.isoformat() if hasattr(value, "isoformat") else value and str(value) for value in values]
    if types.is_struct(kind) and encoding != "json":
        return [value and value.get("bytes") for value in values]
    return values
