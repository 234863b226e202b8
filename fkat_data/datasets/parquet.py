"""Rows of Parquet files, by index: read a row group at a time, handed out as tensors."""

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset

from fkat_data import arguments
from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError

__all__ = ["ParquetDataset"]

# pyarrow ships no types: the names that come from it are Any, and not Unknown, from here on.
_arrow: Any = pa
_parquet: Any = pq


class ParquetDataset(Dataset[dict[str, Any]]):
    """Rows of one or more Parquet files, as a map-style dataset.

    The constructor reads the files' footers and no data. A row group is decoded when a row of it is asked for, and
    the last few stay decoded; so a sampler that stays within a few row groups at a time reads each of them once.
    Local files are mapped into memory. A copy in another process opens the files anew when it first reads.

    A row is a dict from column to value. Numbers, booleans and fixed-size lists of them (of lists, and so on) are
    tensors, cut from one gather for all the rows of a microbatch; any other value, and any value with a null in it,
    is what pyarrow's ``to_pylist`` gives.

    Args:
        paths: A Parquet file or several, in this order: local paths, or URIs of any file system that fsspec opens.
        columns: The columns to read; all if not given.
        storage_options: Passed to fsspec, for files that are not local.
        row_groups_kept: How many decoded row groups stay in memory, at least 1.

    Raises:
        ConfigurationError: No path, or a column that a file does not have.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file is no Parquet file, or its columns differ in type from those of the first.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        row_groups_kept: int = 4,
    ) -> None:
        self.paths = _names("paths", paths)
        self.columns = None if columns is None else _names("columns", columns)
        self.storage_options = dict(storage_options or {})
        self.row_groups_kept = arguments.integer("row_groups_kept", row_groups_kept, minimum=1)
        self._forget_files()
        self._groups: list[_RowGroup] = []
        types: dict[str, Any] = {}
        for file_index, path in enumerate(self.paths):
            file = self._file(file_index)
            self._check_columns(path, file.schema_arrow, types)
            metadata = file.metadata
            self._groups += [
                _RowGroup(file_index, place, metadata.row_group(place).num_rows)
                for place in range(metadata.num_row_groups)
            ]
        # _ends[g]: rows up to and with row group g.
        self._ends = np.cumsum([group.num_rows for group in self._groups], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at ``indices``, in that order; each row group among them is decoded once.

        Args:
            indices: Row numbers; negative ones count from the end.

        Raises:
            IndexError: There is no such row.
            ShardCorruptError: A row group cannot be decoded.
        """
        rows = self._row_numbers(indices)
        group_of_row = np.searchsorted(self._ends, rows, side="right")
        numbers: dict[str, npt.NDArray[Any]] = {}  # column -> (len(indices), ...)
        values: dict[str, list[Any]] = {}  # column -> value of each row
        for group_index in cast("list[int]", np.unique(group_of_row).tolist()):
            places = np.flatnonzero(group_of_row == group_index)
            first_row = int(self._ends[group_index]) - self._groups[group_index].num_rows
            local: npt.NDArray[np.int64] = rows[places] - first_row
            for name, column in self._decoded(group_index).items():
                of_column = values.setdefault(name, [None] * len(rows))
                if column.numbers is not None:
                    if name not in numbers:
                        numbers[name] = np.empty((len(rows), *column.numbers.shape[1:]), column.numbers.dtype)
                        of_column[:] = torch.from_numpy(numbers[name]).unbind(0)
                    numbers[name][places] = column.numbers[local]
                for place, value in column.objects_at(places, local):
                    of_column[place] = value
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_files()

    def _forget_files(self) -> None:
        self._opened: dict[int, Any] = {}
        self._cache: OrderedDict[int, dict[str, _Column]] = OrderedDict()
        self._process_id = os.getpid()

    def _row_numbers(self, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        length = len(self)
        rows = np.asarray(indices) if len(indices) else np.empty(0, np.int64)
        if rows.dtype.kind not in "iu":
            raise TypeError(f"row numbers are integers, not {indices!r}")
        outside = (rows < -length) | (rows >= length)
        if outside.any():
            raise IndexError(f"row {int(rows[outside][0])} of a dataset of {length} rows")
        return np.where(rows < 0, rows + length, rows)

    def _check_columns(self, path: str, schema: Any, types: dict[str, Any]) -> None:
        present: dict[str, Any] = dict(zip(schema.names, schema.types, strict=True))
        for name in self.columns or types or present:
            if name not in present:
                raise ConfigurationError("columns", name, f"columns that {path} has: {', '.join(present)}")
            expected = types.setdefault(name, present[name])
            if present[name] != expected:
                reason = f"column {name!r} is {present[name]} here and {expected} in {self.paths[0]}"
                raise ShardCorruptError(path, reason)

    def _file(self, file_index: int) -> Any:
        if self._process_id != os.getpid():
            # A forked child shares its parent's file offsets: it opens its own.
            self._forget_files()
        if file_index not in self._opened:
            self._opened[file_index] = _open(self.paths[file_index], self.storage_options)
        return self._opened[file_index]

    def _decoded(self, group_index: int) -> dict[str, "_Column"]:
        group = self._groups[group_index]
        file = self._file(group.file_index)  # first: it empties the cache in a forked child
        if group_index not in self._cache:
            names: list[str] = self.columns or file.schema_arrow.names
            while len(self._cache) >= self.row_groups_kept:
                self._cache.popitem(last=False)
            try:
                # One thread: a worker shares the machine with the trainer.
                table = file.read_row_group(group.place_in_file, columns=names, use_threads=False)
                self._cache[group_index] = {name: _decode(table.column(name)) for name in names}
            except (_arrow.ArrowException, OSError) as error:
                if not _is_corruption(error):
                    raise
                path = self.paths[group.file_index]
                raise ShardCorruptError(path, f"row group {group.place_in_file}: {error}") from error
        self._cache.move_to_end(group_index)
        return self._cache[group_index]


class _RowGroup(NamedTuple):
    file_index: int
    place_in_file: int
    num_rows: int


class _Column(NamedTuple):
    """A decoded column of one row group.

    Attributes:
        numbers: The rows as numbers, (rows, ...); None for a column of anything else.
        objects: The rows as pyarrow has them; None where ``numbers`` says it all.
        has_null: Which rows hold a null where numbers should be, bool[rows]; None if none does.
    """

    numbers: npt.NDArray[Any] | None
    objects: Any = None
    has_null: npt.NDArray[np.bool_] | None = None

    def objects_at(self, places: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
        """Yield (place, value) for those of ``rows`` that are no numbers."""
        if self.objects is None:
            return
        if self.has_null is not None:
            places, rows = places[self.has_null[rows]], rows[self.has_null[rows]]
        yield from zip(places.tolist(), self.objects.take(_arrow.array(rows)).to_pylist(), strict=True)


_OF_THIS_PROCESS = {"_opened", "_cache", "_process_id"}


def _names(argument: str, value: object) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if (
        not isinstance(names, Sequence)
        or not names
        or not all(isinstance(name, str) for name in cast("Sequence[object]", names))
        or len(set(cast("Sequence[str]", names))) < len(cast("Sequence[str]", names))
    ):
        raise ConfigurationError(argument, value, "a string or a list of strings, not empty, each of them once")
    return list(cast("Sequence[str]", names))


def _open(path: str, storage_options: dict[str, Any]) -> Any:
    try:
        if "://" not in path or path.startswith("file://"):
            return _parquet.ParquetFile(path.removeprefix("file://"), memory_map=True)
        import fsspec  # noqa: PLC0415 - only files that are not local need it, and a worker must start quickly

        file_system, name = cast("Any", fsspec).core.url_to_fs(path, **storage_options)
        return _parquet.ParquetFile(file_system.open(name, "rb"))
    except FileNotFoundError as error:
        raise ShardNotFoundError(path, "no such file") from error
    except (_arrow.ArrowException, OSError) as error:
        if not _is_corruption(error):
            raise
        raise ShardCorruptError(path, f"not a Parquet file: {error}") from error


def _is_corruption(error: Exception) -> bool:
    """Tell bytes that make no sense from bytes that cannot be had: a network's or a disk's error stays itself."""
    # For some damage pyarrow raises a bare OSError without a number.
    return isinstance(error, _arrow.ArrowException) or (type(error) is OSError and error.errno is None)


def _decode(column: Any) -> _Column:
    array = column.combine_chunks()
    shape: list[int] = []
    leaf = array
    is_null = np.zeros(len(array), np.bool_)
    while _arrow.types.is_fixed_size_list(leaf.type):
        is_null |= _null_rows(leaf, len(array))
        shape.append(leaf.type.list_size)
        # A slice's `values` are those of the whole array; `flatten` would leave out those of null lists.
        size: int = leaf.type.list_size
        leaf = leaf.values.slice(leaf.offset * size, len(leaf) * size)
    kind = leaf.type
    if not (_arrow.types.is_integer(kind) or _arrow.types.is_floating(kind) or _arrow.types.is_boolean(kind)):
        return _Column(None, array)
    is_null |= _null_rows(leaf, len(array))
    filled = leaf.fill_null(_arrow.scalar(0).cast(kind)) if leaf.null_count else leaf
    numbers = filled.to_numpy(zero_copy_only=False).reshape(len(array), *shape)
    return _Column(numbers, array, is_null) if is_null.any() else _Column(numbers)


def _null_rows(array: Any, num_rows: int) -> npt.NDArray[np.bool_]:
    if not array.null_count:
        return np.zeros(num_rows, np.bool_)
    return array.is_null().to_numpy(zero_copy_only=False).reshape(num_rows, -1).any(axis=1)
