"""The encoding of NumPy arrays. The encoding's name, or each value's bytes, state dtype and shape."""

import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.formats.encoding import Encoding, EncodingError
from fkat_data.streaming.formats.scalars import SCALAR_DTYPES

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
#: Struct format of the dimensions, by the two low bits of the byte before them.
_WIDTHS = ("B", "H", "I", "Q")
_MAX_DIMENSIONS = 63


class NDArrayEncoding(Encoding):
    """Arrays of numbers in C order, little-endian.

    Args:
        dtype: Name of every array's dtype; None if each array's bytes state it.
        shape: Shape of every array, which needs ``dtype``; None if each array's bytes state it.

    Raises:
        EncodingError: The dtype or the shape is invalid.
    """

    def __init__(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        if dtype is not None and dtype not in SCALAR_DTYPES:
            raise EncodingError(f"one of the dtypes {', '.join(SCALAR_DTYPES)}, not {dtype!r}")
        self._static_dtype = None if dtype is None else np.dtype(dtype).newbyteorder("<")
        self._static_shape = shape
        if shape is None:
            return
        if self._static_dtype is None:
            raise EncodingError("a dtype when a shape is given")
        if not 1 <= len(shape) <= _MAX_DIMENSIONS or min(shape) < 1:
            raise EncodingError(f"1 to {_MAX_DIMENSIONS} dimensions of at least 1, not {shape}")
        self.dtype: np.dtype[Any] | None = self._static_dtype
        self.shape: tuple[int, ...] = shape
        self.size_bytes: int | None = math.prod(shape) * self._static_dtype.itemsize

    @classmethod
    def of_name(cls, parts: list[str]) -> "NDArrayEncoding":
        """Return the encoding named ``ndarray``, ``ndarray:DTYPE`` or ``ndarray:DTYPE:D0,D1``.

        Args:
            parts: The parts of the name after ``ndarray``.

        Raises:
            EncodingError: The name has another form.
        """
        dtype, shape = ([*parts, "", ""])[:2]
        if len(parts) > 2 or (len(parts) == 2 and not shape):
            raise EncodingError("ndarray, ndarray:DTYPE or ndarray:DTYPE:D0,D1")
        dimensions = shape.split(",") if shape else []
        if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in dimensions):
            raise EncodingError(f"dimensions such as 2,3, not {shape!r}")
        return cls(dtype or None, tuple(map(int, dimensions)) if shape else None)

    def encode(self, value: Any) -> bytes:
        """Return the bytes of an array with any byte order and strides."""
        array = self._checked(value)
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return self._header(array) + little.tobytes()

    def decode(self, data: memoryview) -> npt.NDArray[Any]:
        """Return an array that is a view of ``data``."""
        if self._static_shape is not None:
            if len(data) != self.size_bytes:
                raise EncodingError(
                    f"an array of shape {self._static_shape} needs {self.size_bytes} bytes, found {len(data)}"
                )
            return np.frombuffer(data, self._static_dtype).reshape(self._static_shape)
        offset = 0
        dtype = self._static_dtype
        if dtype is None:
            if not data or data[0] not in _DTYPES:
                raise EncodingError(f"unknown dtype code {bytes(data[:1]).hex() or '<nothing>'}")
            dtype, offset = _DTYPES[data[0]], 1
        shape, offset = _shape(data, offset)
        needed = math.prod(shape) * dtype.itemsize
        if needed != len(data) - offset:
            raise EncodingError(
                f"an array of {dtype.name} with shape {shape} needs {needed} bytes, found {len(data) - offset}"
            )
        return np.frombuffer(data, dtype, offset=offset).reshape(shape)

    def _checked(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not isinstance(array, np.ndarray):
            raise EncodingError("a NumPy array")
        allowed = SCALAR_DTYPES if self._static_dtype is None else (self._static_dtype.name,)
        if array.dtype.name not in allowed:
            raise EncodingError(f"an array of {', '.join(allowed)}, not of {array.dtype.name}")
        if self._static_shape is not None and array.shape != self._static_shape:
            raise EncodingError(f"an array of shape {self._static_shape}, not {array.shape}")
        if not 1 <= array.ndim <= _MAX_DIMENSIONS or not array.size:
            raise EncodingError(f"a non-empty array of 1 to {_MAX_DIMENSIONS} dimensions, not of shape {array.shape}")
        return array

    def _header(self, array: npt.NDArray[Any]) -> bytes:
        code = bytes([_CODES[array.dtype.name]]) if self._static_dtype is None else b""
        if self._static_shape is not None:
            return code
        largest = max(array.shape)
        width = sum(largest >= 1 << bits for bits in (8, 16, 32))
        return code + struct.pack(f"<B{array.ndim}{_WIDTHS[width]}", array.ndim << 2 | width, *array.shape)


def _shape(data: memoryview, offset: int) -> tuple[tuple[int, ...], int]:
    if len(data) <= offset:
        raise EncodingError("the bytes end before the shape")
    num_dimensions, width = data[offset] >> 2, data[offset] & 3
    layout = struct.Struct(f"<{num_dimensions}{_WIDTHS[width]}")
    if not num_dimensions or len(data) < offset + 1 + layout.size:
        raise EncodingError(f"invalid or truncated shape of {num_dimensions} dimensions")
    shape = layout.unpack_from(data, offset + 1)
    if min(shape) < 1:
        raise EncodingError(f"invalid shape {shape}: every dimension must be at least 1")
    return shape, offset + 1 + layout.size
