"""A column of a mapped shard: its values decoded one by one, or gathered for many rows by one NumPy call."""

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
        content: The shard's bytes.
        arrays: Whether ``ndarray`` columns give NumPy arrays or torch tensors.
        is_writable: Whether NumPy arrays belong to the caller.

    Attributes:
        name: Its key in a sample.
        size_bytes: What every value takes; None if it varies.
        can_gather: Whether ``values`` and ``gathered`` may be called.
        decode: From one value's bytes to the value.
    """

    def __init__(
        self, column: Column, content: memoryview, arrays: Literal["numpy", "torch"], *, is_writable: bool
    ) -> None:
        encoding = encoding_of(column.encoding)
        self.name = column.name
        self.size_bytes = column.size_bytes
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

    @property
    def can_gather(self) -> bool:
        """Whether every value is numbers of one dtype and shape."""
        return self._windows is not None

    def gathered(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the values that begin at ``starts`` as one new array of shape (starts, ...)."""
        if self._windows is None:
            raise TypeError(f"the values of column {self.name!r} are not numbers of one dtype and shape")
        return self._windows[starts]

    def values(self, starts: npt.NDArray[np.int64]) -> list[Any]:
        """Return the values that begin at ``starts``, each as ``decode`` gives it."""
        return self._listed(self.gathered(starts))


def windows_of(content: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> npt.NDArray[Any]:
    """Return an array whose item *i* is the array of ``dtype`` and ``shape`` that begins at byte *i*.

    It is a view: indexing it with many places copies what stands there and nothing else.
    """
    item_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    strides = np.empty(shape, dtype).strides if len(content) >= item_bytes else (0,) * len(shape)
    num_windows = max(0, len(content) - item_bytes + 1)
    return np.ndarray((num_windows, *shape), dtype, content, strides=(1, *strides))


def _listed_read_only(values: npt.NDArray[Any]) -> list[Any]:
    # As a view of the file is: that a batch was copied is no promise.
    values.flags.writeable = False
    return list(values)
