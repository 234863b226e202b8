"""MDS shards, mapped into memory. One NumPy call gathers numbers, or arrays of fixed shape, for many rows."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.errors import ShardCorruptError
from fkat_data.files.encoding import NDArrayEncoding
from fkat_data.files.encodings import encoding_of
from fkat_data.files.limits import beyond_limit, limit_of
from fkat_data.files.mapping import mapped, offsets_of
from fkat_data.files.shard import (
    Column,
    ReadOptions,
    ShardEntry,
    checked_row,
    checked_rows,
    dicts_of,
)
from fkat_data.runtime.interruption import genuine


class OpenColumn:
    """A column of a mapped shard.

    Args:
        column: The column.
        content: Bytes of the shard.
        options: How the rows of the shard are read.

    Attributes:
        name: The column's key in a sample.
        size_bytes: Size of every value's bytes; None if it varies.
        can_gather: Whether the column supports ``values`` and ``gathered``.
        decode: Function from a value's bytes to the value.
    """

    def __init__(self, column: Column, content: memoryview, options: ReadOptions) -> None:
        encoding = encoding_of(column.encoding)
        self.name: str = column.name
        self.size_bytes: int | None = column.size_bytes
        self.decode: Callable[[memoryview], Any] = encoding.decode
        self.is_text: bool = column.encoding == "str"
        """Whether values are strings in UTF-8."""
        self._listed: Callable[[npt.NDArray[Any]], list[Any]] = list if column.encoding != "int" else np.ndarray.tolist
        # Of bytes: numpy copies a value of them at once, and an array number by number.
        self._windows: npt.NDArray[Any] | None = None
        self._dtype, self._shape = encoding.dtype, encoding.shape
        if encoding.dtype is not None and encoding.size_bytes == column.size_bytes:
            self._windows = windows_of(content, np.dtype((np.void, column.size_bytes)))
        if not isinstance(encoding, NDArrayEncoding):
            return
        if options.arrays == "torch":
            self.decode = lambda data: torch.from_numpy(encoding.decode(data).copy())
            self._listed = lambda values: list(torch.from_numpy(values).unbind(0))
        elif options.writable:
            self.decode = lambda data: encoding.decode(data).copy()
        else:
            self._listed = _listed_read_only
            if options.is_copied:
                self.decode = lambda data: _read_only(encoding.decode(data).copy())

    @property
    def can_gather(self) -> bool:
        """Whether all values are numbers, or arrays of one dtype and shape; ``values`` and ``gathered`` need that."""
        return self._windows is not None

    def gathered(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the values at the offsets ``starts`` as a new array: shape (len(starts), ...), the column's dtype."""
        if self._windows is None or self._dtype is None:
            raise TypeError(f"the values of column {self.name!r} differ in dtype or shape")
        return self._windows[starts].view(self._dtype).reshape(len(starts), *self._shape)

    def values(self, starts: npt.NDArray[np.int64]) -> list[Any]:
        """Return the values at the offsets ``starts``, each as ``decode`` returns it."""
        return self._listed(self.gathered(starts))


def windows_of(content: memoryview, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a view whose item *i* is the value of ``dtype`` that starts at byte *i*.

    Indexing the view with many offsets copies only the values that start there.
    """
    num_windows = max(0, len(content) - dtype.itemsize + 1)
    return np.ndarray((num_windows,), dtype, content, strides=(1,))


def _listed_read_only(values: npt.NDArray[Any]) -> list[Any]:
    # Callers must see the same read-only arrays as from decode(), although these are copies.
    return list(_read_only(values))


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


_LENGTH = np.dtype("<u4")
_LENGTH_BYTES = _LENGTH.itemsize


class MDSReader:
    """An open MDS shard.

    Args:
        directory: Directory of the dataset.
        entry: The shard.
        options: How its rows are read.

    Raises:
        ShardNotFoundError: The shard's file does not exist.
        ShardCorruptError: Its size or its offsets contradict the index or the columns.
    """

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        self.num_samples: int = entry.samples
        self._path = directory / entry.raw_data.basename
        self._content = mapped(self._path, entry.raw_data, options.register)
        self._offsets = offsets_of(self._path, self._content, entry.samples, entry.raw_data.bytes)
        self._columns = [OpenColumn(column, self._content, options) for column in entry.columns]
        self._chosen = frozenset(entry.chosen or (column.name for column in entry.columns))
        self._lengths_bytes = _LENGTH_BYTES * sum(column.size_bytes is None for column in self._columns)
        self._lengths = windows_of(self._content, _LENGTH)
        self._check_sizes()

    def sample(self, row: int) -> dict[str, Any]:
        """Return one sample; see ``ShardReader``."""
        begin, end = self._span(row)
        content, offset = self._content, begin + self._lengths_bytes
        length_at = begin
        values: dict[str, Any] = {}
        for column in self._columns:
            size = column.size_bytes
            if size is None:
                size = int.from_bytes(content[length_at : length_at + _LENGTH_BYTES], "little")
                length_at += _LENGTH_BYTES
            if size > end - offset:
                raise self._wrong_lengths(row, end - begin)
            if column.name in self._chosen:
                values[column.name] = self._value(row, column, offset, offset + size)
            offset += size
        if offset != end:
            raise self._wrong_lengths(row, end - begin)
        return values

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""
        chosen = checked_rows(rows, self.num_samples)
        spans = self._spans(chosen)
        return dicts_of(
            {
                column.name: column.values(starts)
                if column.can_gather
                else self._decoded(column, chosen, starts, sizes)
                for column, starts, sizes in spans
            }
        )

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return each column's values; see ``ShardReader``."""
        chosen = checked_rows(rows, self.num_samples)
        return {
            column.name: column.gathered(starts) if column.can_gather else self._decoded(column, chosen, starts, sizes)
            for column, starts, sizes in self._spans(chosen)
        }

    def raw(self, row: int) -> memoryview:
        """Return one sample's bytes; see ``ShardReader``."""
        begin, end = self._span(row)
        return self._content[begin:end]

    def close(self) -> None:
        """Release the file and have no rows afterwards; see ``ShardReader``."""
        self.num_samples = 0
        self._content = memoryview(b"")
        self._lengths = windows_of(self._content, _LENGTH)
        self._columns = []

    def _check_sizes(self) -> None:
        if self._offsets[0] < _LENGTH_BYTES * (self.num_samples + 2):
            expected = f"at least {_LENGTH_BYTES * (self.num_samples + 2)}, where the offsets end"
            raise ShardCorruptError.of_field(self._path, "offsets[0]", expected, int(self._offsets[0]))
        sizes = np.diff(self._offsets)
        fixed_bytes = self._lengths_bytes + sum(column.size_bytes or 0 for column in self._columns)
        wrong = np.flatnonzero(sizes < fixed_bytes if self._lengths_bytes else sizes != fixed_bytes)
        if len(wrong):
            expected = f"{'at least ' if self._lengths_bytes else ''}{fixed_bytes}, the size of the columns"
            raise ShardCorruptError.of_field(
                self._path, f"size of row {wrong[0]} in bytes", expected, int(sizes[wrong[0]])
            )

    def _span(self, row: int) -> tuple[int, int]:
        number = checked_row(row, self.num_samples)
        return self._offsets.item(number), self._offsets.item(number + 1)

    def _spans(
        self, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[OpenColumn, npt.NDArray[np.int64], npt.NDArray[np.int64] | int]]:
        """Check the rows' sizes, then return (column, start of its values, their sizes) for each column."""
        begins = self._offsets[rows]
        spans: list[tuple[OpenColumn, npt.NDArray[np.int64], npt.NDArray[np.int64] | int]] = []
        offset, length_at = begins + self._lengths_bytes, begins
        for column in self._columns:
            size: npt.NDArray[np.int64] | int
            if column.size_bytes is None:
                size = self._lengths[length_at].astype(np.int64)
                length_at = length_at + _LENGTH_BYTES
            else:
                size = column.size_bytes
            spans.append((column, offset, size))
            offset = offset + size
        # If all columns have fixed sizes, _check_sizes has compared them on opening.
        if self._lengths_bytes:
            ends = self._offsets[rows + 1]
            wrong = np.flatnonzero(offset != ends)
            if len(wrong):
                row = int(wrong[0])
                raise self._wrong_lengths(int(rows[row]), int(ends[row] - begins[row]))
        return (span for span in spans if span[0].name in self._chosen)

    def _decoded(
        self,
        column: OpenColumn,
        rows: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64] | int,
    ) -> list[Any]:
        content, decode = self._content, column.decode
        begins, ends = starts.tolist(), (starts + sizes).tolist()
        try:
            if column.is_text:  # a call of Python's for each value would take as long as its decoding
                return [str(content[begin:end], "utf-8") for begin, end in zip(begins, ends, strict=True)]
            return [decode(content[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        except ValueError:
            for row, begin, end in zip(rows.tolist(), begins, ends, strict=True):
                self._value(row, column, begin, end)  # raises for the first invalid value, with its row
            raise

    def _value(self, row: int, column: OpenColumn, begin: int, end: int) -> Any:
        try:
            return column.decode(self._content[begin:end])
        except genuine(ValueError) as error:
            field = f"row {row}, column {column.name!r}"
            if limit := limit_of(error):
                raise beyond_limit(str(self._path), field, limit) from error
            raise ShardCorruptError(str(self._path), f"{field}: {error}", field) from error

    def _wrong_lengths(self, row: int, size: int) -> ShardCorruptError:
        return ShardCorruptError.of_field(
            self._path, f"size of row {row} in bytes", "the sum of its columns' sizes", size
        )
