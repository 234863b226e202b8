"""A folder whose files are samples."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from fkat_data.errors import ShardNotFoundError
from fkat_data.tools.converting.row_source import RowSource

__all__ = ["FolderSource"]


class FolderSource(RowSource):
    """Files of a folder and of those below it, in the order of their names: columns ``content`` and ``path``.

    Args:
        root: The folder.
        names: Paths of the files relative to it.
    """

    def __init__(self, root: str, names: list[str]) -> None:
        self.name = root
        self._names = names

    @classmethod
    def parts_of(cls, root: str, num_parts: int) -> list[Self]:
        """Return a folder in so many parts, at least one; hidden files are left out.

        Raises:
            ShardNotFoundError: It has no files.
        """
        names = sorted(
            Path(directory, file).relative_to(root).as_posix()
            for directory, _, files in os.walk(root)
            for file in files
            if not file.startswith(".")
        )
        if not names:
            raise ShardNotFoundError(root, "there is no file in it")
        size = -(-len(names) // num_parts)
        return [cls(root, names[begin : begin + size]) for begin in range(0, len(names), size)]

    def columns(self) -> dict[str, str]:
        """Return what every folder has: bytes, and a text."""
        return {"content": "bytes", "path": "str"}

    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the files."""
        for name in self._names:
            sample: dict[str, Any] = {"path": name}
            if "content" in columns:
                sample["content"] = Path(self.name, name).read_bytes()
            yield sample
