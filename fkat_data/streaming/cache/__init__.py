"""A node's copies of shards, shared by its processes and jobs. The directory is the only state."""

from fkat_data.streaming.cache.cache import Cache
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.dataset_version import DatasetVersion

__all__ = ["Cache", "CacheBudget", "DatasetVersion"]
