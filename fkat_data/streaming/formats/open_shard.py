"""Opening a shard's uncompressed files."""

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy as np
import numpy.typing as npt
import torch

from fkat_data import arguments
from fkat_data.archives.member_decoding import DECODERS
from fkat_data.archives.tar_samples import TarIndex
from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.interruption import genuine
from fkat_data.streaming.formats.decoded_groups import DecodedGroups
from fkat_data.streaming.formats.encoding import EncodingError
from fkat_data.streaming.formats.entry import FileInfo, ShardEntry
from fkat_data.streaming.formats.mapping import MapRegister, mapped, offsets_of
from fkat_data.streaming.formats.mds import MDSReader
from fkat_data.streaming.formats.part_reader import PartOptions, PartReader
from fkat_data.streaming.formats.reader import ShardReader, checked_row, checked_rows, dicts_of


class SplitReader(ABC):
    """An open shard of lines.

    Args:
        directory: Directory of the dataset.
        entry: The shard.
        register: Records the files as mapped.

    Raises:
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file's size, its offsets or its header contradict the index.
    """

    def __init__(self, directory: Path, entry: ShardEntry, register: MapRegister | None = None) -> None:
        if entry.raw_meta is None:
            raise TypeError(f"a shard of format {entry.format!r} needs a file of offsets")
        self.num_samples: int = entry.samples
        self._names = [column.name for column in entry.columns if entry.chosen is None or column.name in entry.chosen]
        self._is_whole = entry.chosen is None
        self._path = directory / entry.raw_data.basename
        self._content = mapped(self._path, entry.raw_data, register)
        meta_path = directory / entry.raw_meta.basename
        meta = mapped(meta_path, entry.raw_meta, register)
        self._offsets = offsets_of(meta_path, meta, entry.samples, entry.raw_data.bytes)
        self._newline = entry.newline.encode()
        header = self._header(entry)
        if bytes(self._content[: self._offsets.item(0)]) != header:
            found = bytes(self._content[: min(self._offsets.item(0), 2 * len(header) + 1)])
            raise ShardCorruptError.of_field(self._path, "header", repr(header), found)

    def sample(self, row: int) -> dict[str, Any]:
        """Return a sample; see ``ShardReader``."""
        line = bytes(self.raw(row))
        try:
            if not line.endswith(self._newline):
                raise ValueError(f"the line does not end with {self._newline!r}")
            sample = self._parsed(line[: -len(self._newline)])
        except genuine(ValueError) as error:
            raise ShardCorruptError(str(self._path), f"row {row}: {error}", f"row {row}") from error
        return sample if self._is_whole else {name: sample[name] for name in self._names}

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""
        chosen: list[int] = checked_rows(rows, self.num_samples).tolist()
        return [self.sample(row) for row in chosen]

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return each column's values as a list; see ``ShardReader``."""
        samples = self.samples(rows)
        return {name: [sample[name] for sample in samples] for name in self._names}

    def raw(self, row: int) -> memoryview:
        """Return a sample's line; see ``ShardReader``."""
        number = checked_row(row, self.num_samples)
        return self._content[self._offsets.item(number) : self._offsets.item(number + 1)]

    def close(self) -> None:
        """Release the file and have no rows afterwards; see ``ShardReader``."""
        self.num_samples = 0
        self._content = memoryview(b"")
        self._offsets = np.zeros(1, np.int64)

    @abstractmethod
    def _header(self, entry: ShardEntry) -> bytes:
        """Return the bytes that must precede the first sample."""

    @abstractmethod
    def _parsed(self, line: bytes) -> dict[str, Any]:
        """Parse a line, without its newline, into a sample.

        Raises:
            ValueError: The line is invalid.
        """


#: What the decoded row groups of a process may take, unless the caller says otherwise.
DECODED_LIMIT_BYTES = 512 << 20


def open_shard(
    directory: Path,
    entry: ShardEntry,
    *,
    allow_unsafe_types: bool = False,
    arrays: Literal["numpy", "torch"] = "numpy",
    writable: bool = False,
    decoded: DecodedGroups | None = None,
    is_copied: bool = False,
    register: MapRegister | None = None,
) -> ShardReader:
    """Open a shard's uncompressed files; ``decompress_file`` makes them from compressed ones.

    Check sizes and offsets, so that reads stay within the files. ``validate_file`` checks hashes.

    Args:
        directory: Directory of the dataset, with its index.
        entry: The shard.
        allow_unsafe_types: Whether to read columns of pickles, which runs code of the file's author.
        arrays: Whether to return ``ndarray`` columns as NumPy arrays or torch tensors.
        writable: Whether NumPy arrays are writable copies. Otherwise they are read-only, and ``sample`` returns views
            of the file. Tensors are always writable copies.
        decoded: Keeps decoded row groups of Parquet, and where the members of tar files are, for several shards; None:
            for this one alone.
        is_copied: Whether read-only arrays are copies, too: they then do not keep the file mapped.
        register: Records the shard's files as mapped while they are; None: they are not recorded.

    Raises:
        ConfigurationError: An argument is invalid, or the shard has a column of pickles and they are not allowed.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file's size or header contradicts the index.
        OSError: A file cannot be read.
    """
    arguments.choice("arrays", arrays, ("numpy", "torch"))
    if not allow_unsafe_types:
        check_safe(entry)
    if entry.format == "mds":
        return MDSReader(directory, entry, arrays=arrays, writable=writable, is_copied=is_copied, register=register)
    if entry.format in ("parquet", "tar"):
        kept = DecodedGroups(DECODED_LIMIT_BYTES) if decoded is None else decoded
        make: Any = TarReader
        if entry.format == "parquet":
            # Imported here: pyarrow takes time, and other formats do not need it.
            make = importlib.import_module("fkat_data.streaming.formats.parquet_shard").ParquetReader
        return make(directory, entry, arrays=arrays, writable=writable, decoded=kept, register=register)
    return (JSONReader if entry.format == "json" else XSVReader)(directory, entry, register)


def check_safe(entry: ShardEntry) -> None:
    """Check that decoding a shard's columns runs no code of the file's author.

    Raises:
        ConfigurationError: A column holds pickles.
    """
    unsafe = entry.unsafe_columns
    if unsafe:
        raise ConfigurationError(
            "allow_unsafe_types",
            False,
            f"True, if you trust the file's author: column {unsafe[0]!r} of {entry.name} holds pickles, "
            "and loading them runs code from the file",
        )


# Types of a column's values. Another program may have written a float without a decimal point.
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int)}


class JSONReader(SplitReader):
    """An open shard of JSON lines. Each line is an object with a sample."""

    def __init__(self, directory: Path, entry: ShardEntry, register: MapRegister | None = None) -> None:
        super().__init__(directory, entry, register)
        self._types = [(column.name, column.encoding, _TYPES[column.encoding]) for column in entry.columns]

    def _header(self, entry: ShardEntry) -> bytes:
        del entry
        return b""

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except genuine(RecursionError):
            raise EncodingError("the JSON is nested too deeply") from None
        if not isinstance(value, dict):
            raise EncodingError("not a JSON object")
        sample = cast("dict[str, Any]", value)
        for name, encoding, types in self._types:
            if not isinstance(sample.get(name), types):
                raise EncodingError(f"column {name!r} is missing or not {encoding}")
        return sample


_HOP_BYTES = 4 << 10


class TarReader(PartReader):
    """An open tar file. Its headers are read when the first of its rows is read, and again if they were dropped since.

    Args:
        directory: Directory of the dataset, or of its cache.
        entry: The shard.
        register: Records the file as mapped.
        **options: The other arguments of ``PartReader``.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The file's size contradicts the index.
    """

    def __init__(
        self, directory: Path, entry: ShardEntry, *, register: MapRegister | None = None, **options: Unpack[PartOptions]
    ) -> None:
        super().__init__(directory, entry, **options)
        origin = self._origin
        self._content = mapped(self._path, FileInfo(origin.name, origin.size_bytes), register)
        self._key = (str(self._path), origin.size_bytes, origin.version)
        self._decoders = {
            column.name: _decoder(column.encoding, self._arrays, self._writable) for column in entry.columns
        }
        self._check_version()

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""
        return dicts_of(self.column_arrays(rows))

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return each column's values as a list; see ``ShardReader``."""
        chosen: list[int] = checked_rows(rows, self.num_samples).tolist()
        index = self._decoded.group(self._key, self._scanned)
        return {
            name: index.values(self._name, name, chosen, self._read, decode) for name, decode in self._decoders.items()
        }

    def close(self) -> None:
        """Release the file; see ``ShardReader``."""
        self.num_samples = 0
        self._decoded.drop(self._key)
        self._content = memoryview(b"")

    def _read(self, start: int, stop: int) -> bytes:
        return bytes(self._content[start:stop])

    def _scanned(self) -> tuple[TarIndex, int]:
        index = TarIndex.of(self._name, self._read, len(self._content), _HOP_BYTES)
        # A process that writes into the file changes what is mapped.
        self._check_version()
        if len(index.keys) != self.num_samples:
            raise self._written_again()
        return index, index.size_bytes


def _decoder(name: str, arrays: str, is_writable: bool) -> Callable[[bytes], Any]:
    decode = DECODERS[name]
    if name == "npy" and arrays == "torch":
        return lambda content: torch.from_numpy(np.array(decode(content)))
    return decode if name != "npy" or not is_writable else lambda content: decode(content).copy()


_PARSERS: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}


class XSVReader(SplitReader):
    """An open shard of separated values. The first line has the columns' names. Quotes have no special meaning."""

    def __init__(self, directory: Path, entry: ShardEntry, register: MapRegister | None = None) -> None:
        self._separator = entry.separator
        super().__init__(directory, entry, register)
        self._parsers = [(column.name, _PARSERS[column.encoding]) for column in entry.columns]

    def _header(self, entry: ShardEntry) -> bytes:
        return (entry.separator.join(column.name for column in entry.columns) + entry.newline).encode()

    def _parsed(self, line: bytes) -> dict[str, Any]:
        values = line.decode().split(self._separator)
        if len(values) != len(self._parsers):
            raise EncodingError(f"{len(values)} values for {len(self._parsers)} columns")
        return {name: parse(value) for (name, parse), value in zip(self._parsers, values, strict=True)}
