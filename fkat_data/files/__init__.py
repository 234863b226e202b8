"""What a file holds: one description, one opener and one reader of rows for each format, for datasets and streams alike.

``formats`` has the table of formats and opens a shard by it; ``shard`` is what an index says of one and what an open one
can do; then one module a format. Bytes come from ``opening`` (a path or a URI) or ``mapping`` (a file of this machine).
Readers trust no file: what contradicts itself or its index is an error that names file, place, expected and found.
``arrow`` and ``parquet`` need pyarrow, and are not imported with the package: ``open_shard`` imports them.
"""

from fkat_data.files.encoding import SCALAR_DTYPES, EncodingError
from fkat_data.files.encodings import ENCODINGS, encoding_of
from fkat_data.files.formats import open_shard
from fkat_data.files.index import parse_index, read_index
from fkat_data.files.lines import LineIndex
from fkat_data.files.mapping import mapped, mapped_span, num_maps
from fkat_data.files.opening import FileVersion, RangedFile
from fkat_data.files.shard import Column, FileInfo, Origin, ShardEntry
from fkat_data.files.stored import (
    COMPRESSIONS,
    FAMILIES,
    HASHES,
    compress,
    decompress_file,
    extension_of,
    hash_of,
    is_same_place,
    validate_file,
)
from fkat_data.files.tar import DECODERS, UNSAFE, TarIndex, checked_decode, decoder_names
from fkat_data.files.tar_headers import members_of

__all__ = [
    "COMPRESSIONS",
    "DECODERS",
    "ENCODINGS",
    "FAMILIES",
    "HASHES",
    "SCALAR_DTYPES",
    "UNSAFE",
    "Column",
    "EncodingError",
    "FileInfo",
    "FileVersion",
    "LineIndex",
    "Origin",
    "RangedFile",
    "ShardEntry",
    "TarIndex",
    "checked_decode",
    "compress",
    "decoder_names",
    "decompress_file",
    "encoding_of",
    "extension_of",
    "hash_of",
    "is_same_place",
    "mapped",
    "mapped_span",
    "members_of",
    "num_maps",
    "open_shard",
    "parse_index",
    "read_index",
    "validate_file",
]
