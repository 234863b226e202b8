"""A node's copies of shards, shared by its processes and jobs. The directory is the only state.

A ``Cache`` makes each file once for all, in a directory that is safe to use (``cache_directory``); a ``CacheBudget``
evicts the coldest files before a new one is made. The directory records when each file was used (``access_times``), the
bytes that all take (``usage_ledger``) and which are mapped (``mapped_files``), under locks that the kernel releases
(``locks``). ``DatasetVersion`` says whose files they are. Begin with ``Cache.get``.
"""

from fkat_data.streaming.cache.cache import Cache
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.dataset_version import DatasetVersion
from fkat_data.streaming.cache.mapped_files import register_map_owner
from fkat_data.streaming.cache.paths import file_system_of, is_node_local

__all__ = [
    "Cache",
    "CacheBudget",
    "DatasetVersion",
    "file_system_of",
    "is_node_local",
    "register_map_owner",
]
