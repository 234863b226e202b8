"""Read rows of Parquet files as tensors, by index or sequentially, one row group at a time."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from fkat_data.datasets.item_index import (
    MOST_OPEN_IN_STORES,
    DatasetOfFiles,
    IndexedFiles,
    counted_from_starts,
    counter,
    in_parts,
)
from fkat_data.errors import FkatDataError, ShardError, arguments
from fkat_data.files.arrow import ArrowColumn, rows_in_turn, rows_of
from fkat_data.files.arrow_extensions import ExtensionCheck, extensions_of
from fkat_data.files.column_chunks import in_slices
from fkat_data.files.column_types import fitted
from fkat_data.files.counted_file import CountedFile
from fkat_data.files.limits import bad_value
from fkat_data.files.lru_cache import LruCache
from fkat_data.files.opening import (
    Locations,
    changed,
    local_path,
    names_of,
    shown_path,
)
from fkat_data.files.parquet import WholeFile
from fkat_data.files.row_groups import unreadable
from fkat_data.files.sample_types import ColumnTypes, SampleType
from fkat_data.observe.stages import reading
from fkat_data.runtime.background import BackgroundCall, in_parallel
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.machine import required

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")

# An open file holds a descriptor and its footer.
_MAX_OPEN_FILES = 32
# Files that are opened at a time, how much of a batch is fetched at a time; and, where reading is in order, how much is fetched
# while rows are decoded, in the beginning and later, in how many parts of how many row groups, and how large the next may be.
_NUM_THREADS = 16
_MOST_FETCHED_BYTES = 64 << 20
_LEAST_AHEAD_BYTES, _AHEAD_BYTES, _MOST_AHEAD_BYTES = 2 << 20, 16 << 20, 256 << 20
_NUM_PARTS_AHEAD, _MOST_GROUPS_TOGETHER = 4, 16
#: The index of a row that is read alone.
_ALONE: npt.NDArray[np.int64] = np.zeros(1, np.int64)


class _ParquetFiles(DatasetOfFiles):
    """One or more Parquet files, and what is read of them."""

    def __init__(
        self, paths: Locations, columns: Sequence[str] | None, storage_options: Mapping[str, Any] | None
    ) -> None:
        super().__init__(paths, storage_options)
        self.columns: list[str] | None = None if columns is None else names_of("columns", columns)


def _num_rows(path: str, storage_options: Mapping[str, Any], **_: Any) -> int:
    return sum(WholeFile(path, storage_options).num_rows)


_counted_files = counter("parquet", _num_rows)


class ParquetDataset(_ParquetFiles, IndexedFiles):
    """Rows of one or more Parquet files, as a map-style dataset.

    The constructor reads only the footers of the files. A row group is decoded when one of its rows is requested, and
    the last few stay decoded. So a sampler that stays within a few row groups at a time reads each of them once.
    Local files are memory-mapped, and at most 32 files are open at a time. Of files in stores, the chosen columns of row
    groups are kept as they are stored, too, at most 64 MiB in each process. A copy in another process opens the files
    again on its first read.

    A row is a dict from column to value. Fixed-size lists of numbers or booleans, nested or not, become tensors, which
    are views of one array for all rows of a microbatch. So do numbers of types that Python lacks, such as int32 and
    float32. Times with nanoseconds are NumPy's, ``datetime64[ns]`` in UTC and ``timedelta64[ns]``. Every other value, such
    as an int64, a float64 or a boolean, and every value that contains a null, is what pyarrow's ``to_pylist`` returns. Once enough short strings of a row group were read, all of them are converted to
    Python strings, which doubles their memory. Collated by torch, every number has its column's dtype.

    Args:
        paths: One or more Parquet files, in this order: local paths, or URIs that fsspec supports.
        columns: Columns to read; None: all.
        storage_options: Options for fsspec, for files that are not local.
        row_groups_kept: Number of decoded row groups to keep in memory, at least 1.

    Raises:
        ConfigurationError: ``paths`` is empty, a file lacks a column or has two of its name, or the samples of a column
            are of another type than in the files before.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file is not a Parquet file.
    """

    # In the class itself: a subclass may have other samples.
    counted_files: ClassVar[Callable[..., list[CountedFile]]] = staticmethod(_counted_files)

    def __init__(
        self,
        paths: Locations,
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        row_groups_kept: int = 4,
    ) -> None:
        super().__init__(paths, columns, storage_options)
        self.row_groups_kept: int = arguments.integer("row_groups_kept", row_groups_kept, minimum=1)
        self._files: LruCache[Any] = LruCache(MOST_OPEN_IN_STORES if self._has_remote else _MAX_OPEN_FILES)
        self._decoded_groups: LruCache[dict[str, ArrowColumn]] = LruCache(self.row_groups_kept)
        self._groups: list[_RowGroup] = []
        self._footers: list[int] = []
        of_all = ColumnTypes(self.columns)
        extensions = ExtensionCheck()
        for file_index, path in enumerate(self.paths):
            file = WholeFile(path, self.storage_options)
            self._files.get(file_index, partial(_same, file))
            self._footers.append(file.digest())
            of_all.add(path, file.columns)
            extensions.check(path, {name: extensions_of(file.schema.field(name)) for name in of_all.types})
            sizes = (file.num_bytes(number, self.columns or file.names) for number in range(len(file.num_rows)))
            groups = zip(file.num_rows, sizes, strict=True)
            self._groups += [_RowGroup(file_index, number, *group) for number, group in enumerate(groups)]
        # What was fetched of stores, as it is stored; None: row groups are too large for that, or local.
        num_fetched = _MOST_FETCHED_BYTES // max(1, *(group.num_bytes for group in self._groups), 1)
        is_held = self._has_remote and num_fetched > 1
        self._fetched_groups: LruCache[WholeFile] | None = LruCache(num_fetched) if is_held else None
        self._types = of_all.types
        # _ends[g]: rows up to and including row group g.
        self._ends = np.cumsum([group.num_rows for group in self._groups], dtype=np.int64)

    def _read_one(self, index: int) -> dict[str, Any]:
        group = int(np.searchsorted(self._ends, index, side="right"))
        within = np.array([index - int(self._ends[group - 1]) if group else index])
        return self._rows([(group, _ALONE, within)], 1)[0]

    def _read_together(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at ``indices``. Each row group is decoded once.

        Raises:
            IndexError: An index is out of range.
            ShardCorruptError: A row group cannot be decoded or has other rows than the footer says, or the file has
                changed.
            ConfigurationError: A value is one that Python cannot hold.
        """
        rows = counted_from_starts(indices, len(self), "row")
        return self._rows(list(in_parts(rows, self._ends)), len(rows))

    def _rows(
        self, parts: Sequence[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]], num_rows: int
    ) -> list[dict[str, Any]]:
        """Return rows: of each row group, their positions among all of them, and their numbers within it."""
        try:
            decoded = self._decoded_together([group for group, _, _ in parts])
            return rows_of(
                num_rows, ((at, within, group) for (_, at, within), group in zip(parts, decoded, strict=True))
            )
        except genuine(_arrow.ArrowException, ValueError, OverflowError):
            for group, _, within in parts:
                file_index, group_in_file, *_ = self._groups[group]
                _check_values(self.paths[file_index], group_in_file, within, self._decoded(group))
            raise

    def _location(self, part: int, row: int) -> str:
        group = self._groups[part]
        return _location_text(self.paths[group.file_index], group.index_in_file, row)

    def file_digests(self) -> list[int]:
        """Return a number for each file that differs where its footer does."""
        return list(self._footers)

    def _file(self, number: int) -> "WholeFile":
        return self._files.get(number, partial(self._opened_again, number))

    def _opened_again(self, file_index: int) -> "WholeFile":
        file = WholeFile(self.paths[file_index], self.storage_options)
        if file.digest() != self._footers[file_index]:
            raise changed(self.paths[file_index], "its footer is not the one that this dataset was made of")
        return file

    def _decoded_together(self, group_indices: Sequence[int]) -> Iterator[dict[str, ArrowColumn]]:
        """Yield the decoded row groups; of remote files, those that are not kept are fetched several at a time."""
        if not self._has_remote or len(group_indices) == 1:
            yield from map(self._decoded, group_indices)
            return
        sizes = [
            (group, 0 if group in self._decoded_groups else self._groups[group].num_bytes) for group in group_indices
        ]
        for together in in_slices(sizes, _MOST_FETCHED_BYTES):
            with reading():
                self._begin_groups(together)
            yield from map(self._decoded, together)

    def _begin(self, parts: Sequence[tuple[int, list[int]]]) -> None:
        sizes = [(group, self._groups[group].num_bytes) for group, _ in parts if group not in self._decoded_groups]
        for together in islice(in_slices(sizes, _MOST_FETCHED_BYTES), 1):
            self._begin_groups(together)

    def _begin_groups(self, group_indices: Sequence[int]) -> None:
        """Ask stores for row groups that are not kept, and do not wait for them."""
        held = self._fetched_groups or ()
        missing = (group for group in group_indices if group not in self._decoded_groups and group not in held)
        groups = [self._groups[group] for group in missing]
        unopened = [number for number in {group.file_index for group in groups} if number not in self._files]
        if len(unopened) > 1:
            in_parallel(self._file, unopened, _NUM_THREADS)
        for group in groups:
            file = self._file(group.file_index)
            file.begin(group.index_in_file, self.columns or file.names)

    def _fetched(self, group_index: int) -> WholeFile:
        file_index, group_in_file, *_ = self._groups[group_index]
        file = self._file(file_index)
        fetch = partial(file.with_columns, [group_in_file], self.columns or file.names)
        return fetch() if self._fetched_groups is None else self._fetched_groups.get(group_index, fetch)

    def _decoded(self, group_index: int) -> dict[str, ArrowColumn]:
        return self._decoded_groups.get(group_index, partial(self._decode, group_index))

    def _decode(self, group_index: int) -> dict[str, ArrowColumn]:
        group = self._groups[group_index]
        path = self.paths[group.file_index]
        with _reading(path):
            file = self._fetched(group_index)
        names: list[str] = self.columns or file.names
        file.check()
        try:
            with _reading(path):
                table = file.row_group(group.index_in_file, names)
                seconds = file.in_seconds(group.index_in_file, names)
            columns = {
                name: ArrowColumn.of(fitted(table.column(name), self._types[name]), seconds.get(name)) for name in names
            }
        except genuine(_arrow.ArrowException, OSError) as error:
            raise unreadable(path, f"row group {group.index_in_file}", error) from error
        file.check_decoded(group.index_in_file, table.num_rows)
        return columns


class IterableParquetDataset(_ParquetFiles, IterableDataset[dict[str, Any]]):
    """Rows of one or more Parquet files in order, as an iterable dataset.

    The rows are those of ``ParquetDataset``. One file is open at a time, and memory holds the compressed columns of one
    row group (of a remote file, of two, or of as many as take 20 MiB) and ``rows_at_once`` decoded rows. In a DataLoader with *n* workers, worker *w* reads the row groups *w*,
    *w + n* and so on, so that each row comes once.

    Files are opened when iteration begins. A resume replays this dataset up to its position, while ``ParquetDataset``
    skips what was delivered.

    Args:
        paths: One or more Parquet files, in this order: local paths, or URIs that fsspec supports.
        columns: Columns to read; None: all.
        storage_options: Options for fsspec, for files that are not local.
        rows_at_once: Number of rows to decode at a time, at least 1.

    Raises:
        ConfigurationError: An argument is invalid; during iteration, if a file lacks a column or has two of its name, the
            samples of a column are of another type than in the files before, or Python cannot hold a value.
        ShardNotFoundError: During iteration, if a file does not exist.
        ShardCorruptError: During iteration, if a file is not a Parquet file, or a row group cannot be decoded.
    """

    # In the class itself: a subclass may have other samples.
    counted_files: ClassVar[Callable[..., list[CountedFile]]] = staticmethod(_counted_files)

    def __init__(
        self,
        paths: Locations,
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        rows_at_once: int = 1024,
    ) -> None:
        super().__init__(paths, columns, storage_options)
        self.rows_at_once: int = arguments.integer("rows_at_once", rows_at_once, minimum=1)
        self._extensions = ExtensionCheck()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for *_, rows in self._groups_in_turn():
            yield from rows

    def located_samples(self) -> Iterator[tuple[dict[str, Any], tuple[str, int, int]]]:
        """Yield each row with its file, its row group and its number there.

        Raises:
            Exception: What iterating over the dataset raises.
        """
        for path, group_index, first, rows in self._groups_in_turn():
            for number, row in enumerate(rows, first):
                yield row, (path, group_index, number)

    @staticmethod
    def location_text(location: tuple[str, int, int]) -> str:
        """Return a location of ``located_samples`` in words."""
        return _location_text(*location)

    def _groups_in_turn(self) -> Iterator[tuple[str, int, int, list[dict[str, Any]]]]:
        """Yield this worker's rows: their file, their row group, the number of the first one there, and the rows."""
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        of_all = ColumnTypes(self.columns)
        # What a number of one file is depends on all files.
        for path in self.paths if len(self.paths) > 1 else ():
            with suppress(ShardError, OSError):  # raised when this file's turn comes
                of_all.add(path, WholeFile(path, self.storage_options).columns)
        num_groups = 0  # in the files before
        for path in self.paths:
            file = WholeFile(path, self.storage_options)
            of_all.add(path, file.columns)
            found = {name: extensions_of(file.schema.field(name)) for name in of_all.types}
            self._extensions.check(path, found, is_logged=worker == 0)
            own = range((worker - num_groups) % num_workers, len(file.num_rows), num_workers)
            for group_index, fetched in _fetched_in_turn(file, own, self.columns or file.names):
                first = 0
                for rows in self._decoded(fetched, group_index, of_all.types):
                    yield path, group_index, first, rows
                    first += len(rows)
            num_groups += len(file.num_rows)

    def _decoded(
        self, file: "WholeFile", group_index: int, types: Mapping[str, SampleType]
    ) -> Iterator[list[dict[str, Any]]]:
        names: list[str] = self.columns or file.names
        batches = file.row_batches(group_index, names, self.rows_at_once)
        num_rows = 0  # decoded so far
        seconds: dict[str, Any] | None = None
        while True:
            file.check()
            try:
                with _reading(file.path):
                    batch = next(batches, None)
                    seconds = file.in_seconds(group_index, names) if seconds is None else seconds
                columns = {} if batch is None else _columns_of(batch, types, seconds, num_rows)
            except genuine(_arrow.ArrowException, OSError) as error:
                raise unreadable(file.path, f"row group {group_index}", error) from error
            if batch is None:
                file.check_decoded(group_index, num_rows)
                return
            file.check()
            num_decoded = int(batch.num_rows)
            try:
                yield from rows_in_turn(num_decoded, columns)
            except genuine(_arrow.ArrowException, ValueError, OverflowError):
                _check_values(file.path, group_index, np.arange(num_decoded), columns, num_rows)
                raise
            num_rows += num_decoded


class _Part(NamedTuple):
    """Row groups that are fetched together."""

    groups: list[int]
    num_bytes: int


def _fetched_in_turn(
    file: WholeFile, group_indices: Sequence[int], names: Sequence[str]
) -> Iterator[tuple[int, WholeFile]]:
    """Yield row groups, each with a file that has its columns; of a remote one, the next are fetched meanwhile.

    Several are fetched by one call: beside a thread that makes rows, another one gets its turn only each 5 ms.
    """
    parts = _parts_of(file, group_indices, names)
    following = next(parts, None)
    ahead: deque[tuple[_Part, BackgroundCall[WholeFile]]] = deque()
    num_read = 0  # bytes; no more is fetched ahead, but in the beginning
    while ahead or following is not None:
        if ahead:
            part, call = ahead.popleft()
            fetch = call.result
        else:
            part = cast("_Part", following)
            fetch = partial(file.with_columns, part.groups, names, is_ahead=True)
            following = next(parts, None)
        fetched: WholeFile | None = None
        with _reading(file.path):
            try:
                fetched = fetch()
            except genuine(ShardError, OSError):
                if len(part.groups) == 1:
                    raise
                # Rows come first that are before what cannot be read: see below.
        num_read += part.num_bytes
        most_bytes = min(_AHEAD_BYTES, max(_LEAST_AHEAD_BYTES, num_read))
        while following is not None and 0 < following.num_bytes <= _MOST_AHEAD_BYTES and len(ahead) < _NUM_PARTS_AHEAD:
            if ahead and sum(each.num_bytes for each, _ in ahead) + following.num_bytes > most_bytes:
                break
            call = BackgroundCall(partial(file.with_columns, following.groups, names, is_ahead=True))
            ahead.append((following, call))
            following = next(parts, None)
        for group_index in part.groups:
            if fetched is not None:
                yield group_index, fetched
                continue
            with _reading(file.path):
                alone = file.with_columns([group_index], names, is_ahead=True)
            yield group_index, alone


def _parts_of(file: WholeFile, group_indices: Sequence[int], names: Sequence[str]) -> Iterator[_Part]:
    """Yield the row groups of a file: the first one alone, since the first row waits for it, then more and more together."""
    part = _Part([], 0)
    num_before = 0  # bytes
    for group_index in group_indices:
        num_bytes = _AHEAD_BYTES  # of a damaged one, whose error is raised in its turn
        with suppress(FkatDataError):
            num_bytes = file.num_bytes(group_index, names)
        most_bytes = max(_LEAST_AHEAD_BYTES, min(_AHEAD_BYTES, num_before)) // _NUM_PARTS_AHEAD
        is_full = len(part.groups) == _MOST_GROUPS_TOGETHER or part.num_bytes + num_bytes > most_bytes
        if part.groups and (is_full or not num_before):
            yield part
            num_before += part.num_bytes
            part = _Part([], 0)
        part = _Part([*part.groups, group_index], part.num_bytes + num_bytes)
    if part.groups:
        yield part


def _columns_of(
    batch: Any, types: Mapping[str, SampleType], seconds: Mapping[str, Any], first: int
) -> dict[str, ArrowColumn]:
    parts = {name: column.slice(first, batch.num_rows) for name, column in seconds.items()}
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return {name: ArrowColumn.of(fitted(columns[name], kind), parts.get(name)) for name, kind in types.items()}


class _RowGroup(NamedTuple):
    file_index: int
    index_in_file: int
    num_rows: int
    num_bytes: int


def _location_text(path: str, group_index: int, row: int) -> str:
    return f"row group {group_index}, row {row} (from 0), of {shown_path(path)}"


def _same(file: WholeFile) -> WholeFile:
    return file


def _check_values(
    path: str, group_index: int, rows: npt.NDArray[np.int64], columns: Mapping[str, ArrowColumn], first: int = 0
) -> None:
    """Find the value that Python cannot hold.

    Raises:
        ConfigurationError: One of the rows has one.
        ShardCorruptError: One of the rows has a text that is none.
    """
    for row in cast("list[int]", rows.tolist()):
        for name, column in columns.items():
            try:
                column.values_at(np.array([row]))
            except genuine(_arrow.ArrowException, ValueError, OverflowError) as error:
                raise bad_value(path, f"row group {group_index}, row {first + row}", name, error) from error


def _reading(path: str) -> AbstractContextManager[None]:
    """Return a context that counts the time of a remote file's reads as time of the store.

    pyarrow reads in its own thread, so this also counts the decoding, which takes less time.
    """
    return nullcontext() if local_path(path) is not None else reading()
