"""What every open shard offers."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["ShardReader", "checked_row", "checked_rows", "dicts_of"]


class ShardReader(Protocol):
    """An open shard: samples by row, one at a time or many at once.

    It may be used by several threads at a time. It is not for other processes: they open their own. Rows count from
    0, and negative ones do not exist.
    """

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        ...

    def sample(self, row: int) -> dict[str, Any]:
        """Return one sample, as a dict from column to value.

        Raises:
            IndexError: There is no such row.
            ShardCorruptError: Its bytes are not what the columns say.
        """
        ...

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples in the order of ``rows``, equal to those of ``sample``, at less cost for each.

        Raises:
            IndexError: There is no such row.
            ShardCorruptError: A sample's bytes are not what the columns say.
        """
        ...

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return the values of each column in the order of ``rows``.

        Returns:
            From column to a new array of shape (rows, ...), writable, where every value is numbers of one dtype and
            shape: MDS's numbers and arrays of fixed shape. To a list of the values otherwise.

        Raises:
            IndexError: There is no such row.
            ShardCorruptError: A sample's bytes are not what the columns say.
        """
        ...

    def raw(self, row: int) -> memoryview:
        """Return one sample's bytes as they are stored, read-only.

        Raises:
            IndexError: There is no such row.
        """
        ...

    def close(self) -> None:
        """Let go of the files; memory that views still look at stays until they are gone."""
        ...


def checked_row(row: int, num_samples: int) -> int:
    """Return a row if there is one.

    Raises:
        IndexError: There is none.
    """
    if not 0 <= row < num_samples:
        raise IndexError(f"row {row} of a shard of {num_samples} samples")
    return row


def checked_rows(rows: Sequence[int] | npt.NDArray[Any], num_samples: int) -> npt.NDArray[np.int64]:
    """Return rows as an array.

    Raises:
        IndexError: One of them does not exist.
        TypeError: They are not integers in a row.
    """
    numbers = np.asarray(rows) if len(rows) else np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise TypeError(f"rows are integers, not {rows!r}")
    if numbers.dtype != np.int64:
        numbers = numbers.astype(np.int64)
    # As unsigned numbers the negative ones are the largest: one look finds both ends.
    if len(numbers) and numbers.view(np.uint64).max() >= num_samples:
        outside = numbers[(numbers < 0) | (numbers >= num_samples)]
        raise IndexError(f"row {int(outside[0])} of a shard of {num_samples} samples")
    return numbers


def dicts_of(columns: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """Return samples as dicts, from each column's values."""
    # In C from end to end: a comprehension takes half as long again.
    return list(map(dict, map(zip, repeat(tuple(columns)), zip(*columns.values(), strict=True))))
