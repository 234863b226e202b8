"""How many microbatches shards have: what was said of them before, and what was found at their ends."""

import logging

from fkat_data.types import Shard

_logger = logging.getLogger(__name__)
_MOST_REMEMBERED = 1_000_000


class ShardLengths:
    """Remembers the lengths of shards by the ``repr`` of the shard, and compares what was said with what was found.

    Args:
        source: What says the lengths, in words.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self.stated: dict[str, int] = {}
        """What was said of shards; what was found, of those that were read to their end since."""
        self.found: dict[str, int] = {}
        """What was found of shards that were read, or skipped where they failed; of a million at most."""
        self._whole: set[str] = set()

    def state(self, name: str, num_microbatches: int) -> None:
        """Remember what is said of a shard."""
        self.stated[name] = num_microbatches
        if name in self._whole:
            self._compare(name, self.found[name])

    def end(self, shard: Shard, num_microbatches: int, *, is_whole: bool) -> None:
        """Remember what was found of a shard; warn if something else was said of it.

        Args:
            shard: The shard.
            num_microbatches: Its microbatches.
            is_whole: Whether it was read to its end; False: it failed there.
        """
        name = repr(shard)
        # An endless sampler's shards may have other names in each epoch.
        if len(self.found) >= _MOST_REMEMBERED and name not in self.found:
            self.found.clear()
            self._whole.clear()
        self.found[name] = num_microbatches
        if is_whole:
            self._whole.add(name)
            self._compare(name, num_microbatches)
        else:
            self._whole.discard(name)

    def _compare(self, name: str, found: int) -> None:
        stated = self.stated.get(name)
        if stated is not None and stated != found:
            self.stated[name] = found
            _logger.warning(
                "shard %s has %d microbatches, and %s says %d: len(loader) was wrong, and counts what was found from now on",
                name,
                found,
                self._source,
                stated,
            )
