"""A directory of shards that any number of processes and jobs of a node share, without a leader."""

from fkat_data.streaming.cache.cache import Cache
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.dataset_version import DatasetVersion

__all__ = ["Cache", "CacheBudget", "DatasetVersion"]
