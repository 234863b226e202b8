"""Read Parquet files, and Arrow files as Hugging Face datasets write them."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fkat_data.errors import ShardCorruptError, ShardNotFoundError
from fkat_data.requirement import required
from fkat_data.tools.converting.row_source import RowSource
from fkat_data.tools.converting.table_types import encodings_of_schema, extension_name
from fkat_data.tools.converting.table_values import UnfitValueError, has_unfit_value, values_of_column

_ROWS_AT_ONCE = 1_000
#: JSON has no bytes, and the others store null.
_NOT_FOR_JSON = ("bytes", "jpeg", "json", "pkl")


class TableSource(RowSource):
    """A file that pyarrow reads in batches of rows."""

    def __init__(self, path: str) -> None:
        self.name = path

    def columns(self, *, allows_nulls: bool = False) -> dict[str, str]:
        """Return the encodings that follow from the file's schema."""
        with self._errors():
            schema = self._schema()
            names: list[str] = schema.names
            for name, count in Counter(names).items():
                if count > 1:
                    raise ShardCorruptError(self.name, f"column {name!r} comes {count} times")
            encodings = encodings_of_schema(required("pyarrow", "parquet").types, schema)
            if allows_nulls:
                encodings |= dict.fromkeys(self._unfit(schema, encodings), "json")
            return encodings

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
            extensions = {name: extension_name(schema.field(name)) for name in chosen}
            for batch in self._batches(chosen):
                try:
                    values = [
                        values_of_column(name, batch.column(name), extensions[name], columns[name]) for name in chosen
                    ]
                except UnfitValueError as unfit:
                    unfit.error.add_note(f"row {num_rows + unfit.row} (from 0) of {self.name}")
                    raise unfit.error from unfit.__cause__
                for row in zip(*values, strict=True):
                    yield absent | dict(zip(chosen, row, strict=True))
                num_rows += batch.num_rows

    def _unfit(self, schema: Any, encodings: Mapping[str, str]) -> list[str]:
        """Return the columns with a value that JSON can store and their encoding cannot. It reads them."""
        unknown = [name for name, encoding in encodings.items() if encoding not in _NOT_FOR_JSON]
        found: list[str] = []
        for batch in self._batches(unknown) if unknown else ():
            for name in unknown:
                extension = extension_name(schema.field(name))
                if has_unfit_value(name, batch.column(name), extension, encodings[name]):
                    found.append(name)
            unknown = [name for name in unknown if name not in found]
        return found

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Name the file in pyarrow's errors."""
        arrow = required("pyarrow", "parquet")
        try:
            yield
        except FileNotFoundError as error:
            raise ShardNotFoundError(self.name, "no such file") from error
        except (arrow.ArrowException, OSError) as error:
            # For some damage, pyarrow raises a bare OSError without errno.
            if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError):
                raise
            raise ShardCorruptError(self.name, str(error)) from error

    @abstractmethod
    def _schema(self) -> Any: ...

    @abstractmethod
    def _batches(self, names: list[str]) -> Iterator[Any]: ...


class ParquetSource(TableSource):
    """A Parquet file."""

    def _schema(self) -> Any:
        return required("pyarrow.parquet", "parquet").read_schema(self.name)

    def _batches(self, names: list[str]) -> Iterator[Any]:
        with required("pyarrow.parquet", "parquet").ParquetFile(self.name) as file:
            yield from file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=names)


class ArrowSource(TableSource):
    """An Arrow IPC file or stream."""

    def _schema(self) -> Any:
        with self._opened() as reader:
            return reader.schema

    def _batches(self, names: list[str]) -> Iterator[Any]:
        del names  # the file is mapped: a column that is not read costs nothing
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
