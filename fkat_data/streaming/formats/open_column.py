"""A column of a mapped shard: decode its values one by one, or gather many with one NumPy call."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.streaming.formats.encodings import encoding_of
from fkat_data.streaming.formats.entry import Column
from fkat_data.streaming.formats.ndarray import NDArrayEncoding

__all__ = ["OpenColumn", "windows_of"]


class OpenColumn:
    """A column of a mapped shard.

    Args:
        column: The column.
        content: Bytes of the shard.
        arrays: Whether to return ``ndarray`` columns as NumPy arrays or torch tensors.
        is_writable: Whether NumPy arrays are writable copies or read-only views.
        is_copied: Whether read-only arrays are copies, too.

    Attributes:
        name: The column's key in a sample.
        size_bytes: Size of every value's bytes; None if it varies.
        can_gather: Whether the column supports ``values`` and ``gathered``.
        decode: Function from a value's bytes to the value.
    """

    def __init__(
        self,
        column: Column,
        content: memoryview,
        arrays: Literal["numpy", "torch"],
        *,
        is_writable: bool,
        is_copied: bool = False,
    ) -> None:
        encoding = encoding_of(column.encoding)
        self.name: str = column.name
        self.size_bytes: int | None = column.size_bytes
        self.decode: Callable[[memoryview], Any] = encoding.decode
        self._listed: Callable[[npt.NDArray[Any]], list[Any]] = list if column.encoding != "int" else np.ndarray.tolist
        self._windows: npt.NDArray[Any] | None = None
        if encoding.dtype is not None and encoding.size_bytes == column.size_bytes:
            self._windows = windows_of(content, encoding.dtype, encoding.shape)
        if not isinstance(encoding, NDArrayEncoding):
            return
        if arrays == "torch":
            self.decode = lambda data: torch.from_numpy(encoding.decode(data).copy())
            self._listed = lambda values: list(torch.from_numpy(values).unbind(0))
        elif is_writable:
            self.decode = lambda data: encoding.decode(data).copy()
        else:
            self._listed = _listed_read_only
            if is_copied:
                self.decode = lambda data: _read_only(encoding.decode(data).copy())

    @property
    def can_gather(self) -> bool:
        """Whether all values are numbers, or arrays of one dtype and shape; ``values`` and ``gathered`` need that."""
        return self._windows is not None

    def gathered(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the values at the offsets ``starts`` as a new array: shape (len(starts), ...), the column's dtype."""
        if self._windows is None:
            raise TypeError(f"the values of column {self.name!r} differ in dtype or shape")
        return self._windows[starts]

    def values(self, starts: npt.NDArray[np.int64]) -> list[Any]:
        """Return the values at the offsets ``starts``, each as ``decode`` returns it."""
        return self._listed(self.gathered(starts))


def windows_of(content: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> npt.NDArray[Any]:
    """Return a view whose item *i* is the array of ``dtype`` and ``shape`` that starts at byte *i*.

    Indexing the view with many offsets copies only the arrays that start there.
    """
    item_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    strides = np.empty(shape, dtype).strides if len(content) >= item_bytes else (0,) * len(shape)
    num_windows = max(0, len(content) - item_bytes + 1)
    return np.ndarray((num_windows, *shape), dtype, content, strides=(1, *strides))


def _listed_read_only(values: npt.NDArray[Any]) -> list[Any]:
    # Callers must see the same read-only arrays as from decode(), although these are copies.
    return list(_read_only(values))


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
