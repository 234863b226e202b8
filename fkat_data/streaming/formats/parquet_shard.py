"""Row groups of Parquet files as shards. Needs the extra ``parquet``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import numpy.typing as npt

from fkat_data.errors import ShardCorruptError
from fkat_data.interruption import genuine
from fkat_data.requirement import required
from fkat_data.streaming.formats.arrow_values import ArrowValues
from fkat_data.streaming.formats.entry import FileInfo, Origin, ShardEntry
from fkat_data.streaming.formats.mapping import MapRegister, mapped, mapped_span
from fkat_data.streaming.formats.parquet_index import parsed_footer
from fkat_data.streaming.formats.part_reader import PartOptions, PartReader
from fkat_data.streaming.formats.reader import checked_rows, dicts_of

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_parquet = required("pyarrow.parquet", "parquet")


class ParquetReader(PartReader):
    """An open row group. It is decoded when the first of its rows is read, and again if it was dropped since.

    Args:
        directory: Directory of the dataset, or of its cache.
        entry: The shard.
        register: Records the file of a row group as mapped.
        **options: The other arguments of ``PartReader``.

    Raises:
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file's size or its footer contradicts the index.
    """

    def __init__(
        self, directory: Path, entry: ShardEntry, *, register: MapRegister | None = None, **options: Unpack[PartOptions]
    ) -> None:
        super().__init__(directory, entry, **options)
        origin, path, decoded = self._origin, self._path, self._decoded
        self._group: int = entry.part
        self._names = [column.name for column in entry.columns]
        self._leaves: list[int] | None = None
        self._key = (str(path), self._group, tuple(self._names))
        if entry.raw_meta is None:
            # Of the whole file, thousands of row groups would take all addresses that a process has.
            start = min((start for start, _ in origin.ranges), default=0)
            stop = max((stop for _, stop in origin.ranges), default=0)
            content = mapped_span(path, FileInfo(origin.name, origin.size_bytes), start, stop, register)
            spans = [(first, last, content[first - start : last - start]) for first, last in origin.ranges]
            self._metadata = decoded.footer((str(path), origin.version), lambda: self._footer_in(path))
        else:
            spans = _spans_of(mapped(path, entry.raw_data, register), origin)
            footer = entry.raw_meta
            self._metadata = decoded.footer(
                str(directory / footer.basename),
                lambda: parsed_footer(self._name, bytes(mapped(directory / footer.basename, footer, register))),
            )
        self._check_version()
        self._source: Any = _arrow.PythonFile(_Ranges(spans, origin.size_bytes), mode="r")
        num_groups: int = self._metadata.num_row_groups
        if self._group >= num_groups or self._metadata.row_group(self._group).num_rows != entry.samples:
            raise self._written_again()

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""
        chosen = checked_rows(rows, self.num_samples)
        columns = self._columns()
        return dicts_of(
            {name: self._listed(name, values, chosen, is_writable=self._writable) for name, values in columns.items()}
        )

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return each column's values; see ``ShardReader``. Lists are those of ``samples``, with owned arrays."""
        chosen = checked_rows(rows, self.num_samples)
        return {
            name: values.gathered(chosen) if values.can_gather else self._listed(name, values, chosen, is_writable=True)
            for name, values in self._columns().items()
        }

    def close(self) -> None:
        """Release the file and the decoded rows; see ``ShardReader``."""
        self.num_samples = 0
        self._decoded.drop(self._key)
        self._source = None

    def _listed(self, name: str, values: ArrowValues, rows: npt.NDArray[Any], *, is_writable: bool) -> list[Any]:
        try:
            return values.listed(rows, arrays=self._arrays, is_writable=is_writable)
        except genuine(_arrow.ArrowException, ValueError, OverflowError) as error:
            # Years that datetime does not have, among others.
            raise ShardCorruptError(
                self._name,
                f"column {name!r} has a value that Python cannot hold ({error}); choose the other columns with "
                "columns=[...]",
                f"column {name!r}",
            ) from error

    def _columns(self) -> dict[str, ArrowValues]:
        return self._decoded.group(self._key, self._decode)

    def _decode(self) -> tuple[dict[str, ArrowValues], int]:
        if self._source is None:
            return {}, 0
        # An access to what was cut off would end the process.
        self._check_version()
        try:
            # Pages that have a checksum are compared with it; the others cost nothing.
            with _parquet.ParquetFile(self._source, metadata=self._metadata, page_checksum_verification=True) as file:
                if self._leaves is None:
                    # Names are ambiguous: "a.b" is a column, and also the field "b" of a column "a".
                    paths: list[list[str]] = file.reader.column_paths
                    self._leaves = [index for index, path in enumerate(paths) if path[0] in self._names]
                # One thread, because a worker shares the machine with the trainer.
                table = file.reader.read_row_group(self._group, column_indices=self._leaves, use_threads=False)
            # A process that writes into the file changes what is mapped.
            self._check_version()
            for name in self._names:
                if len(table.column(name)) != self.num_samples:
                    raise ShardCorruptError.of_field(
                        self._name, f"rows of column {name!r}", str(self.num_samples), len(table.column(name))
                    )
            columns = {name: ArrowValues(table.column(name)) for name in self._names}
        except genuine(_arrow.ArrowException, OSError, KeyError) as error:
            raise ShardCorruptError(self._name, f"cannot be decoded: {error}") from error
        return columns, sum(values.size_bytes for values in columns.values())

    def _footer_in(self, path: Path) -> Any:
        try:
            return _parquet.read_metadata(str(path))
        except genuine(_arrow.ArrowException, OSError) as error:
            raise ShardCorruptError(self._name, f"the footer cannot be read: {error}") from error


#: The first byte of a range of a file, the byte after its last one, and its bytes.
_Span: TypeAlias = tuple[int, int, memoryview]


def _spans_of(content: memoryview, origin: Origin) -> list[_Span]:
    """Return the ranges of a part, whose bytes are stored one after another."""
    spans: list[_Span] = []
    offset = 0
    for start, stop in origin.ranges:
        spans.append((start, stop, content[offset : offset + stop - start]))
        offset += stop - start
    return spans


class _Ranges:
    """Some ranges of a file as that file, for pyarrow; reading any other byte is an error.

    Args:
        spans: The ranges.
        size_bytes: The size of the file.
    """

    closed = False

    def __init__(self, spans: Sequence[_Span], size_bytes: int) -> None:
        self._spans = spans
        self._size_bytes = size_bytes
        self._position = 0

    def read_buffer(self, num_bytes: int = -1) -> Any:
        """Return the next bytes, without copying them."""
        position = self._position
        for start, stop, content in self._spans:
            if start <= position and position + num_bytes <= stop:
                self._position = position + num_bytes
                return _arrow.py_buffer(content[position - start : position - start + num_bytes])
        raise OSError(f"bytes {position:,} to {position + num_bytes:,} are not of this row group")

    def read(self, num_bytes: int = -1) -> bytes:
        """Return the next bytes."""
        return self.read_buffer(num_bytes).to_pybytes()

    def seek(self, position: int, origin: int = 0) -> int:
        """Go to a position of the file."""
        self._position = position + (0, self._position, self._size_bytes)[origin]
        return self._position

    def tell(self) -> int:
        """Return the position in the file."""
        return self._position

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the ranges stay mapped for the next decoding."""
