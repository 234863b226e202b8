"""The folders of the items that ``write_parallel`` writes: one for each attempt, and in the end one for each item.

An executor may run a call again while the first attempt is still alive, such as on a machine that the network has lost
for a while. So each attempt writes to a folder of its own, and only the attempt whose name the executor returns becomes
part of the dataset. The index of the whole ends the matter:

- Who writes it removes all other attempts' folders afterwards.
- An attempt that finds it when it ends removes its own folder.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fkat_data.streaming.formats.index import INDEX_NAME
from fkat_data.streaming.writing.local_directory import LocalDirectory
from fkat_data.streaming.writing.merge import IndexLocation
from fkat_data.streaming.writing.remote_directory import RemoteDirectory
from fkat_data.streaming.writing.replacement import is_attempt, parts_in, place_of, remove_attempt

__all__ = ["PartFolders"]


@dataclass(frozen=True)
class PartFolders:
    """The folders below the directory of a dataset. Picklable.

    Attributes:
        local: The local path of the directory, or None.
        remote: Its remote path or URL, or None.
        storage_options: The options of fsspec's file system for the URL.
    """

    local: str | None
    remote: str | None
    storage_options: Mapping[str, Any] | None

    @property
    def shown(self) -> str:
        """The directory without secrets, for messages."""
        place = self._places()[-1]
        return place.shown if isinstance(place, RemoteDirectory) else str(place.root)

    def attempt(self, number: int) -> str:
        """Return the name of a new folder for an attempt to write an item. No other attempt has it."""
        return f"{number:06}.attempt-{secrets.token_hex(4)}"

    def location(self, name: str) -> IndexLocation:
        """Return a folder as a writer's ``out``."""
        sides = [f"{side.rstrip('/')}/{name}" for side in (self.local, self.remote) if side is not None]
        return sides[0] if len(sides) == 1 else (sides[0], sides[1])

    def is_whole(self) -> bool:
        """Return whether the index of the whole is written.

        Raises:
            Exception: The store does not say. This is its file system's error.
        """
        try:
            # Network file systems answer from memory whether a file exists, but not when it is opened.
            self._places()[-1].read(INDEX_NAME)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove the folder of an attempt.

        Raises:
            Exception: A file cannot be removed. This is the file system's error.
        """
        for place in self._places():
            remove_attempt(place, name)

    def settle(self, name: str) -> str:
        """Give the folder of an attempt the name of its item, if folders can be renamed; return its name.

        In a store, renaming is copying. There, the folder keeps its name, as it does beside files of others.

        Raises:
            OSError: The folder cannot be renamed.
        """
        item = name.partition(".")[0]
        roots = [None if isinstance(place, RemoteDirectory) else place.root for place in self._places()]
        if any(root is None or (root / item).exists() for root in roots):
            return name
        for root in roots:
            if root is not None and (root / name).exists():
                (root / name).rename(root / item)
        return item

    def remove_others(self, kept: Collection[str]) -> None:
        """Remove the folders of all attempts but these.

        Raises:
            Exception: A file cannot be removed. This is the file system's error.
        """
        for place in self._places():
            for name in parts_in(place):
                if is_attempt(name) and name not in kept:
                    remove_attempt(place, name)

    def _places(self) -> list[LocalDirectory | RemoteDirectory]:
        """Return the local side and the remote one, which decides about the whole."""
        places: list[LocalDirectory | RemoteDirectory] = []
        if self.local is not None:
            places.append(LocalDirectory(Path(self.local)))
        if self.remote is not None:
            places.append(place_of(RemoteDirectory(self.remote, "out", self.storage_options)))
        return places
