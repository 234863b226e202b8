"""The encoding of NumPy arrays: dtype and shape in the column's name, in the bytes, or one here and one there."""

import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.formats.encoding import Encoding, EncodingError
from fkat_data.streaming.formats.scalars import SCALAR_DTYPES

__all__ = ["NDArrayEncoding"]

_CODES = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
_DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in _CODES.items()}
#: The dimensions' dtype, by the two low bits of the byte before them.
_WIDTHS = ("B", "H", "I", "Q")
_MAX_DIMENSIONS = 63


class NDArrayEncoding(Encoding):
    """Arrays of numbers in C order, little-endian.

    Args:
        dtype: Name of the dtype that every array has; None: each array's bytes tell its own.
        shape: What every array has; None: each array's bytes tell its own. Needs ``dtype``.

    Raises:
        EncodingError: There is no such dtype, or no array of that shape.
    """

    def __init__(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        if dtype is not None and dtype not in SCALAR_DTYPES:
            raise EncodingError(f"a dtype of {', '.join(SCALAR_DTYPES)}, not {dtype!r}")
        self._static_dtype = None if dtype is None else np.dtype(dtype).newbyteorder("<")
        self._static_shape = shape
        if shape is None:
            return
        if self._static_dtype is None:
            raise EncodingError("a dtype, where a shape is given")
        if not 1 <= len(shape) <= _MAX_DIMENSIONS or min(shape) < 1:
            raise EncodingError(f"1 to {_MAX_DIMENSIONS} dimensions of at least 1, not {shape}")
        self.dtype, self.shape = self._static_dtype, shape
        self.size_bytes = math.prod(shape) * self._static_dtype.itemsize

    @classmethod
    def of_name(cls, parts: list[str]) -> "NDArrayEncoding":
        """Return the encoding of ``ndarray``, ``ndarray:DTYPE`` or ``ndarray:DTYPE:D0,D1``, given without ``ndarray``.

        Raises:
            EncodingError: The name is none of these.
        """
        dtype, shape = ([*parts, "", ""])[:2]
        if len(parts) > 2 or (len(parts) == 2 and not shape):
            raise EncodingError("ndarray, ndarray:DTYPE or ndarray:DTYPE:D0,D1")
        dimensions = shape.split(",") if shape else []
        if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in dimensions):
            raise EncodingError(f"dimensions as in 2,3, not {shape!r}")
        return cls(dtype or None, tuple(map(int, dimensions)) if shape else None)

    def encode(self, value: Any) -> bytes:
        """Return an array's bytes; any byte order and any strides will do."""
        array = self._checked(value)
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return self._header(array) + little.tobytes()

    def decode(self, data: memoryview) -> npt.NDArray[Any]:
        """Return an array that looks at ``data``."""
        if self._static_shape is not None:
            if len(data) != self.size_bytes:
                raise EncodingError(f"{len(data)} bytes where {self.size_bytes} make an array of {self._static_shape}")
            return np.frombuffer(data, self._static_dtype).reshape(self._static_shape)
        place = 0
        dtype = self._static_dtype
        if dtype is None:
            if not data or data[0] not in _DTYPES:
                raise EncodingError(f"no dtype has the code {bytes(data[:1]).hex() or '<nothing>'}")
            dtype, place = _DTYPES[data[0]], 1
        shape, place = _shape(data, place)
        if math.prod(shape) * dtype.itemsize != len(data) - place:
            raise EncodingError(f"{len(data) - place} bytes are no {dtype.name} array of shape {shape}")
        return np.frombuffer(data, dtype, offset=place).reshape(shape)

    def _checked(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not isinstance(array, np.ndarray):
            raise EncodingError("a NumPy array")
        allowed = SCALAR_DTYPES if self._static_dtype is None else (self._static_dtype.name,)
        if array.dtype.name not in allowed:
            raise EncodingError(f"an array of {', '.join(allowed)}, not of {array.dtype.name}")
        if self._static_shape is not None and array.shape != self._static_shape:
            raise EncodingError(f"an array of shape {self._static_shape}, not {array.shape}")
        if not 1 <= array.ndim <= _MAX_DIMENSIONS or not array.size:
            raise EncodingError(
                f"an array of 1 to {_MAX_DIMENSIONS} dimensions with something in it, not of shape {array.shape}"
            )
        return array

    def _header(self, array: npt.NDArray[Any]) -> bytes:
        code = bytes([_CODES[array.dtype.name]]) if self._static_dtype is None else b""
        if self._static_shape is not None:
            return code
        largest = max(array.shape)
        width = sum(largest >= 1 << bits for bits in (8, 16, 32))
        return code + struct.pack(f"<B{array.ndim}{_WIDTHS[width]}", array.ndim << 2 | width, *array.shape)


def _shape(data: memoryview, place: int) -> tuple[tuple[int, ...], int]:
    if len(data) <= place:
        raise EncodingError("the bytes end before the shape")
    num_dimensions, width = data[place] >> 2, data[place] & 3
    layout = struct.Struct(f"<{num_dimensions}{_WIDTHS[width]}")
    if not num_dimensions or len(data) < place + 1 + layout.size:
        raise EncodingError(f"the bytes end within a shape of {num_dimensions} dimensions")
    shape = layout.unpack_from(data, place + 1)
    if min(shape) < 1:
        raise EncodingError(f"no array has the shape {shape}")
    return shape, place + 1 + layout.size
