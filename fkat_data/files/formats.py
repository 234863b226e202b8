"""One table of the formats: what names their files, and what describes and opens them.

The module of a format of files that have no index has two functions. ``describe(file)`` returns what the index keeps of a
``StoredBytes``, as plain JSON values; it is called in threads, once for each version, and raises ``ShardCorruptError`` if
the file is not of this format or contradicts itself. ``entries_of(files, columns, windowing, is_in_place=...)`` returns the
shards of all described files, in their order, and checks that their columns agree. ``columns`` None: all; ``windowing`` is
how tokens become samples, None for other formats.
"""

import importlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.files.encodings import encoding_of
from fkat_data.files.lru_cache import RowGroupCache
from fkat_data.files.shard import MapRegister, ReadOptions, ShardEntry, ShardReader
from fkat_data.files.tar import UNSAFE


class Format(NamedTuple):
    """A format of files.

    Attributes:
        reader: The module and the class that open its shards; "": ``convert`` alone reads such files.
        suffixes: What the names of its files end with, in lower case; none: an index names them.
        is_listed: Whether a stream reads its files without an index: the reader's module describes them.
        refused: These name files of the format, too, which are refused when they are described, with a message that
            says why.
        indices: These name files that stand beside those with a suffix, and say something of them.
    """

    reader: str = ""
    suffixes: tuple[str, ...] = ()
    is_listed: bool = False
    refused: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()


_SEPARATED = "lines.XSVReader"
#: Readers are imported when a shard is opened: pyarrow takes time, and other formats do not need it.
FORMATS = {
    "mds": Format("mds.MDSReader"),
    "json": Format("lines.JSONReader"),
    "xsv": Format(_SEPARATED),
    "jsonl": Format("", (".jsonl", ".ndjson", ".json")),
    "csv": Format(_SEPARATED, (".csv",)),
    "tsv": Format(_SEPARATED, (".tsv",)),
    "parquet": Format("parquet.ParquetReader", (".parquet", ".parq", ".pq"), is_listed=True),
    "arrow": Format("", (".arrow",)),
    "tokens": Format("token_shards.TokenReader", (".npy", ".bin", ".ds"), True, indices=(".idx", ".ds.index")),
    "tar": Format("tar.TarReader", (".tar",), True, (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")),
}
#: For messages: the suffixes of the files that a stream reads without an index.
LISTED_SUFFIXES = ", ".join(suffix for kind in FORMATS.values() if kind.is_listed for suffix in kind.suffixes)
#: What the decoded row groups of a process may take, unless the caller says otherwise.
DECODED_LIMIT_BYTES = 512 << 20


def module_of(name: str) -> Any:
    """Return the module that has the reader of a format; of one that needs no index, it describes the files, too.

    Raises:
        ConfigurationError: Its package is missing.
    """
    return importlib.import_module(f"fkat_data.files.{FORMATS[name].reader.partition('.')[0]}")


def listed_format(file: str) -> str | None:
    """Return the format of a file that needs no index, by the suffix of its name; None if it has none of the suffixes."""
    lowered = file.lower()
    return next(
        (
            name
            for name, kind in FORMATS.items()
            if kind.is_listed and lowered.endswith(kind.suffixes + kind.refused + kind.indices)
        ),
        None,
    )


def open_shard(
    directory: Path,
    entry: ShardEntry,
    *,
    allow_unsafe_types: bool = False,
    arrays: Literal["numpy", "torch"] = "numpy",
    writable: bool = False,
    decoded: RowGroupCache | None = None,
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
    row_groups = RowGroupCache(DECODED_LIMIT_BYTES) if decoded is None else decoded
    reader = getattr(module_of(entry.format), FORMATS[entry.format].reader.partition(".")[2])
    return reader(directory, entry, ReadOptions(row_groups, arrays, writable, is_copied, register))


def check_safe(entry: ShardEntry) -> None:
    """Check that decoding a shard's columns runs no code of the file's author.

    Raises:
        ConfigurationError: A column holds pickles.
    """
    for column in entry.columns:
        is_unsafe = entry.format == "tar" and column.encoding in UNSAFE
        if is_unsafe or (entry.format == "mds" and not encoding_of(column.encoding).is_safe):
            raise ConfigurationError(
                "allow_unsafe_types",
                False,
                f"True, if you trust the file's author: column {column.name!r} of {entry.name} holds pickles, "
                "and loading them runs code from the file",
            )
