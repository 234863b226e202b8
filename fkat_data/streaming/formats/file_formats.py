"""Formats of files that have no index: what a stream must know of each file, so that it can make the index itself.

A format is a module with ``describe`` and ``entries_of``. It is imported when a dataset of its files is opened.
"""

import importlib
import re
from collections.abc import Sequence
from hashlib import blake2s
from typing import Any, NamedTuple, Protocol, cast

from fkat_data.streaming.formats.entry import FileInfo, Origin, ShardEntry

#: The suffixes of each format's files, in lower case.
FILE_SUFFIXES: dict[str, tuple[str, ...]] = {
    "parquet": (".parquet", ".parq", ".pq"),
    "tar": (".tar",),
}
#: These name files of the format, too, which are refused when they are described, with a message that says why.
_REFUSED_SUFFIXES = {"tar": (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")}
_PART = re.compile(r"(.+\.parts/[0-9a-f]{10}-)[\w.]+", re.ASCII | re.DOTALL)
_MODULES = {
    "parquet": "fkat_data.streaming.formats.parquet_index",
    "tar": "fkat_data.streaming.formats.tar_files",
}


class StoredBytes(Protocol):
    """A stored file, of which any range can be read."""

    @property
    def name(self) -> str:
        """The file, relative to the dataset's directory."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its size."""
        ...

    @property
    def hop_bytes(self) -> int:
        """A gap that is smaller takes less time to read than another call of ``read``."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``.

        Raises:
            Exception: Why the store does not deliver them.
        """
        ...


class DescribedFile(NamedTuple):
    """A stored file with its description.

    Attributes:
        name: The file, relative to the dataset's directory, with slashes.
        size_bytes: Its size.
        listed: Its version in the listing of its directory.
        version: Its version as reading it reports.
        description: What ``describe`` returned.
    """

    name: str
    size_bytes: int
    listed: str
    version: str
    description: Any

    @property
    def parts_prefix(self) -> str:
        """The beginning of the names of this version's parts in a cache."""
        key = blake2s(f"{self.size_bytes} {self.listed}".encode(), digest_size=5).hexdigest()
        return f"{self.name}.parts/{key}-"

    def info(self, label: str, ranges: tuple[tuple[int, int], ...], *, is_in_place: bool) -> FileInfo:
        """Return a part of the file as a file of a shard.

        Args:
            label: What tells the part from the others of this version: letters, digits and dots.
            ranges: Its bytes; the same label must mean the same ranges.
            is_in_place: Whether the file is read in place; else a cache keeps the part in a file of its own.
        """
        # In place, a reader can compare the time that the listing has; the inode may change without the content.
        origin = Origin(self.name, self.size_bytes, self.listed if is_in_place else self.version, ranges)
        basename = self.name if is_in_place else self.parts_prefix + label
        return FileInfo(basename, sum(stop - start for start, stop in ranges), origin=origin)


class FileFormat(Protocol):
    """The format of files that have no index."""

    def describe(self, file: StoredBytes) -> Any:
        """Return what the index keeps of a file, as plain JSON values. Called in threads, once for each version.

        Raises:
            ShardCorruptError: The file is not of this format, or contradicts itself.
            ConfigurationError: A package is missing.
        """
        ...

    def entries_of(
        self, files: Sequence[DescribedFile], columns: tuple[str, ...] | None, *, is_in_place: bool
    ) -> list[ShardEntry]:
        """Return the shards of all files, in the order of the files.

        Args:
            files: The files, sorted by name.
            columns: The columns to read; None: all.
            is_in_place: Whether the files are read in place.

        Raises:
            ConfigurationError: No file has a column of this name.
            ShardCorruptError: A description is invalid, or the columns of a file differ from those of the first.
        """
        ...


def is_part(name: str) -> bool:
    """Return whether a file of a cache is a part of a stored file."""
    return _PART.fullmatch(name) is not None


def version_prefix(name: str) -> str | None:
    """Return the ``parts_prefix`` of the file that a part in a cache is of; None if it is no part."""
    found = _PART.fullmatch(name)
    return None if found is None else found[1]


def file_format(name: str) -> FileFormat:
    """Return a format by its name, a key of ``FILE_SUFFIXES``.

    Raises:
        ConfigurationError: Its package is missing.
    """
    return cast("FileFormat", importlib.import_module(_MODULES[name]))


def format_of_name(name: str) -> str | None:
    """Return the format of a file by the suffix of its name; None if it has none of the suffixes."""
    lowered = name.lower()
    return next(
        (
            kind
            for kind, suffixes in FILE_SUFFIXES.items()
            if lowered.endswith(suffixes + _REFUSED_SUFFIXES.get(kind, ()))
        ),
        None,
    )
