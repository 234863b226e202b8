"""Whether names in two directories lead to the same files."""

import os
from collections.abc import Iterable
from pathlib import Path

from fkat_data.interruption import genuine


def shared_file(first: Path, first_names: Iterable[str], second: Path, second_names: Iterable[str]) -> str | None:
    """Return a name in one directory that leads to a file of another one; None if there is none.

    One directory may be in the other, and folders may be symbolic links or mounts: they are compared by device and
    inode. Folders that do not exist have no files in common.

    Args:
        first: The one directory.
        first_names: Paths of files in it, which need not exist.
        second: The other directory.
        second_names: Paths of files in it, which need not exist.
    """
    ours, theirs = _by_folder(first, first_names), _by_folder(second, second_names)
    for place in ours.keys() & theirs.keys():
        last_names = {name.rpartition("/")[2] for name in theirs[place]}
        for name in ours[place]:
            if name.rpartition("/")[2] in last_names:
                return name
    return None


def is_linked_to(link: Path, file: Path) -> bool:
    """Return whether a path is a symbolic link to a file, which is then the only copy."""
    try:
        return link.is_symlink() and os.path.samestat(link.stat(), file.lstat())
    except genuine(OSError):
        return False


def _by_folder(directory: Path, names: Iterable[str]) -> dict[tuple[int, int], list[str]]:
    by_folder: dict[str, list[str]] = {}
    for name in names:
        by_folder.setdefault(name.rpartition("/")[0], []).append(name)
    by_place: dict[tuple[int, int], list[str]] = {}
    for folder, found in by_folder.items():
        try:
            status = (directory / folder).stat()
        except genuine(OSError):
            continue
        by_place.setdefault((status.st_dev, status.st_ino), []).extend(found)
    return by_place
