"""The index's description of a shard."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fkat_data.archives.member_decoding import UNSAFE
from fkat_data.streaming.formats.encodings import encoding_of


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
        part: What a shard's reader must know of its place in a stored file, such as the number of a row group.
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

    @property
    def unsafe_columns(self) -> list[str]:
        """Names of the columns whose values can run code of the file's author when they are decoded."""
        if self.format == "tar":
            return [column.name for column in self.columns if column.encoding in UNSAFE]
        if self.format != "mds":
            return []
        return [column.name for column in self.columns if not encoding_of(column.encoding).is_safe]
