"""A shard: its entry in an index, the description of a file without an index, and the interface of an open shard."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2s
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.files.lru_cache import RowGroupCache
from fkat_data.runtime.interruption import genuine
from fkat_data.storage.file_identity import FileIdentity


@dataclass(frozen=True, slots=True)
class Origin:
    """The bytes of a stored file that a part of a dataset consists of. Files that have no index have parts.

    Attributes:
        name: The stored file, relative to the dataset's directory.
        size_bytes: The size of that file.
        version: The store's name for its content when the index was made; "" if the store has none. Of a file that is
            read in place, the time of its last change in nanoseconds.
        ranges: The bytes, in order, as pairs of the first byte and the byte after the last one.
    """

    name: str
    size_bytes: int
    version: str
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a shard.

    Attributes:
        basename: Path relative to the dataset's directory, and within it.
        bytes: Size in bytes.
        hashes: Hash by algorithm, in lower-case hexadecimal digits.
        origin: What it consists of, if it is a part of a stored file. Where that file is read in place, ``basename``
            is the name of the file; else it is the name under which a cache keeps the part.
    """

    basename: str
    bytes: int
    hashes: Mapping[str, str] = field(default_factory=dict[str, str])
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a shard.

    Attributes:
        name: The column's key in a sample.
        encoding: Name of the encoding; ``str``, ``int`` or ``float`` in JSON lines and separated values; the type of
            a column of Parquet; the decoder of a tar file's members.
        size_bytes: Size of every value's bytes; None if it varies.
    """

    name: str
    encoding: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard.

    Attributes:
        format: ``mds``, ``json``, ``xsv``, ``csv`` or ``tsv``; or ``parquet`` or ``tar``.
        samples: Number of samples.
        columns: Columns in the order in which they are stored.
        raw_data: The uncompressed file of samples.
        zip_data: The compressed file of samples; None if the shard is not compressed.
        raw_meta: The uncompressed file of offsets; None for ``mds``, which has its offsets in ``raw_data``.
        zip_meta: The compressed file of offsets; None if there is none.
        compression: Name of the compression; None if the shard is not compressed.
        hashes: Hash algorithms of the files.
        newline: End of a line; empty for ``mds``.
        separator: Separator between the values of a line; empty except for separated values.
        part: What a shard's reader must know of its part of a stored file, such as the number of a row group.
        chosen: The columns to read; None: all.
    """

    format: str
    samples: int
    columns: tuple[Column, ...]
    raw_data: FileInfo
    zip_data: FileInfo | None = None
    raw_meta: FileInfo | None = None
    zip_meta: FileInfo | None = None
    compression: str | None = None
    hashes: tuple[str, ...] = ()
    newline: str = ""
    separator: str = ""
    part: Any = None
    chosen: tuple[str, ...] | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.samples

    @property
    def size(self) -> int:
        """The same as ``samples``."""
        return self.samples

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def column_encodings(self) -> list[str]:
        """The encodings of the columns."""
        return [column.encoding for column in self.columns]

    @property
    def column_sizes(self) -> list[int | None]:
        """The sizes of the columns' values in bytes; None where they vary."""
        return [column.size_bytes for column in self.columns]

    @property
    def name(self) -> str:
        """Name of the shard in messages: its file, and its part of the file if it is one of several."""
        origin = self.raw_data.origin
        if origin is None:
            return self.raw_data.basename
        return origin.name if self.part is None else f"{origin.name}[{self.part}]"

    @property
    def files(self) -> list[tuple[FileInfo, FileInfo | None]]:
        """The shard's files as pairs (uncompressed, compressed or None), offsets before data."""
        meta = [] if self.raw_meta is None else [(self.raw_meta, self.zip_meta)]
        return [*meta, (self.raw_data, self.zip_data)]

    @property
    def raw_bytes(self) -> int:
        """Size of the uncompressed files, in bytes."""
        return sum(raw.bytes for raw, _ in self.files)

    @property
    def stored_bytes(self) -> int:
        """Size of the files as stored, in bytes: the compressed ones if the shard is compressed."""
        return sum((raw if compressed is None else compressed).bytes for raw, compressed in self.files)


_PART = re.compile(r"(.+\.parts/[0-9a-f]{10}-)[\w.]+", re.ASCII | re.DOTALL)


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


def is_part(name: str) -> bool:
    """Return whether a file of a cache is a part of a stored file."""
    return _PART.fullmatch(name) is not None


def version_prefix(name: str) -> str | None:
    """Return the ``parts_prefix`` of the file that a part in a cache is of; None if it is no part."""
    found = _PART.fullmatch(name)
    return None if found is None else found[1]


class ShardReader(Protocol):
    """An open shard, which returns samples by row, one or many at a time.

    Several threads may share it; each process must open its own. Rows count from 0. Negative rows are out of range.
    """

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        ...

    def sample(self, row: int) -> dict[str, Any]:
        """Return a sample as a dict from column to value.

        Raises:
            IndexError: The row does not exist.
            ShardCorruptError: The sample's bytes are invalid.
        """
        ...

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples in the order of ``rows``. They equal those of ``sample``, and take less time.

        Raises:
            IndexError: A row does not exist.
            ShardCorruptError: A sample's bytes are invalid.
        """
        ...

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return the values of each column in the order of ``rows``.

        Returns:
            The values by column. MDS columns of numbers, or of arrays with a fixed shape, are new, writable arrays:
            shape (len(rows), ...), the column's dtype. All others are lists.

        Raises:
            IndexError: A row does not exist.
            ShardCorruptError: A sample's bytes are invalid.
        """
        ...

    def raw(self, row: int) -> memoryview:
        """Return a sample's bytes as stored, read-only.

        Raises:
            IndexError: The row does not exist.
        """
        ...

    def close(self) -> None:
        """Release the files. Their memory stays mapped until its last view is gone."""
        ...


def checked_row(row: int, num_samples: int) -> int:
    """Return ``row`` if it exists.

    Raises:
        IndexError: The row does not exist.
    """
    if not 0 <= row < num_samples:
        raise IndexError(f"row {row} is out of range for a shard of {num_samples} samples")
    return row


def checked_rows(rows: Sequence[int] | npt.NDArray[Any], num_samples: int) -> npt.NDArray[np.int64]:
    """Return rows as an array: shape (len(rows),), int64.

    Raises:
        IndexError: A row does not exist.
        TypeError: ``rows`` is not a flat sequence of integers.
    """
    numbers = np.asarray(rows) if len(rows) else np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise TypeError(f"rows must be a flat sequence of integers, not {rows!r}")
    if numbers.dtype != np.int64:
        numbers = numbers.astype(np.int64)
    # As unsigned numbers, negative ones are the largest, so one comparison checks both bounds.
    if len(numbers) and numbers.view(np.uint64).max() >= num_samples:
        outside = numbers[(numbers < 0) | (numbers >= num_samples)]
        raise IndexError(f"row {int(outside[0])} is out of range for a shard of {num_samples} samples")
    return numbers


def dicts_of(columns: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """Return samples as dicts, given each column's values."""
    # All loops run in C. A comprehension takes 1.5 times as long.
    return list(map(dict, map(zip, repeat(tuple(columns)), zip(*columns.values(), strict=True))))


class MapRegister(Protocol):
    """Records which files this process has mapped."""

    def enter(self, path: Path, found: os.stat_result) -> object | None:
        """Record that this process maps a file; return what is to live as long as the map does.

        Args:
            path: The file's path.
            found: What ``fstat`` returned for the open file.

        Raises:
            FileNotFoundError: The path no longer leads to the file.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options with which the rows of a shard are read.

    Attributes:
        decoded: Keeps what was decoded, for several shards.
        arrays: Whether ``ndarray`` columns are NumPy arrays or torch tensors.
        writable: Whether NumPy arrays are writable copies; tensors are in any case, for torch has no read-only ones.
        is_copied: Whether read-only arrays are copies, too, so that they do not keep the file mapped.
        register: Records the shard's files as mapped while they are; None: they are not recorded.
    """

    decoded: RowGroupCache
    arrays: Literal["numpy", "torch"]
    writable: bool
    is_copied: bool
    register: MapRegister | None


class PartReader(ABC):
    """An open part of a file. ``decoded`` keeps what its rows have in common, which is decoded when one is read.

    Args:
        directory: Directory of the dataset, or of its cache.
        entry: The shard.
        options: How its rows are read.
    """

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        if entry.raw_data.origin is None:
            raise TypeError(f"a shard of format {entry.format!r} is a part of a file")
        self.num_samples: int = entry.samples
        self._name = entry.name
        self._origin: Origin = entry.raw_data.origin
        self._path = directory / entry.raw_data.basename
        self._is_in_place = entry.raw_data.basename == self._origin.name
        self._arrays: Literal["numpy", "torch"] = options.arrays
        self._writable = options.writable
        self._decoded = options.decoded

    def sample(self, row: int) -> dict[str, Any]:
        """Return a sample; see ``ShardReader``."""
        return self.samples([row])[0]

    @abstractmethod
    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""

    def raw(self, row: int) -> memoryview:
        """Raise ``ConfigurationError``: the bytes of a row are not side by side."""
        raise ConfigurationError("row", row, f"a shard whose rows have bytes of their own, unlike {self._name}")

    def _check_version(self) -> None:
        """Check that a file that is read in place is the one that the index was made of.

        Raises:
            ShardNotFoundError: The file does not exist.
            ShardCorruptError: It was written again.
        """
        # A part in a cache has a name of its own, which has the version in it.
        if not self._is_in_place or not self._origin.version:
            return
        try:
            found = FileIdentity.of_path(self._path)
        except genuine(FileNotFoundError) as error:
            raise ShardNotFoundError(str(self._path), "no such file") from error
        if not found.is_listed_as(self._origin.size_bytes, self._origin.version):
            raise self._written_again()

    def _written_again(self) -> ShardCorruptError:
        return ShardCorruptError(self._name, "the file was written again after its index was made")
