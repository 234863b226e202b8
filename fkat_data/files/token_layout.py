"""The layout of a file of tokens: its tokens and its documents, whatever program has written it."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ShardCorruptError


class Layout(NamedTuple):
    """The layout of the tokens in a file.

    Attributes:
        dtype: Their type.
        first_byte: Where they begin.
        num_tokens: How many there are.
    """

    dtype: str
    first_byte: int
    num_tokens: int


class TokenBytes(Protocol):
    """A file, local or in a store, of which any range can be read."""

    @property
    def size_bytes(self) -> int:
        """Its size."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``."""
        ...


class Documents(ABC):
    """The documents of a file, as offsets in tokens. Arrays are views of the mapped index."""

    num: int
    """The number of documents."""

    @abstractmethod
    def start_of(self, document: int) -> int:
        """Return the first token of a document; of the one behind the last: the number of tokens."""

    @abstractmethod
    def lengths(self) -> npt.NDArray[Any]:
        """Return the tokens of each document, shape (num,): the index's own array where it has one."""

    def starts_within(self, start: int, stop: int) -> list[int]:
        """Return where documents begin after the token ``start`` and before ``stop``, in order; empty ones do not count."""
        first = bisect_right(range(self.num), start, key=self.start_of)
        last = bisect_left(range(self.num), stop, lo=first, key=self.start_of)
        return sorted({self.start_of(document) for document in range(first, last)})


def whole_items(path: str, num_bytes: int, size: int) -> int:
    """Return how many items of one size some bytes are.

    Raises:
        ShardCorruptError: They end within one.
    """
    if num_bytes % size:
        raise ShardCorruptError.of_field(path, "size", f"a multiple of {size} bytes", num_bytes)
    return num_bytes // size


def checked_lengths(index_path: str, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the lengths of documents.

    Raises:
        ShardCorruptError: One is negative.
    """
    if len(lengths) and lengths.min() < 0:
        document = int(lengths.argmin())
        raise ShardCorruptError.of_field(
            index_path, f"length of document {document}", "at least 0", int(lengths[document])
        )
    return lengths
