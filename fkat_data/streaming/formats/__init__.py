"""The formats of datasets on disk: index, shards, encodings, compression and hashes. Readers trust no file."""

from fkat_data.files.formats import open_shard
from fkat_data.files.index import read_index
from fkat_data.files.shard import FileInfo, ShardEntry, ShardReader
from fkat_data.files.stored import decompress_file, validate_file
from fkat_data.files.verification import unpacked

__all__ = [
    "FileInfo",
    "ShardEntry",
    "ShardReader",
    "decompress_file",
    "open_shard",
    "read_index",
    "unpacked",
    "validate_file",
]
