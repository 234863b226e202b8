"""Access to the samples of streams by their numbers.

A ``Stream`` says where shards are (``file_pattern``, ``pinned_commits``). Its source (``shard_source``) reads them in
place, or through a cache of what it fetches (``cached_source``) or decompresses (``decompressed_source``). A ``Catalog``
numbers the shards of all streams; ``OpenShards`` opens them and reads their rows, while ``ReadAhead`` prepares those that
follow. Begin with ``OpenShards``.
"""

from fkat_data.streaming.reading.catalog import Catalog, sources_of
from fkat_data.streaming.reading.file_pattern import NO_DATASET, FilePattern, no_stream, split_location
from fkat_data.streaming.reading.open_shards import OpenShards
from fkat_data.streaming.reading.stream import Stream

__all__ = [
    "NO_DATASET",
    "Catalog",
    "FilePattern",
    "OpenShards",
    "Stream",
    "no_stream",
    "sources_of",
    "split_location",
]
