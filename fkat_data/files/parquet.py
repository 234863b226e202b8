"""Parquet files: open as a whole; and an index made from their footers, with each row group as a shard.

Needs the extra ``parquet``.
"""

import copy
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2s
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from fkat_data.errors import FkatDataError, ShardCorruptError, ShardNotFoundError
from fkat_data.files.arrow import ArrowValues
from fkat_data.files.arrow_extensions import ExtensionCheck, extensions_of
from fkat_data.files.arrow_times import columns_of_int96, known_type
from fkat_data.files.column_chunks import ChunkCheck, HeldRanges, bytes_within, chunk_span, chunk_spans, positioned
from fkat_data.files.column_types import fitted, sample_type
from fkat_data.files.limits import bad_value
from fkat_data.files.mapping import mapped, mapped_span
from fkat_data.files.opening import (
    RangedFile,
    changed,
    check_regular,
    is_folder,
    local_path,
    not_found,
    shown_path,
)
from fkat_data.files.row_groups import (
    check_own_columns,
    encrypted,
    int96_in_seconds,
    leaves_of,
    row_batches,
    row_group,
    unreadable,
)
from fkat_data.files.sample_types import ColumnTypes, SampleType, encoding_of
from fkat_data.files.shard import (
    Column,
    DescribedFile,
    FileInfo,
    Origin,
    PartReader,
    ReadOptions,
    ShardEntry,
    StoredBytes,
    checked_rows,
    dicts_of,
)
from fkat_data.files.signatures import START_BYTES, check_kind
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import required
from fkat_data.storage.file_identity import FileIdentity

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_parquet = required("pyarrow.parquet", "parquet")

_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
#: The length of the footer and the magic bytes after it.
_TAIL_BYTES = 8
#: What follows the footer of a file whose columns are encrypted, and whose footer is not.
_SIGNATURE_BYTES = 28
#: Writers that left the header of a dictionary out of a column chunk's size, and the room that pyarrow gives such a header.
_TOO_SHORT = re.compile(r"parquet-mr(?! version (?:[2-9]|1\.(?:[3-9]|\d\d)|1\.2\.(?:9|\d\d)))")
_PADDING_BYTES = 100
#: Read at once from the end of a file: nearly all footers are smaller.
_FIRST_READ_BYTES = 64 << 10
#: Ranges that are closer than this are fetched together.
_LARGEST_GAP_BYTES = 32 << 10


def describe(file: StoredBytes) -> dict[str, Any]:
    """Return the columns and row groups of a file. Reads its footer alone; see ``formats``.

    Raises:
        ShardCorruptError: The file is no Parquet file, is torn, or its footer contradicts itself.
        ConfigurationError: The file is encrypted.
    """
    start, footer = _footer_of(file)
    metadata = parsed_footer(file.name, footer)
    try:
        schema = metadata.schema.to_arrow_schema()
        fields = [(field.name, known_type(field.type)) for field in schema]
    except genuine(_arrow.ArrowException, UnicodeDecodeError) as error:
        raise unreadable(file.name, "its columns cannot be read", error) from error
    num_leaves = [_num_leaves(kind) for _, kind in fields]
    if sum(num_leaves) != metadata.num_columns:
        raise ShardCorruptError.of_field(
            file.name, "number of column chunks", f"{sum(num_leaves)}, as in the schema", metadata.num_columns
        )
    check_own_columns(file.name, metadata, start)
    padding = _PADDING_BYTES if _TOO_SHORT.match(_writer_of(metadata)) else 0
    numbers = range(metadata.num_row_groups)
    chunk_check = ChunkCheck(file.name, metadata, file.size_bytes)
    for number in numbers:
        chunk_check.check(number, range(metadata.num_columns))
    groups = [_group(metadata.row_group(number), num_leaves, padding, file.size_bytes) for number in numbers]
    for number, (num_rows, *edges) in enumerate(groups):
        _check_group(file.name, number, num_rows, edges, start + padding)
    extensions = {field.name: found for field in schema if (found := extensions_of(field))}
    return {
        "footer": [start, start + len(footer)],
        "columns": [[name, str(kind), _size_bytes(kind), sample_type(kind)] for name, kind in fields],
        "groups": groups,
    } | ({"extensions": extensions} if extensions else {})


def entries_of(
    files: Sequence[DescribedFile], columns: tuple[str, ...] | None, _: None, *, is_in_place: bool
) -> list[ShardEntry]:
    """Return a shard for each row group that has rows; see ``formats``."""
    entries: list[ShardEntry] = []
    of_all = ColumnTypes(columns)
    extensions = ExtensionCheck()
    for file in files:
        of_all.add(file.name, [(name, text, kind) for name, text, _, kind in file.description["columns"]])
        of_columns: dict[str, list[str]] = file.description.get("extensions", {})
        extensions.check(file.name, {name: of_columns[name] for name in of_all.types if name in of_columns})
    # In the order of the first file, whatever the order of the chosen ones.
    types = {name: of_all.types[name] for name, *_ in files[0].description["columns"] if name in of_all.types}
    chosen: tuple[Column, ...] = ()
    for file in files:
        description = file.description
        present: dict[str, tuple[Any, ...]] = {
            name: (index, *facts) for index, (name, *facts) in enumerate(description["columns"])
        }
        found = tuple(_column(name, present[name], kind) for name, kind in types.items())
        # Shards with equal columns share one object.
        chosen = chosen if found == chosen else found
        positions = [present[name][0] for name in types]
        is_whole = len(positions) == len(description["columns"])
        footer = file.info("footer", (tuple(description["footer"]),), is_in_place=is_in_place)
        for group, (num_rows, *edges) in enumerate(description["groups"]):
            if not num_rows:
                continue
            ranges = tuple(_joined(sorted((edges[2 * index], edges[2 * index + 1]) for index in positions)))
            label = f"{group:05}" if is_whole else f"{group:05}.{_digest(ranges)}"
            entries.append(
                ShardEntry(
                    "parquet",
                    num_rows,
                    chosen,
                    file.info(label, ranges, is_in_place=is_in_place),
                    raw_meta=None if is_in_place else footer,
                    part=group,
                )
            )
    return entries


def parsed_footer(file: str, footer: bytes) -> Any:
    """Return the metadata in a footer.

    Raises:
        ShardCorruptError: The footer is damaged.
    """
    # Offsets in the footer are those of the file, and pyarrow looks at no other byte here.
    content = b"".join((_MAGIC, footer, len(footer).to_bytes(4, "little"), _MAGIC))
    try:
        return _parquet.read_metadata(_arrow.BufferReader(content))
    except genuine(_arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise unreadable(file, "the footer cannot be read", error) from error


def _writer_of(metadata: Any) -> str:
    """Return what a footer says of the program that has written the file; "" if it is no text: nothing else needs it."""
    try:
        return metadata.created_by or ""
    except genuine(UnicodeDecodeError):
        return ""


def _footer_of(file: StoredBytes) -> tuple[int, bytes]:
    """Return where the footer of a file begins, and the footer."""
    size_bytes = file.size_bytes
    least_bytes = len(_MAGIC) + _TAIL_BYTES
    if size_bytes < least_bytes:
        _check_kind(file.name, file)
        raise ShardCorruptError(file.name, f"not a Parquet file: {size_bytes} bytes, fewer than {least_bytes}")
    first = max(0, size_bytes - _FIRST_READ_BYTES)
    tail = file.read(first, size_bytes)
    if tail[-4:] == _ENCRYPTED:
        raise encrypted(file.name)
    if tail[-4:] != _MAGIC:
        _check_kind(file.name, file)
        raise ShardCorruptError(
            file.name, f"not a Parquet file, or torn: it ends with {tail[-4:]!r} instead of {_MAGIC!r}"
        )
    footer_bytes = int.from_bytes(tail[-_TAIL_BYTES:-4], "little")
    start = size_bytes - _TAIL_BYTES - footer_bytes
    if start < len(_MAGIC):
        expected = f"at most {size_bytes - least_bytes}, the size of the rest of the file"
        raise ShardCorruptError.of_field(file.name, "size of the footer in bytes", expected, footer_bytes)
    head = file.read(start, first) if start < first else b""
    return start, (head + tail[max(0, start - first) :])[:footer_bytes]


def _check_group(file: str, number: int, num_rows: int, edges: list[int], end: int) -> None:
    """Check that the columns of a row group are within the bytes of the file before ``end``, the footer."""
    if num_rows < 0:
        raise ShardCorruptError.of_field(file, f"rows of row group {number}", "at least 0", num_rows)
    for begin, stop in zip(edges[::2], edges[1::2], strict=True):
        if num_rows and not len(_MAGIC) <= begin <= stop <= end:
            expected = f"within the bytes {len(_MAGIC)} to {end} of the file"
            raise ShardCorruptError.of_field(file, f"range of row group {number}", expected, (begin, stop))


def _group(group: Any, num_leaves: list[int], padding: int, end: int) -> list[int]:
    """Return the number of rows of a row group, then the first byte of each column and the byte after its last.

    Args:
        group: The row group, as pyarrow has it.
        num_leaves: The number of column chunks of each column.
        padding: How much longer a column chunk may be than it says.
        end: The size of the file.
    """
    edges: list[int] = [group.num_rows]
    leaf = 0
    for count in num_leaves:
        spans = [chunk_span(group.column(index)) for index in range(leaf, leaf + count)]
        stop = max(stop for _, stop in spans)
        edges += [min(start for start, _ in spans), max(stop, min(stop + padding, end))]
        leaf += count
    return edges


def _column(name: str, described: Sequence[Any], of_all: SampleType) -> Column:
    """Return a column of a file's shards: as the file has it, unless other files need another type of numbers."""
    _, text, size_bytes, own = described
    return Column(name, text, size_bytes) if own == of_all else Column(name, encoding_of(of_all))


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges, with those that are close to each other as one."""
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and start - joined[-1][1] <= _LARGEST_GAP_BYTES:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined


def _digest(ranges: tuple[tuple[int, int], ...]) -> str:
    return blake2s(repr(ranges).encode(), digest_size=5).hexdigest()


def _num_leaves(kind: Any) -> int:
    """Return the number of column chunks that hold a column of a type."""
    if isinstance(kind, _arrow.BaseExtensionType):
        return _num_leaves(kind.storage_type)
    if _arrow.types.is_dictionary(kind):
        return 1
    return sum(_num_leaves(kind.field(index).type) for index in range(kind.num_fields)) if kind.num_fields else 1


def _size_bytes(kind: Any) -> int | None:
    """Return the size of every value of a type; None if it varies."""
    if _arrow.types.is_fixed_size_list(kind):
        item_bytes = _size_bytes(kind.value_type)
        return None if item_bytes is None else item_bytes * kind.list_size
    if _arrow.types.is_primitive(kind) and kind.bit_width >= 8:
        return kind.bit_width // 8
    return None


class ParquetReader(PartReader):
    """An open row group. It is decoded when the first of its rows is read, and again if it was dropped since.

    Args:
        directory: Directory of the dataset, or of its cache.
        entry: The shard.
        options: How its rows are read.

    Raises:
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file's size or its footer contradicts the index.
    """

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        super().__init__(directory, entry, options)
        origin, path, decoded = self._origin, self._path, self._decoded
        self._group: int = entry.part
        self._names = [column.name for column in entry.columns]
        self._leaves: list[int] | None = None
        self._int96: frozenset[str] = frozenset()
        self._encodings = {column.name: column.encoding for column in entry.columns}
        self._key = (str(path), self._group, tuple(self._encodings.items()))
        if entry.raw_meta is None:
            # Of the whole file, thousands of row groups would take all addresses that a process has.
            start = min((start for start, _ in origin.ranges), default=0)
            stop = max((stop for _, stop in origin.ranges), default=0)
            content = mapped_span(path, FileInfo(origin.name, origin.size_bytes), start, stop, options.register)
            spans = [(first, last, content[first - start : last - start]) for first, last in origin.ranges]
            self._metadata = decoded.footer((str(path), origin.version), lambda: self._footer_in(path))
        else:
            spans = _spans_of(mapped(path, entry.raw_data, options.register), origin)
            footer = entry.raw_meta
            self._metadata = decoded.footer(
                str(directory / footer.basename),
                lambda: parsed_footer(self._name, bytes(mapped(directory / footer.basename, footer, options.register))),
            )
        self._check_version()
        # Of its own for each decoding: threads share this reader, and a file has one position.
        self._source: Callable[[], Any] | None = positioned(partial(_bytes_of, spans), origin.size_bytes)
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
            raise self._of_value(name, values, rows, error) from error

    def _of_value(self, name: str, values: ArrowValues, rows: npt.NDArray[Any], error: Exception) -> FkatDataError:
        """Return the error of the first row whose value cannot be made; of all, if each can."""
        for row in rows:
            try:
                values.listed(np.array([row]), arrays=self._arrays, is_writable=False)
            except genuine(_arrow.ArrowException, ValueError, OverflowError) as problem:
                return bad_value(self._name, f"row group {self._group}, row {row}", name, problem)
        return bad_value(self._name, f"row group {self._group}", name, error)

    def _columns(self) -> dict[str, ArrowValues]:
        return self._decoded.group(self._key, self._decode)

    def _decode(self) -> tuple[dict[str, ArrowValues], int]:
        source = self._source
        if source is None:
            return {}, 0
        # An access to what was cut off would end the process.
        self._check_version()
        try:
            # Pages that have a checksum are compared with it; the others cost nothing.
            with _parquet.ParquetFile(source(), metadata=self._metadata, page_checksum_verification=True) as file:
                if self._leaves is None:
                    leaves = leaves_of(file, self._names)
                    # First: another thread that finds the leaves takes both.
                    self._int96 = columns_of_int96(file, leaves)
                    self._leaves = leaves
                table = row_group(file, self._group, self._leaves)
            # A process that writes into the file changes what is mapped.
            self._check_version()
            for name in self._names:
                if len(table.column(name)) != self.num_samples:
                    raise ShardCorruptError.of_field(
                        self._name, f"rows of column {name!r}", str(self.num_samples), len(table.column(name))
                    )
            seconds = int96_in_seconds(source, self._metadata, self._group, self._int96)
            columns = {
                name: ArrowValues(fitted(table.column(name), kind), seconds.get(name))
                for name, kind in self._encodings.items()
            }
        except genuine(_arrow.ArrowException, OSError, KeyError) as error:
            raise unreadable(self._name, "cannot be decoded", error) from error
        return columns, sum(values.size_bytes for values in columns.values())

    def _footer_in(self, path: Path) -> Any:
        try:
            return _parquet.read_metadata(_arrow.OSFile(os.fsencode(path)))
        except genuine(_arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise unreadable(self._name, "the footer cannot be read", error) from error


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


def _bytes_of(spans: Sequence[_Span], start: int, stop: int) -> memoryview:
    """Return bytes of ranges; any other byte is an error."""
    found = bytes_within(spans, start, stop)
    if found is not None:
        return found
    raise OSError(f"bytes {start:,} to {stop:,} are not of this row group")


class WholeFile:
    """An open Parquet file, and what its footer says.

    Args:
        path: A local path, or a URI that fsspec supports.
        storage_options: Options for fsspec, for files that are not local.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: It is not a Parquet file, or its footer contradicts itself.
        ConfigurationError: It is a folder, or a file of another kind by its first bytes.

    Attributes:
        path: Where it is.
        schema: pyarrow's schema.
        names: The names of its columns.
        columns: Name, Arrow type and type of samples of each column.
        num_rows: The number of rows of each row group.
    """

    def __init__(self, path: str, storage_options: Mapping[str, Any]) -> None:
        self.path = path
        local = local_path(path)
        self._identity: FileIdentity | None = None
        self._remote: tuple[RangedFile, HeldRanges] | None = None
        try:
            if local is None:
                file = RangedFile(path, storage_options)
                tail = HeldRanges.tail(file)
                self._remote = file, tail
                self._source: Callable[[], Any] = positioned(tail.read, file.size_bytes)
            else:
                check_regular(path, local)
                source = _arrow.memory_map(os.fsencode(local))  # a name may be no UTF-8
                self._identity = FileIdentity.of_descriptor(source.fileno())
                self._source = lambda: source
            parquet = _parquet.ParquetFile(self._source())
            self.schema: Any = parquet.schema_arrow
            self.names: list[str] = self.schema.names
            self.columns: list[tuple[str, str, SampleType]] = [
                (field.name, str(field.type), sample_type(known_type(field.type))) for field in self.schema
            ]
        except ShardNotFoundError:
            raise
        except genuine(FileNotFoundError) as error:
            raise not_found(path) from error
        except genuine(_arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            if local is not None and Path(local).is_dir():
                raise is_folder(path) from error
            _check_kind(shown_path(path), RangedFile(path, storage_options))
            raise unreadable(path, "not a Parquet file", error) from error
        self._int96: frozenset[str] = columns_of_int96(parquet)
        if self._remote is not None:
            self._chunk_check = ChunkCheck(path, parquet.metadata, self._remote[0].size_bytes)
            self._leaf_columns: list[str] = [leaf[0] for leaf in parquet.reader.column_paths]
            self._checked: set[tuple[int, ...]] = set()  # row groups, each with the leaf columns that were looked at
        self._metadata: Any = parquet.metadata
        metadata = self._metadata
        self._is_for_one_thread = False
        self._opened: Any = None
        footer_bytes = self._footer_bytes()
        if footer_bytes - metadata.serialized_size == _SIGNATURE_BYTES:
            raise encrypted(path)
        check_own_columns(path, metadata, self._source().seek(0, os.SEEK_END) - _TAIL_BYTES - footer_bytes)
        self.num_rows: list[int] = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        # Some writers leave the file's number at 0.
        if metadata.num_rows not in (0, sum(self.num_rows)) or min(self.num_rows, default=0) < 0:
            expected = f"{metadata.num_rows} together, as the footer says of the file"
            raise ShardCorruptError.of_field(path, "rows of the row groups", expected, self.num_rows)

    def row_group(self, group_index: int, names: Collection[str]) -> Any:
        """Return some columns of a row group as a table; raise what ``row_groups.row_group`` raises."""
        file = self._reader()
        return row_group(file, group_index, leaves_of(file, names))

    def row_batches(self, group_index: int, names: Collection[str], rows_at_once: int) -> Iterator[Any]:
        """Yield some columns of a row group as record batches; raise what ``row_groups.row_batches`` raises."""
        file = self._reader()
        yield from row_batches(file, group_index, leaves_of(file, names), rows_at_once)

    def _reader(self) -> Any:
        """Return pyarrow's reader of the file, for one thread: it keeps what it has fetched for the call in work."""
        if self._opened is not None:
            return self._opened
        # Only files of some writers have checksums of their pages. What is in memory need not be read across gaps.
        options = {} if self._remote is None else {"pre_buffer": False}
        opened = _parquet.ParquetFile(
            self._source(), metadata=self._metadata, page_checksum_verification=True, **options
        )
        if self._is_for_one_thread:
            self._opened = opened
        return opened

    def with_columns(self, group_indices: Sequence[int], names: Collection[str], *, is_ahead: bool = False) -> Self:
        """Return a file that has some columns of row groups in memory, for one thread.

        A remote one fetches them now; a local one maps them.

        Args:
            group_indices: The row groups.
            names: The columns.
            is_ahead: Whether the caller reads ahead itself.

        Raises:
            ShardCorruptError: The file has become shorter, or its footer is damaged.
            OSError: The file cannot be read.
        """
        found = copy.copy(self)
        found._is_for_one_thread = True  # noqa: SLF001 - a copy of this one
        if self._remote is None:
            return found
        file, tail = self._remote
        spans = [span for group_index in group_indices for span in self._spans(group_index, names)]
        held = HeldRanges(file, spans, tail, is_ahead=is_ahead)
        found._source = positioned(held.read, file.size_bytes)  # noqa: SLF001 - a copy of this one
        return found

    def begin(self, group_index: int, names: Collection[str]) -> None:
        """Have a remote file ask for what ``with_columns`` will fetch, and do not wait for it."""
        if self._remote is not None:
            file, tail = self._remote
            file.begin(tail.missing(self._spans(group_index, names)))

    def num_bytes(self, group_index: int, names: Collection[str]) -> int:
        """Return the bytes of some columns of a row group that ``with_columns`` fetches."""
        return 0 if self._remote is None else sum(stop - start for start, stop in self._spans(group_index, names))

    def _spans(self, group_index: int, names: Collection[str]) -> list[tuple[int, int]]:
        if self._remote is None:
            return []
        size_bytes = self._remote[0].size_bytes
        leaves = [leaf for leaf, name in enumerate(self._leaf_columns) if name in names]
        if (group_index, *leaves) not in self._checked:
            self._chunk_check.check(group_index, leaves)
            self._checked.add((group_index, *leaves))
        return chunk_spans(self._metadata, group_index, leaves, size_bytes)

    def in_seconds(self, group_index: int, names: Collection[str]) -> dict[str, Any]:
        """Return those of some columns of a row group that have times of 96 bits, these as seconds."""
        return int96_in_seconds(self._source, self._metadata, group_index, self._int96.intersection(names))

    def _footer_bytes(self) -> int:
        source = self._source()
        source.seek(-_TAIL_BYTES, os.SEEK_END)
        return int.from_bytes(source.read(_TAIL_BYTES)[:4], "little")

    def digest(self) -> int:
        """Return a number that differs where the footer does."""
        source = self._source()
        end = source.seek(-_TAIL_BYTES, os.SEEK_END)
        source.seek(end - self._footer_bytes())
        return zlib.crc32(source.read(end - source.tell()))

    def check(self) -> None:
        """Check that a local file, which is mapped, was not written again in its place.

        Raises:
            ShardCorruptError: It was. Reading what was cut off would end the process.
        """
        if self._identity is None:
            return
        try:
            now = FileIdentity.of_descriptor(
                self._source().fileno()
            )  # not of the path, where another file may be by now
        except genuine(OSError):
            return  # removed from a server, which knows it no more
        if now.is_rewritten_since(self._identity):
            raise changed(self.path)

    def check_decoded(self, group_index: int, num_rows: int) -> None:
        """Check that a row group had as many rows as the footer says, and that the file is still the same.

        Raises:
            ShardCorruptError: It had not, or it is not.
        """
        self.check()
        if num_rows != self.num_rows[group_index]:
            expected = f"{self.num_rows[group_index]}, as the footer says"
            raise ShardCorruptError.of_field(self.path, f"rows of row group {group_index}", expected, num_rows)


def _check_kind(path: str, file: StoredBytes | RangedFile) -> None:
    check_kind(path, file.read(0, min(START_BYTES, file.size_bytes)), "Parquet")
