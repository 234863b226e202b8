"""Encodings of single numbers with a fixed size."""

import numbers
import operator
import struct
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fkat_data.interruption import genuine
from fkat_data.streaming.formats.encoding import Encoding, EncodingError

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
