"""What is converted: something with rows, which knows how they can be encoded."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["RowSource"]


class RowSource(ABC):
    """Rows of a file, or of a part of a folder. It is picklable, and may be read in another process.

    Attributes:
        name: What it is called in messages.
    """

    name: str

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """Return an encoding for each column, as the file's schema or its first rows suggest.

        Raises:
            ShardCorruptError: The file makes no sense.
        """

    @abstractmethod
    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the rows as samples for a writer of these columns.

        Raises:
            ShardCorruptError: The file makes no sense; the message names the line or the row.
        """
