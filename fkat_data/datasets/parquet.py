"""Read rows of Parquet files as tensors, by index or sequentially, one row group at a time."""

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fkat_data import arguments
from fkat_data.arrow_column import ArrowColumn, rows_of
from fkat_data.counted_file import CountedFile
from fkat_data.datasets.opening import local_path, locations_of, names_of, open_uri
from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.observe.stages import reading
from fkat_data.requirement import required

__all__ = ["IterableParquetDataset", "ParquetDataset"]

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_parquet = required("pyarrow.parquet", "parquet")

# An open file holds a descriptor and its footer.
_MAX_OPEN_FILES = 32


class ParquetDataset(Dataset[dict[str, Any]]):
    """Rows of one or more Parquet files, as a map-style dataset.

    The constructor reads only the footers of the files. A row group is decoded when one of its rows is requested, and
    the last few stay decoded. So a sampler that stays within a few row groups at a time reads each of them once.
    Local files are memory-mapped, and at most 32 files are open at a time. A copy in another process opens the files
    again on its first read.

    A row is a dict from column to value. Fixed-size lists of numbers or booleans, nested or not, become tensors, which
    are views of one array for all rows of a microbatch. So do numbers of types that Python lacks, such as int32 and
    float32. Every other value, such as an int64, a float64 or a boolean, and every value that contains a null, is what
    pyarrow's ``to_pylist`` returns. Once enough short strings of a row group were read, all of them are converted to
    Python strings, which doubles their memory. Collated by torch, every number has its column's dtype.

    Args:
        paths: One or more Parquet files, in this order: local paths, or URIs that fsspec supports.
        columns: Columns to read; None: all.
        storage_options: Options for fsspec, for files that are not local.
        row_groups_kept: Number of decoded row groups to keep in memory, at least 1.

    Raises:
        ConfigurationError: ``paths`` is empty, or a file lacks a column.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file is not a Parquet file, or its column types differ from those of the first file.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        row_groups_kept: int = 4,
    ) -> None:
        self.paths: list[str] = locations_of("paths", paths)
        self.columns: list[str] | None = None if columns is None else names_of("columns", columns)
        self.storage_options: dict[str, Any] = dict(storage_options or {})
        self.row_groups_kept: int = arguments.integer("row_groups_kept", row_groups_kept, minimum=1)
        self._forget_files()
        self._groups: list[_RowGroup] = []
        types: dict[str, Any] = {}
        for file_index, path in enumerate(self.paths):
            file = self._file(file_index)
            _check_columns(path, file.schema_arrow, self.columns, types, self.paths[0])
            metadata = file.metadata
            self._groups += [
                _RowGroup(file_index, group_index, metadata.row_group(group_index).num_rows)
                for group_index in range(metadata.num_row_groups)
            ]
        # _ends[g]: rows up to and including row group g.
        self._ends = np.cumsum([group.num_rows for group in self._groups], dtype=np.int64)

    @classmethod
    def counted_files(
        cls,
        paths: str | Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[CountedFile]:
        """Return the files, to be counted without a dataset; takes the arguments of the constructor.

        Raises:
            ConfigurationError: ``paths`` is empty.
        """
        del columns, options
        return _counted(paths, storage_options)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at ``indices``, in that order. Each row group is decoded once.

        Args:
            indices: Indices of rows; negative ones count from the end.

        Raises:
            IndexError: An index is out of range.
            ShardCorruptError: A row group cannot be decoded.
        """
        rows = self._row_numbers(indices)
        return rows_of(len(rows), self._parts(rows))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_files()

    def _forget_files(self) -> None:
        self._opened: OrderedDict[int, Any] = OrderedDict()
        self._cache: OrderedDict[int, dict[str, ArrowColumn]] = OrderedDict()
        self._process_id = os.getpid()

    def _row_numbers(self, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        length = len(self)
        rows = np.asarray(indices) if len(indices) else np.empty(0, np.int64)
        if rows.dtype.kind not in "iu":
            raise TypeError(f"row indices must be integers, not {indices!r}")
        # As unsigned numbers, negative ones are the largest: one comparison finds all that need a closer look.
        if not np.count_nonzero(rows.astype(np.int64, copy=False).view(np.uint64) >= length):
            return rows
        outside = (rows < -length) | (rows >= length)
        if outside.any():
            raise IndexError(f"index {int(rows[outside][0])} is out of range for a dataset of {length} rows")
        return np.where(rows < 0, rows + length, rows)

    def _parts(
        self, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], dict[str, ArrowColumn]]]:
        if not len(rows):
            return
        group_of_row = np.searchsorted(self._ends, rows, side="right")
        group_index = int(group_of_row[0])
        if np.count_nonzero(group_of_row == group_index) == len(rows):
            first_row = int(self._ends[group_index]) - self._groups[group_index].num_rows
            yield rows, rows - first_row if first_row else rows, self._decoded(group_index)
            return
        for group_index in cast("list[int]", np.unique(group_of_row).tolist()):
            positions = np.flatnonzero(group_of_row == group_index)
            first_row = int(self._ends[group_index]) - self._groups[group_index].num_rows
            yield positions, rows[positions] - first_row, self._decoded(group_index)

    def _file(self, file_index: int) -> Any:
        if self._process_id != os.getpid():
            # A forked child shares its parent's file offsets, so it opens its own files.
            self._forget_files()
        if file_index not in self._opened:
            while len(self._opened) >= _MAX_OPEN_FILES:
                self._opened.popitem(last=False)
            self._opened[file_index] = _open(self.paths[file_index], self.storage_options)
        self._opened.move_to_end(file_index)
        return self._opened[file_index]

    def _decoded(self, group_index: int) -> dict[str, ArrowColumn]:
        if self._process_id == os.getpid() and group_index in self._cache:
            self._cache.move_to_end(group_index)
            return self._cache[group_index]
        group = self._groups[group_index]
        file = self._file(group.file_index)  # first: it empties the cache in a forked child
        names: list[str] = self.columns or file.schema_arrow.names
        while len(self._cache) >= self.row_groups_kept:
            self._cache.popitem(last=False)
        try:
            # One thread, because a worker shares the machine with the trainer.
            with _reading(self.paths[group.file_index]):
                table = file.read_row_group(group.index_in_file, columns=names, use_threads=False)
            self._cache[group_index] = {name: ArrowColumn.of(table.column(name)) for name in names}
        except (_arrow.ArrowException, OSError) as error:
            if not _is_corruption(error):
                raise
            path = self.paths[group.file_index]
            raise ShardCorruptError(path, f"row group {group.index_in_file}: {error}") from error
        return self._cache[group_index]


class IterableParquetDataset(IterableDataset[dict[str, Any]]):
    """Rows of one or more Parquet files in order, as an iterable dataset.

    The rows are those of ``ParquetDataset``. One file is open at a time, and memory holds the compressed columns of one
    row group and ``rows_at_once`` decoded rows. In a DataLoader with *n* workers, worker *w* reads the row groups *w*,
    *w + n* and so on, so that each row comes once.

    Files are opened when iteration begins. A resume replays this dataset up to its position, while ``ParquetDataset``
    skips what was delivered.

    Args:
        paths: One or more Parquet files, in this order: local paths, or URIs that fsspec supports.
        columns: Columns to read; None: all.
        storage_options: Options for fsspec, for files that are not local.
        rows_at_once: Number of rows to decode at a time, at least 1.

    Raises:
        ConfigurationError: An argument is invalid; during iteration, if a file lacks a column.
        ShardNotFoundError: During iteration, if a file does not exist.
        ShardCorruptError: During iteration, if a file is not a Parquet file, a row group cannot be decoded, or the
            column types differ from those of the first file.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        rows_at_once: int = 1024,
    ) -> None:
        super().__init__()
        self.paths: list[str] = locations_of("paths", paths)
        self.columns: list[str] | None = None if columns is None else names_of("columns", columns)
        self.storage_options: dict[str, Any] = dict(storage_options or {})
        self.rows_at_once: int = arguments.integer("rows_at_once", rows_at_once, minimum=1)

    @classmethod
    def counted_files(
        cls,
        paths: str | Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[CountedFile]:
        """Return the files, to be counted without a dataset; takes the arguments of the constructor.

        Raises:
            ConfigurationError: ``paths`` is empty.
        """
        del columns, options
        return _counted(paths, storage_options)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        types: dict[str, Any] = {}
        num_groups = 0  # in the files before
        for path in self.paths:
            file = _open(path, self.storage_options)
            _check_columns(path, file.schema_arrow, self.columns, types, self.paths[0])
            for group_index in range(file.metadata.num_row_groups):
                if (num_groups + group_index) % num_workers == worker:
                    for rows in self._decoded(path, file, group_index):
                        yield from rows
            num_groups += file.metadata.num_row_groups

    def _decoded(self, path: str, file: Any, group_index: int) -> Iterator[list[dict[str, Any]]]:
        names: list[str] = self.columns or file.schema_arrow.names
        try:
            batches = file.iter_batches(self.rows_at_once, row_groups=[group_index], columns=names, use_threads=False)
            while True:
                with _reading(path):
                    batch = next(batches, None)
                if batch is None:
                    return
                rows = np.arange(int(batch.num_rows))
                columns = {name: ArrowColumn.of(batch.column(name)) for name in names}
                yield rows_of(len(rows), [(rows, rows, columns)])
        except (_arrow.ArrowException, OSError) as error:
            if not _is_corruption(error):
                raise
            raise ShardCorruptError(path, f"row group {group_index}: {error}") from error


class _RowGroup(NamedTuple):
    file_index: int
    index_in_file: int
    num_rows: int


_OF_THIS_PROCESS = {"_opened", "_cache", "_process_id"}


def _counted(paths: str | Sequence[str], storage_options: Mapping[str, Any] | None) -> list[CountedFile]:
    options = dict(storage_options or {})

    def num_rows(path: str) -> int:
        with _open(path, options) as file:
            return file.metadata.num_rows

    return [CountedFile(path, "parquet", options, partial(num_rows, path)) for path in locations_of("paths", paths)]


def _check_columns(path: str, schema: Any, columns: list[str] | None, types: dict[str, Any], first_path: str) -> None:
    present: dict[str, Any] = dict(zip(schema.names, schema.types, strict=True))
    for name in columns or types or present:
        if name not in present:
            raise ConfigurationError("columns", name, f"columns of {path}: {', '.join(present)}")
        expected = types.setdefault(name, present[name])
        if present[name] != expected:
            raise ShardCorruptError(path, f"column {name!r} is {present[name]} here and {expected} in {first_path}")


def _open(path: str, storage_options: dict[str, Any]) -> Any:
    local = local_path(path)
    try:
        if local is not None:
            return _parquet.ParquetFile(local, memory_map=True)
        return _parquet.ParquetFile(open_uri(path, storage_options))
    except ShardNotFoundError:
        raise
    except FileNotFoundError as error:
        raise ShardNotFoundError(path, "no such file") from error
    except (_arrow.ArrowException, OSError) as error:
        if not _is_corruption(error):
            raise
        raise ShardCorruptError(path, f"not a Parquet file: {error}") from error


def _reading(path: str) -> AbstractContextManager[None]:
    """Return a context that counts the time of a remote file's reads as time of the store.

    pyarrow reads in its own thread, so this also counts the decoding, which takes less time.
    """
    return nullcontext() if local_path(path) is not None else reading()


def _is_corruption(error: Exception) -> bool:
    """Return whether an error means damaged data, instead of a failure of the network or the disk."""
    # For some damage, pyarrow raises a bare OSError without errno.
    return isinstance(error, _arrow.ArrowException) or (type(error) is OSError and error.errno is None)
