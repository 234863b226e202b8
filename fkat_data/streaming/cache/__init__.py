"""A node's copies of shards, shared by its processes and jobs. The directory is the only state.

A ``Cache`` makes each file once for all, in a directory that is safe to use (``cache_directory``); a ``CacheBudget``
evicts the coldest files before a new one is made; what they take, when each was used and which are mapped is in
``records``, under locks that the kernel releases (``locks``). ``DatasetVersion`` says whose files they are. Begin with
``Cache.get``.
"""

from fkat_data.streaming.cache.cache import Cache
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.dataset_version import DatasetVersion
from fkat_data.streaming.cache.locks import LONGEST_PAUSE_S
from fkat_data.streaming.cache.paths import file_system_of, is_node_local
from fkat_data.streaming.cache.records import register_map_owner

__all__ = [
    "LONGEST_PAUSE_S",
    "Cache",
    "CacheBudget",
    "DatasetVersion",
    "file_system_of",
    "is_node_local",
    "register_map_owner",
]
