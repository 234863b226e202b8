"""The interface of a column's encoding, and the encodings of numbers and arrays."""

import math
import numbers
import operator
import struct
from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from fkat_data.runtime.interruption import genuine


class EncodingError(ValueError):
    """An encoding cannot represent a value, or cannot decode bytes.

    The message says what ``encode`` expected, or what is wrong with the bytes. The caller adds column and row in a
    ``SampleError`` or a ``ShardCorruptError``.
    """


class Encoding(ABC):
    """A column's encoding: values to bytes, and back.

    Attributes:
        size_bytes: Size of every value's bytes; None if it varies.
        dtype: Dtype of the values, if all are numbers, or arrays of one shape, with this dtype; otherwise None.
        shape: Shape of a value, if ``dtype`` is not None; () for a single number.
        is_safe: Whether bytes of unknown origin can be decoded. False if decoding can run code in them.
        is_checked: Whether a writer decodes values that are already bytes before it writes them.
    """

    size_bytes: int | None = None
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    is_safe: ClassVar[bool] = True
    is_checked: ClassVar[bool] = True

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value.

        Raises:
            EncodingError: The encoding cannot represent the value. The message says which values it can.
        """

    @abstractmethod
    def decode(self, data: memoryview) -> Any:
        """Return the value of some bytes. An array may be a view of them.

        Raises:
            ValueError: The bytes are invalid.
        """


#: Dtypes of NumPy scalars and arrays. Each is also the name of an encoding.
SCALAR_DTYPES = (
    *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)

_INT64 = struct.Struct("<q")


class IntEncoding(Encoding):
    """A Python int in 8 bytes."""

    size_bytes: int | None = 8
    dtype: np.dtype[Any] | None = np.dtype("<i8")

    def encode(self, value: Any) -> bytes:
        """Return the bytes of an int. A bool counts as 0 or 1."""
        try:
            return _INT64.pack(operator.index(value))
        except genuine(TypeError, struct.error):
            raise EncodingError("an int from -2**63 to 2**63 - 1") from None

    def decode(self, data: memoryview) -> int:
        """Return 8 bytes as an int."""
        return _INT64.unpack(data)[0]


class ScalarEncoding(Encoding):
    """A NumPy scalar of one dtype.

    Args:
        name: Name of the dtype.
    """

    def __init__(self, name: str) -> None:
        self._dtype = np.dtype(name).newbyteorder("<")
        self.dtype: np.dtype[Any] | None = self._dtype
        self.size_bytes: int | None = self._dtype.itemsize

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a number. Round a float to the dtype's precision.

        Raises:
            EncodingError: The value is not a number, or the dtype cannot represent it: it is out of range, or has a
                fraction and the dtype is an integer's.
        """
        number = cast("Any", value)[()] if isinstance(value, np.ndarray) else value
        try:
            if not isinstance(number, (numbers.Real, np.bool_)):
                raise TypeError
            return (self._integer(number) if self._dtype.kind in "iu" else self._float(number)).tobytes()
        except genuine(TypeError, ValueError, OverflowError):
            raise EncodingError(f"a number that {self._dtype.name} can represent") from None

    def decode(self, data: memoryview) -> Any:
        """Return the bytes as a NumPy scalar."""
        return np.frombuffer(data, self._dtype)[0]

    def _integer(self, value: Any) -> npt.NDArray[Any]:
        # Refuse to truncate a float silently.
        number = int(value)
        if number != value:
            raise ValueError
        return np.array(number, self._dtype)

    def _float(self, value: Any) -> npt.NDArray[Any]:
        # NumPy floats of this dtype keep their bits, including those of a NaN.
        number = cast("Any", value) if isinstance(value, np.floating) else float(value)
        with np.errstate(over="ignore"):
            rounded = np.array(number).astype(self._dtype)
        if np.isinf(rounded) and not np.isinf(number):
            raise OverflowError
        return rounded


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
