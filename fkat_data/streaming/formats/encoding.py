"""The interface of a column's encoding: values to bytes, and back."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np


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
