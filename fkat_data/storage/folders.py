"""List the files of a folder, and say which of them are data: one walk and one rule for samplers, streams and ``convert``."""

import errno
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from fkat_data.runtime.interruption import genuine

#: A folder that file systems make for their own repair, and that only the administrator may read. It holds no data.
LOST_AND_FOUND = "lost+found"
#: How the names of hidden files and folders begin. A folder ``_column=value`` of a partition is none, as in Spark.
_HIDDEN = re.compile(r"\.|_(?!.*=)", re.DOTALL)

_logger = logging.getLogger(__name__)


class _Folder(NamedTuple):
    path: str
    name: str  # below the folder that is listed; with a slash at its end, or empty
    real_path: str
    above: frozenset[str]  # the real paths of the folders above it, and its own

    def below(self, entry: os.DirEntry[str]) -> "_Folder":
        # Not by inode: where a file server shows Btrfs, the root of every subvolume has the same one.
        is_link = entry.is_symlink()
        real_path = os.path.realpath(entry.path) if is_link else f"{self.real_path.rstrip('/')}/{entry.name}"
        return _Folder(entry.path, f"{self.name}{entry.name}/", real_path, self.above | {real_path})


def files_of_folders(
    directory: str, beginning: str = "", enters: Callable[[str], bool] | None = None
) -> Iterator[list[tuple[str, os.DirEntry[str]]]]:
    """Yield the files of a directory, folder by folder, each with its name below the directory.

    Links to files and folders are followed, except for a link that leads back to a folder above it. A folder that is
    reached by two names is listed under both. A link that leads nowhere is left out, with a warning; so are
    ``lost+found``, and hidden folders (``.snapshot``) that may not be read.

    Args:
        directory: The directory.
        beginning: What the names of the files and folders in ``directory`` itself begin with.
        enters: Whether to list a folder, given its name below the directory; None: all are listed.

    Raises:
        OSError: A folder cannot be read.
    """
    real_path = os.path.realpath(directory)
    pending = [_Folder(directory, "", real_path, frozenset({real_path}))]
    while pending:
        folder = pending.pop()
        files: list[tuple[str, os.DirEntry[str]]] = []
        below: list[_Folder] = []
        for entry in _entries(folder):
            name = folder.name + entry.name
            is_folder = _is_folder(entry) if name.startswith(beginning) else None
            if is_folder and entry.name != LOST_AND_FOUND and (enters is None or enters(name)):
                below.append(folder.below(entry))
            elif is_folder is False:
                files.append((name, entry))
        yield files
        pending += (found for found in reversed(below) if found.real_path not in folder.above)


def _entries(folder: _Folder) -> list[os.DirEntry[str]]:
    """Return what is in a folder, by name; nothing if it is left out, or gone since the one above was listed."""
    try:
        with os.scandir(folder.path) as listing:
            return sorted(listing, key=lambda entry: entry.name)
    except genuine(PermissionError) as error:
        if not folder.name:
            raise
        pass_over_unreadable(folder.path, error)
    except genuine(FileNotFoundError, NotADirectoryError):
        if not folder.name:
            raise
    return []


def _is_folder(entry: os.DirEntry[str]) -> bool | None:
    """Return whether an entry is a folder, or a link to one; None for a link that leads nowhere."""
    if not entry.is_symlink():
        return entry.is_dir()
    try:
        return stat.S_ISDIR(entry.stat().st_mode)
    except genuine(OSError) as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
    if not _HIDDEN.match(entry.name):
        _logger.warning("%s is left out: the link leads nowhere", entry.path)
    return None


def files_below(directory: str, enters: Callable[[str], bool] | None = None) -> Iterator[tuple[str, str]]:
    """Yield the name of each file below a directory, and its path.

    Args:
        directory: The directory.
        enters: Whether to list a folder, given its name below the directory; None: all are listed.

    Raises:
        OSError: A folder cannot be read.
    """
    for files in files_of_folders(directory, enters=enters):
        for name, entry in files:
            yield name, entry.path


def pass_over_unreadable(folder: str, error: PermissionError) -> None:
    """Leave out a folder below the one that the user has named, if it is hidden, with a warning.

    Args:
        folder: Its path.
        error: What reading it has raised.

    Raises:
        PermissionError: It is not hidden: its files may be part of the data. A note says what helps.
    """
    if not Path(folder).name.startswith("."):
        error.add_note(
            "fkat_data: its files may be part of the data: let this user read the folder, or move it elsewhere "
            "(hidden folders that cannot be read are left out)",
        )
        raise error
    _logger.warning("%s is left out: it is hidden, and this user may not read it", folder)


def is_shown(name: str, pattern: str = "") -> bool:
    """Return whether no part of a file's name is hidden, or the pattern writes what hides it.

    Args:
        name: The file, relative to the folder that is listed.
        pattern: What chose it; ``_delta_log/*.json`` shows what is in that folder.
    """
    patterns = pattern.split("/")
    return all(
        any(part.startswith(first[:1] or "/") and fnmatchcase(part, first) for first in patterns)
        for part in name.split("/")
        if _HIDDEN.match(part)
    )


#: The ends of the names of what this library writes beside a file: see ``fkat_data.files.sidecar``.
_SIDECARS = (".lines", ".lengths")
#: The file that a sidecar was written for may be gone.
_LINES = re.compile(r"\.(jsonl|ndjson|json)(\.\w+)?$", re.IGNORECASE)
#: What others write beside data: Hadoop's checksums, and its marks of folders in object stores.
_OF_OTHERS = (".crc", "_$folder$")
#: What desktops write into folders; they hide the others.
_OF_DESKTOPS = frozenset({"thumbs.db", "desktop.ini"})
#: The end of the name of an index, and those of the files that it may be of, instead of its own: Megatron's tokens,
#: archives, and records of MXNet and TensorFlow.
_INDEX, _INDEXED = ".idx", ("", ".bin", ".tar", ".rec", ".tfrecord", ".tfrecords")
#: What datatrove writes beside a file of tokens.
_OF_TOKENS = (".index", ".metadata", ".loss")
#: A file that is being written, or fetched: the ends that say nothing else, and those that do so behind a file's kind, as
#: ``fkat_data.storage.location.replacing`` writes it.
_UNFINISHED = re.compile(
    r"(\._copying_|_\.gstmp|\.(?:crdownload|opdownload|filepart|incomplete|aria2|in-?progress(?:\.[^./]+)?))$"
    r"|[^/]\.[^/]+(\.(?:tmp|temp|part|partial|download|pending))$",
    re.IGNORECASE,
)
#: What Spark and Hive write about a folder.
_OF_FOLDERS = frozenset({"_SUCCESS", "_metadata", "_common_metadata"})


def data_names(names: Iterable[str], pattern: str = "") -> list[str]:
    """Return the names of files that are data, and neither hidden nor about other files.

    Args:
        names: The files, relative to the folder that is listed.
        pattern: What chooses some of them: it shows what it writes, such as ``_*`` or ``*.crc``.
    """
    there = set(names)
    return [name for name in there if is_shown(name, pattern) and not _is_beside_data(name, there, pattern)]


def without_sidecars(names: Iterable[str]) -> list[str]:
    """Return files without those that this library has written beside others of them."""
    there = dict.fromkeys(names)
    return [name for name in there if not (name.endswith(_SIDECARS) and name.rpartition(".")[0] in there)]


def sample_names(names: Iterable[str]) -> list[str]:
    """Return the names of files that are samples: of those that begin with an underscore, all that are not marks."""
    there = set(names)
    return [
        name
        for name in there
        if not any(part.startswith(".") or part in _OF_FOLDERS for part in name.split("/"))
        and not _is_beside_data(name, there, "")
    ]


def _is_beside_data(name: str, there: Collection[str], pattern: str) -> bool:
    end = next((end for end in (*_SIDECARS, *_OF_OTHERS, *_OF_TOKENS, _INDEX) if name.endswith(end)), "")
    about = name.removesuffix(end)
    if end in _SIDECARS and about not in there and not _LINES.search(about):
        end = ""
    if end in _OF_TOKENS and not (about.endswith(".ds") and about in there):
        end = ""
    if end == _INDEX and not any(about + of in there for of in _INDEXED):
        end = ""
    last = name.rpartition("/")[2]
    if found := _UNFINISHED.search(name):
        end = found[1] or found[2]
    elif last.lower() in _OF_DESKTOPS:
        end = last
    return bool(end) and not pattern.endswith(end)


def marks_of_folders(sizes: Mapping[str, int | None]) -> set[str]:
    """Return the empty objects that stand for folders in a store, which has none.

    Args:
        sizes: The size of each file of a store, by name.
    """
    folders: set[str] = set()
    for name in sizes:
        folder = name.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return {name for name, size in sizes.items() if size == 0 and (name.endswith("/") or name in folders)}


_PARTITION = re.compile(r"(?:^|/)([^/=]+)=[^/]*(?=/)")
_said: set[str] = set()


def say_partitions(location: str, names: Iterable[str]) -> None:
    """Say once that names of folders such as ``year=2024`` are no columns of their files.

    Args:
        location: The folder that is listed, as messages show it.
        names: The files that are read, relative to it.
    """
    columns = dict.fromkeys(found for name in names if "=" in name for found in _PARTITION.findall(name))
    if columns and location not in _said:
        _said.add(location)
        _logger.warning(
            "%s is partitioned: its samples have no %s, which are in names of folders, unless the files have such columns",
            location,
            " and no ".join(columns),
        )
