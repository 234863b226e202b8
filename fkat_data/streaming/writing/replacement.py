"""Remove a dataset before another one takes its place."""

import contextlib
import json
import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, Protocol, cast

from fkat_data.errors import ShardError
from fkat_data.files.index import FORMATS, INDEX_NAME, parse_index
from fkat_data.files.stored import FAMILIES
from fkat_data.streaming.writing.local_directory import LocalDirectory
from fkat_data.streaming.writing.remote_directory import RemoteDirectory

#: Folders of ``write_parallel``'s items; no year and month, such as 202401, has such a name.
_PART_NAME = re.compile(r"0\d{5}")
#: Folders of its attempts to write an item.
_ATTEMPT_NAME = re.compile(r"\d{6,}\.attempt-[0-9a-f]{8}")
#: Names of files that a killed writer may have left behind.
_SHARD_NAME = rf"shard\.\d{{5,}}\.({'|'.join(FORMATS)})(\.meta)?(\.({'|'.join(FAMILIES)}))?"
_LEFTOVER_NAME = re.compile(rf"{_SHARD_NAME}|({_SHARD_NAME}|{re.escape(INDEX_NAME)})(\.[0-9a-f]{{16}})?\.tmp")


class _Place(Protocol):
    """A directory on this machine or in a store."""

    def has(self, name: str) -> bool: ...
    def read(self, name: str) -> bytes: ...
    def remove(self, names: Iterable[str]) -> None: ...
    def listed(self) -> tuple[list[str], list[str]]: ...
    def below(self, name: str) -> "_Place": ...


def place_of(remote: RemoteDirectory) -> LocalDirectory | RemoteDirectory:
    """Return a writer's remote directory; the directory itself if it is on this machine."""
    return remote if remote.path is None else LocalDirectory(remote.path)


def remove_dataset(place: _Place, shown: str) -> None:
    """Remove a dataset and what a killed writer has left. Other files stay.

    The index goes before the files that it names, so that a partial dataset never looks complete.

    Args:
        place: Where it is.
        shown: That place, for messages.

    Raises:
        FileExistsError: The index is another program's.
        Exception: A file cannot be removed. This is the file system's error.
    """
    named: list[str] = []
    if place.has(INDEX_NAME):
        content = place.read(INDEX_NAME)
        if not _is_index(content):
            raise FileExistsError(
                f"{shown}/{INDEX_NAME} is not the index of a dataset of shards, so exist_ok=True does not replace it: "
                "remove it, or write to another directory"
            )
        with contextlib.suppress(ShardError):  # an invalid index has no file names to use
            entries = parse_index(content, INDEX_NAME)
            named = [info.basename for entry in entries for pair in entry.files for info in pair if info]
        folders = {str(PurePosixPath(name).parent) for name in named} - {"."}
        # A part without an index is not merged again, and the whole does not need it.
        place.remove(f"{folder}/{INDEX_NAME}" for folder in sorted(folders))
        place.remove([INDEX_NAME])
    files, _ = place.listed()
    place.remove(dict.fromkeys([*named, *(name for name in files if _LEFTOVER_NAME.fullmatch(name))]))


def parts_in(place: _Place) -> list[str]:
    """Return the names of the folders that ``write_parallel`` has made, complete or not."""
    return sorted(name for name in place.listed()[1] if _PART_NAME.fullmatch(name) or is_attempt(name))


def is_attempt(name: str) -> bool:
    """Return whether a folder is of an attempt of ``write_parallel`` to write an item."""
    return _ATTEMPT_NAME.fullmatch(name) is not None


def remove_parts(place: _Place, shown: str) -> None:
    """Remove the parts that ``write_parallel`` has left in a directory.

    Args:
        place: The directory.
        shown: The same, for messages.

    Raises:
        FileExistsError: The index of a part is another program's.
        Exception: A file cannot be removed. This is the file system's error.
    """
    for name in parts_in(place):
        if is_attempt(name):
            remove_attempt(place, name)
        else:
            remove_dataset(place.below(name), f"{shown}/{name}")
            place.remove([f"{name}/{INDEX_NAME}"])


def remove_attempt(place: _Place, name: str) -> None:
    """Remove the folder of an attempt to write a part. All files in it are the attempt's.

    Raises:
        Exception: A file cannot be removed. This is the file system's error.
    """
    files, _ = place.below(name).listed()
    place.remove(f"{name}/{file}" for file in [*files, INDEX_NAME])


def _is_index(content: bytes) -> bool:
    """Return whether a file is the index of a dataset of shards, valid or not."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"version", "shards"} <= cast("dict[str, Any]", found).keys()
