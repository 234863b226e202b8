"""A directory of this machine, for a writer's look-ups and removals."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from fkat_data.interruption import suppress


class LocalDirectory:
    """A directory of this machine.

    Args:
        root: Path of the directory, which need not exist.

    Attributes:
        root: Path of the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return (self.root / name).is_file()

    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        return (self.root / name).read_bytes()

    def listed(self) -> tuple[list[str], list[str]]:
        """Return the names of the files, and of the folders, directly in the directory. Links to folders count as neither."""
        if not self.root.is_dir():
            return [], []
        entries = list(self.root.iterdir())
        folders = [path.name for path in entries if path.is_dir() and not path.is_symlink()]
        return [path.name for path in entries if path.is_file()], folders

    def below(self, name: str) -> "LocalDirectory":
        """Return a folder of this directory."""
        return LocalDirectory(self.root / name)

    def remove(self, names: Iterable[str]) -> None:
        """Delete the files that exist, then the folders that this empties. No folder that is named goes, and no link is followed.

        Raises:
            OSError: A file cannot be deleted.
        """
        root = self.root.resolve()
        folders: set[PurePosixPath] = set()
        for name in names:
            path = self.root / name
            is_folder = path.is_dir() and not path.is_symlink()
            if not is_folder and path.parent.resolve() == root.joinpath(*PurePosixPath(name).parent.parts):
                path.unlink(missing_ok=True)
                folders.update(PurePosixPath(name).parents)
        for folder in sorted(folders - {PurePosixPath()}, key=lambda path: len(path.parts), reverse=True):
            with suppress(OSError):  # it contains other files
                (self.root / folder).rmdir()
