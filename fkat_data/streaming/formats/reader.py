"""The interface of every open shard."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class ShardReader(Protocol):
    """An open shard, which returns samples by row, one or many at a time.

    Several threads may share it; each process must open its own. Rows count from 0. Negative rows are out of range.
    """

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        ...

    def sample(self, row: int) -> dict[str, Any]:
        """Return a sample as a dict from column to value.

        Raises:
            IndexError: The row does not exist.
            ShardCorruptError: The sample's bytes are invalid.
        """
        ...

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples in the order of ``rows``. They equal those of ``sample``, and take less time.

        Raises:
            IndexError: A row does not exist.
            ShardCorruptError: A sample's bytes are invalid.
        """
        ...

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return the values of each column in the order of ``rows``.

        Returns:
            The values by column. MDS columns of numbers, or of arrays with a fixed shape, are new, writable arrays:
            shape (len(rows), ...), the column's dtype. All others are lists.

        Raises:
            IndexError: A row does not exist.
            ShardCorruptError: A sample's bytes are invalid.
        """
        ...

    def raw(self, row: int) -> memoryview:
        """Return a sample's bytes as stored, read-only.

        Raises:
            IndexError: The row does not exist.
        """
        ...

    def close(self) -> None:
        """Release the files. Their memory stays mapped until its last view is gone."""
        ...


def checked_row(row: int, num_samples: int) -> int:
    """Return ``row`` if it exists.

    Raises:
        IndexError: The row does not exist.
    """
    if not 0 <= row < num_samples:
        raise IndexError(f"row {row} is out of range for a shard of {num_samples} samples")
    return row


def checked_rows(rows: Sequence[int] | npt.NDArray[Any], num_samples: int) -> npt.NDArray[np.int64]:
    """Return rows as an array: shape (len(rows),), int64.

    Raises:
        IndexError: A row does not exist.
        TypeError: ``rows`` is not a flat sequence of integers.
    """
    numbers = np.asarray(rows) if len(rows) else np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise TypeError(f"rows must be a flat sequence of integers, not {rows!r}")
    if numbers.dtype != np.int64:
        numbers = numbers.astype(np.int64)
    # As unsigned numbers, negative ones are the largest, so one comparison checks both bounds.
    if len(numbers) and numbers.view(np.uint64).max() >= num_samples:
        outside = numbers[(numbers < 0) | (numbers >= num_samples)]
        raise IndexError(f"row {int(outside[0])} is out of range for a shard of {num_samples} samples")
    return numbers


def dicts_of(columns: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """Return samples as dicts, given each column's values."""
    # All loops run in C. A comprehension takes 1.5 times as long.
    return list(map(dict, map(zip, repeat(tuple(columns)), zip(*columns.values(), strict=True))))
