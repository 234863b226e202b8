"""Opening a shard's uncompressed files."""

import importlib
from pathlib import Path
from typing import Any, Literal

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.formats.decoded_groups import DecodedGroups
from fkat_data.streaming.formats.entry import ShardEntry
from fkat_data.streaming.formats.jsonl import JSONReader
from fkat_data.streaming.formats.mapping import MapRegister
from fkat_data.streaming.formats.mds import MDSReader
from fkat_data.streaming.formats.reader import ShardReader
from fkat_data.streaming.formats.tar_shard import TarReader
from fkat_data.streaming.formats.xsv import XSVReader

__all__ = ["DECODED_LIMIT_BYTES", "check_safe", "open_shard"]

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
