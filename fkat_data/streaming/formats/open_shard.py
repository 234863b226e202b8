"""Opening a shard whose files are there, uncompressed."""

from pathlib import Path
from typing import Literal

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.formats.entry import ShardEntry
from fkat_data.streaming.formats.jsonl import JSONReader
from fkat_data.streaming.formats.mds import MDSReader
from fkat_data.streaming.formats.reader import ShardReader
from fkat_data.streaming.formats.xsv import XSVReader

__all__ = ["check_safe", "open_shard"]


def open_shard(
    directory: Path,
    entry: ShardEntry,
    *,
    allow_unsafe_types: bool = False,
    arrays: Literal["numpy", "torch"] = "numpy",
    writable: bool = False,
) -> ShardReader:
    """Open a shard's raw files; ``decompress_file`` makes them from compressed ones.

    Sizes and offsets are checked here, so that reading cannot leave the file. Hashes are not: see ``validate_file``.

    Args:
        directory: The dataset's directory, where its index is.
        entry: The shard.
        allow_unsafe_types: Whether columns of pickles may be read, which runs code of the file's author.
        arrays: Whether ``ndarray`` columns give NumPy arrays or torch tensors.
        writable: Whether NumPy arrays belong to the caller; otherwise they are read-only, and views of the file where
            one sample is read. Tensors always belong to the caller.

    Raises:
        ConfigurationError: The shard has a column of pickles, and they are not allowed.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file's size, or what it says of itself, is not what the index says.
        OSError: A file cannot be read.
    """
    arguments.choice("arrays", arrays, ("numpy", "torch"))
    if not allow_unsafe_types:
        check_safe(entry)
    if entry.format == "mds":
        return MDSReader(directory, entry, arrays=arrays, writable=writable)
    return JSONReader(directory, entry) if entry.format == "json" else XSVReader(directory, entry)


def check_safe(entry: ShardEntry) -> None:
    """Return if no column of a shard runs code of the file's author when it is read.

    Raises:
        ConfigurationError: One does.
    """
    unsafe = entry.unsafe_columns
    if unsafe:
        raise ConfigurationError(
            "allow_unsafe_types",
            False,
            f"True, if you trust who wrote it: column {unsafe[0]!r} of {entry.raw_data.basename} holds pickles, and "
            "reading them runs code from the file",
        )
