"""What users ask of the shards that a dataset keeps on this node."""

from typing import Any, Protocol

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.reading.catalog import Catalog

__all__ = ["CacheControl"]


class CacheControl(Protocol):
    """Fetches and evicts shards by their numbers. Data that are read where they are stay where they are."""

    catalog: Catalog

    def __getitem__(self, index: Any) -> Any:
        """Return a sample by its number."""
        ...

    @property
    def cache_usage(self) -> int:
        """Bytes that the streams' directories on this node take, counted now; 0 if all data are read where they are."""
        return 0 if self.catalog.room is None else self.catalog.room.usage_bytes

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """Return a sample by its number, fetched if need be.

        Args:
            sample_id: From ``-num_samples`` to ``num_samples - 1``.
            retry: Accepted for the callers of other libraries: how often a download is tried is ``download_retry``.

        Raises:
            IndexError: There is no such sample.
            Exception: Why the shard could not be fetched.
        """
        arguments.integer("retry", retry, minimum=0)
        return self[arguments.integer("sample_id", sample_id)]

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard if it is not there.

        Args:
            shard_id: Its number.
            blocking: Whether to wait if another process is fetching it.

        Raises:
            ConfigurationError: There is no such shard, or it does not fit the cache.
            Exception: Why it could not be fetched.
        """
        shard = self._shard("shard_id", shard_id)
        self.catalog.source_of(shard).fetch(self.catalog.entries[shard], wait=arguments.boolean("blocking", blocking))

    def evict_shard(self, shard_id: int) -> int:
        """Remove a shard from this node if it can be fetched again; return how many bytes its files had.

        Whoever reads it, in any process, reads on.

        Args:
            shard_id: Its number.

        Raises:
            ConfigurationError: There is no such shard.
            OSError: A file cannot be removed.
        """
        shard = self._shard("shard_id", shard_id)
        return self.catalog.source_of(shard).evict(self.catalog.entries[shard])

    def evict_coldest_shard(self) -> int:
        """Remove the file that was not used for the longest time; return how many bytes it had, 0 if there is none.

        Raises:
            OSError: It cannot be removed.
        """
        return 0 if self.catalog.room is None else self.catalog.room.evict_coldest()

    def _shard(self, argument: str, shard: object) -> int:
        number = arguments.integer(argument, shard, minimum=0)
        if number >= len(self.catalog.entries):
            raise ConfigurationError(argument, number, f"one of the {len(self.catalog.entries)} shards")
        return number
