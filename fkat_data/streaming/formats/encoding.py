"""How one value of a column becomes bytes and comes back."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

__all__ = ["Encoding", "EncodingError"]


class EncodingError(ValueError):
    """A value that an encoding cannot hold, or bytes that it did not make.

    Whoever knows the column and the place turns it into a ``SampleError`` or a ``ShardCorruptError``.
    """


class Encoding(ABC):
    """A column's encoding: values to bytes and back.

    Attributes:
        size_bytes: What every value takes; None if it varies.
        dtype: Of the values as an array, if every value is ``shape`` numbers of one dtype; otherwise None.
        shape: Of a value, if ``dtype`` is given; () for a single number.
        is_safe: Whether decoding bytes of unknown origin runs no code of theirs.
        is_checked: Whether ready-made bytes are decoded once before they are written.
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
            EncodingError: The value is not what the encoding holds; the message says what it does hold.
        """

    @abstractmethod
    def decode(self, data: memoryview) -> Any:
        """Return the value of some bytes; an array may be a view of them.

        Raises:
            ValueError: The bytes are not what ``encode`` makes.
        """
