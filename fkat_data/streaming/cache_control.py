"""Control the shards that a dataset caches on this node."""

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.reading.catalog import Catalog

__all__ = ["CacheControl"]


class CacheControl:
    """Fetches and evicts shards by their numbers. Data that are read in place stay in place.

    Args:
        catalog: The shards.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    @property
    def cache_usage(self) -> int:
        """Bytes that the streams' directories on this node take, counted now; 0 if all data are read in place."""
        return 0 if self.catalog.cache_budget is None else self.catalog.cache_budget.usage_bytes

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard unless it is cached.

        Args:
            shard_id: The number of the shard.
            blocking: Whether to wait if another process is fetching it.

        Raises:
            ConfigurationError: The shard does not exist, or does not fit the cache.
            Exception: Why the shard could not be fetched.
        """
        shard = self._shard("shard_id", shard_id)
        self.catalog.source_of(shard).fetch(self.catalog.entries[shard], wait=arguments.boolean("blocking", blocking))

    def evict_shard(self, shard_id: int) -> int:
        """Remove a shard from this node if it can be fetched again; return the size of its files in bytes.

        Processes that have it open continue to read it.

        Args:
            shard_id: The number of the shard.

        Raises:
            ConfigurationError: The shard does not exist.
            OSError: A file cannot be removed.
        """
        shard = self._shard("shard_id", shard_id)
        return self.catalog.source_of(shard).evict(self.catalog.entries[shard])

    def evict_coldest_shard(self) -> int:
        """Remove the least recently used file; return its size in bytes, 0 if there is none.

        Raises:
            OSError: The file cannot be removed.
        """
        return 0 if self.catalog.cache_budget is None else self.catalog.cache_budget.evict_coldest()

    def _shard(self, argument: str, shard: object) -> int:
        number = arguments.integer(argument, shard, minimum=0)
        if number >= len(self.catalog.entries):
            raise ConfigurationError(argument, number, f"one of the {len(self.catalog.entries)} shards")
        return number
