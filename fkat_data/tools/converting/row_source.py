"""The interface of an input to convert: it has rows, and knows how to encode them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class RowSource(ABC):
    """The rows of a file, or of part of a folder. It can be pickled and read in another process.

    Attributes:
        name: The name to use in messages.
    """

    name: str

    @abstractmethod
    def columns(self, *, allows_nulls: bool = False) -> dict[str, str]:
        """Return an encoding for each column, inferred from the file's schema or its first rows.

        Args:
            allows_nulls: Whether a column with a value that its encoding cannot store, such as null or an empty list of
                numbers, is ``json``. Finding these takes a look at all rows.

        Raises:
            ShardCorruptError: The file is invalid.
        """

    @abstractmethod
    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the rows as samples for a writer of these columns.

        Raises:
            ShardCorruptError: The file is invalid. The message names the line or the row.
            SampleError: A value does not fit its column's encoding. A note names the row.
        """

    def names(self) -> Iterable[str]:
        """Return the columns of every row; none where each row, or the kind of source, has its own.

        Raises:
            ShardCorruptError: The file is invalid.
        """
        return ()

    def __repr__(self) -> str:
        return repr(self.name)
