"""What an index says of one shard."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fkat_data.streaming.formats.encodings import encoding_of

__all__ = ["Column", "FileInfo", "ShardEntry"]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a shard.

    Attributes:
        basename: Its path relative to the dataset's directory; it does not leave that directory.
        bytes: Its size.
        hashes: Its hashes, from algorithm to lower-case hexadecimal digits.
    """

    basename: str
    bytes: int
    hashes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a shard.

    Attributes:
        name: Its key in a sample.
        encoding: Name of the encoding; in JSON lines and separated values one of ``str``, ``int``, ``float``.
        size_bytes: What every value takes; None if it varies.
    """

    name: str
    encoding: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard.

    Attributes:
        format: ``mds``, ``json``, ``xsv``, ``csv`` or ``tsv``.
        samples: Number of its samples.
        columns: Its columns, in the order in which they are stored.
        raw_data: The file that is read.
        zip_data: The same, compressed; None if the shard is not compressed.
        raw_meta: The file of offsets; None for ``mds``, which has them in ``raw_data``.
        zip_meta: The same, compressed.
        compression: How; None: not at all.
        hashes: Algorithms that the files were hashed by.
        newline: What ends a line; empty for ``mds``.
        separator: What stands between the values of a line; empty but for separated values.
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

    @property
    def files(self) -> list[tuple[FileInfo, FileInfo | None]]:
        """The shard's files: (as it is read, as it is compressed or None), offsets before data."""
        meta = [] if self.raw_meta is None else [(self.raw_meta, self.zip_meta)]
        return [*meta, (self.raw_data, self.zip_data)]

    @property
    def raw_bytes(self) -> int:
        """Size of the files that are read."""
        return sum(raw.bytes for raw, _ in self.files)

    @property
    def stored_bytes(self) -> int:
        """Size of the files as they are stored: compressed if the shard is."""
        return sum((raw if compressed is None else compressed).bytes for raw, compressed in self.files)

    @property
    def unsafe_columns(self) -> list[str]:
        """Columns whose values run code of the file's author when they are read."""
        if self.format != "mds":
            return []
        return [column.name for column in self.columns if not encoding_of(column.encoding).is_safe]
