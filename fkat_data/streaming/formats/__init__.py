"""The formats of datasets on disk: index, shards, encodings, compression and hashes. Readers trust no file."""

from fkat_data.streaming.formats.compression import decompress_file
from fkat_data.streaming.formats.entry import FileInfo, ShardEntry
from fkat_data.streaming.formats.hashing import validate_file
from fkat_data.streaming.formats.index import read_index
from fkat_data.streaming.formats.open_shard import open_shard
from fkat_data.streaming.formats.reader import ShardReader
from fkat_data.streaming.formats.unpacking import unpacked

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
