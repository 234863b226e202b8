"""Read a folder that has one sample per file."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Self

from fkat_data.errors import ShardCorruptError, ShardNotFoundError
from fkat_data.samplers.listing import files_below
from fkat_data.tools.converting.row_source import RowSource

__all__ = ["FolderSource"]


class FolderSource(RowSource):
    """The files below a folder, sorted by path, with the columns ``content`` and ``path``.

    Args:
        root: The folder.
        names: The files' paths relative to the folder.
    """

    def __init__(self, root: str, names: list[str]) -> None:
        self.name = root
        self._names = names

    @classmethod
    def parts_of(cls, root: str, num_parts: int) -> list[Self]:
        """Return the folder divided into at most ``num_parts`` parts, without hidden files and folders.

        Raises:
            ShardNotFoundError: The folder has no files.
            OSError: A folder in it cannot be read and is not hidden.
        """
        paths = (PurePath(path).relative_to(root) for path in files_below(root))
        names = sorted(path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts))
        if not names:
            raise ShardNotFoundError(root, "the folder has no files")
        size = -(-len(names) // num_parts)
        return [cls(root, names[begin : begin + size]) for begin in range(0, len(names), size)]

    def columns(self, *, allows_nulls: bool = False) -> dict[str, str]:
        """Return the columns of every folder."""
        del allows_nulls  # there are none
        return {"content": "bytes", "path": "str"}

    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield a sample for each file.

        Raises:
            ShardCorruptError: A file is a pipe, a socket or a device, which may have no end.
        """
        for name in self._names:
            path = Path(self.name, name)
            if path.exists() and not path.is_file():
                raise ShardCorruptError(str(path), "not a regular file; remove it from the folder")
            sample: dict[str, Any] = {"path": name}
            if "content" in columns:
                sample["content"] = path.read_bytes()
            yield sample
