"""Read rows of Parquet files as tensors, by index or sequentially, one row group at a time."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fkat_data import arguments
from fkat_data.arrow_column import ArrowColumn, rows_of
from fkat_data.counted_file import CountedFile
from fkat_data.datasets.item_index import counted_from_starts, in_parts
from fkat_data.datasets.last_used import LastUsed
from fkat_data.datasets.opening import local_path, locations_of, names_of, not_found, open_uri
from fkat_data.description import Described, place_of
from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.interruption import genuine
from fkat_data.observe.stages import reading
from fkat_data.requirement import required

__all__ = ["IterableParquetDataset", "ParquetDataset"]

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_parquet = required("pyarrow.parquet", "parquet")

# An open file holds a descriptor and its footer.
_MAX_OPEN_FILES = 32


class _ParquetFiles(Described):
    """One or more Parquet files, and what is read of them."""

    def __init__(
        self, paths: str | Sequence[str], columns: Sequence[str] | None, storage_options: Mapping[str, Any] | None
    ) -> None:
        super().__init__()
        self.paths: list[str] = locations_of("paths", paths)
        self.columns: list[str] | None = None if columns is None else names_of("columns", columns)
        self.storage_options: dict[str, Any] = dict(storage_options or {})

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "first_file", place_of(self.paths[0])
        yield "num_files", len(self.paths)


def _counted_files(
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
    opening = dict(storage_options or {})

    def num_rows(path: str) -> int:
        with _open(path, opening) as file:
            return file.metadata.num_rows

    found = locations_of("paths", paths)
    return [CountedFile(path, "parquet", opening, partial(num_rows, path)) for path in found]


class ParquetDataset(_ParquetFiles, Dataset[dict[str, Any]]):
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
        ShardCorruptError: A file is not a Parquet file, has two of the columns under one name, or its column types
            differ from those of the first file.
    """

    # In the class itself: a subclass may have other samples.
    counted_files: ClassVar[Callable[..., list[CountedFile]]] = staticmethod(_counted_files)

    def __init__(
        self,
        paths: str | Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        row_groups_kept: int = 4,
    ) -> None:
        super().__init__(paths, columns, storage_options)
        self.row_groups_kept: int = arguments.integer("row_groups_kept", row_groups_kept, minimum=1)
        self._files: LastUsed[Any] = LastUsed(_MAX_OPEN_FILES)
        self._decoded_groups: LastUsed[dict[str, ArrowColumn]] = LastUsed(self.row_groups_kept)
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

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield from super()._repr_facts()
        # The __len__ of a subclass may take long.
        yield "num_samples", ParquetDataset.__len__(self)

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
        rows = counted_from_starts(indices, len(self), "row")
        parts = in_parts(rows, self._ends)
        return rows_of(len(rows), ((positions, within, self._decoded(group)) for group, positions, within in parts))

    def _file(self, file_index: int) -> Any:
        return self._files.get(file_index, partial(_open, self.paths[file_index], self.storage_options))

    def _decoded(self, group_index: int) -> dict[str, ArrowColumn]:
        return self._decoded_groups.get(group_index, partial(self._decode, self._groups[group_index]))

    def _decode(self, group: "_RowGroup") -> dict[str, ArrowColumn]:
        file, path = self._file(group.file_index), self.paths[group.file_index]
        names: list[str] = self.columns or file.schema_arrow.names
        try:
            # One thread, because a worker shares the machine with the trainer.
            with _reading(path):
                table = file.read_row_group(group.index_in_file, columns=names, use_threads=False)
            return {name: ArrowColumn.of(table.column(name)) for name in names}
        except genuine(_arrow.ArrowException, OSError) as error:
            if not _is_corruption(error):
                raise
            raise ShardCorruptError(path, f"row group {group.index_in_file}: {error}") from error


class IterableParquetDataset(_ParquetFiles, IterableDataset[dict[str, Any]]):
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
        ShardCorruptError: During iteration, if a file is not a Parquet file, a row group cannot be decoded, two of the
            columns share a name, or the column types differ from those of the first file.
    """

    # In the class itself: a subclass may have other samples.
    counted_files: ClassVar[Callable[..., list[CountedFile]]] = staticmethod(_counted_files)

    def __init__(
        self,
        paths: str | Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        rows_at_once: int = 1024,
    ) -> None:
        super().__init__(paths, columns, storage_options)
        self.rows_at_once: int = arguments.integer("rows_at_once", rows_at_once, minimum=1)

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
        except genuine(_arrow.ArrowException, OSError) as error:
            if not _is_corruption(error):
                raise
            raise ShardCorruptError(path, f"row group {group_index}: {error}") from error


class _RowGroup(NamedTuple):
    file_index: int
    index_in_file: int
    num_rows: int


def _check_columns(path: str, schema: Any, columns: list[str] | None, types: dict[str, Any], first_path: str) -> None:
    names: list[str] = schema.names
    for name, count in Counter(names).items():
        if count > 1 and (columns is None or name in columns):
            reason = f"column {name!r} comes {count} times; choose columns without it with columns=[...]"
            raise ShardCorruptError(path, reason, f"column {name!r}")
    present: dict[str, Any] = dict(zip(names, schema.types, strict=True))
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
    except genuine(FileNotFoundError) as error:
        raise not_found(path) from error
    except genuine(_arrow.ArrowException, OSError) as error:
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
