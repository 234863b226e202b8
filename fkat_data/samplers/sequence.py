"""Samplers over a fixed list of shards."""

from collections.abc import Iterable, Sequence
from itertools import chain

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError
from fkat_data.samplers.base import ShardSampler, check_shards
from fkat_data.types import Shard

__all__ = ["SequenceShardSampler", "as_shard_sampler", "merge_uris"]


class SequenceShardSampler(ShardSampler):
    """The given shards in the given order, in every epoch.

    Args:
        shards: Any finite, ordered iterable of shards; read once.

    Raises:
        ConfigurationError: ``shards`` is empty, or an item is not a shard.
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = tuple(check_shards("shards", shards))

    def shards(self, epoch: int) -> Sequence[Shard]:  # noqa: ARG002  the same in each epoch
        """Return the given shards."""
        return self._shards


def as_shard_sampler(argument: str, sampler: object) -> ShardSampler:
    """Return a sampler with an order for every epoch.

    A sampler that implements ``shards`` is returned unchanged. Any other iterable is read once, and every epoch has
    that order. A sampler that shuffles while it is iterated must implement ``shards(epoch)`` instead.

    Args:
        argument: Name of the argument that holds the sampler, for error messages.
        sampler: A shard sampler, or any finite, ordered iterable of shards.

    Raises:
        ConfigurationError: ``sampler`` is neither.
    """
    if isinstance(sampler, ShardSampler):
        kind = type(sampler)
        if kind.shards is not ShardSampler.shards and callable(sampler.shards):
            return sampler
        if kind.__iter__ is ShardSampler.__iter__:
            raise ConfigurationError(argument, sampler, "a sampler with a method shards(epoch) -> Sequence[Shard]")
    return SequenceShardSampler(check_shards(argument, sampler))


def merge_uris(shards: Sequence[Shard], num_uri_merge: int) -> Sequence[Shard]:
    """Return shards of ``num_uri_merge`` consecutive URIs each; the last one may be shorter.

    Groups among ``shards`` are flattened first. The URIs keep their order.

    >>> merge_uris(["a", ["b", "c"]], 2)
    [['a', 'b'], ['c']]

    Args:
        shards: The shards to merge.
        num_uri_merge: URIs per shard; -1: all in one shard; 0: return ``shards`` unchanged.

    Raises:
        ConfigurationError: ``num_uri_merge`` is not an integer of at least -1.
    """
    num_uri_merge = integer("num_uri_merge", num_uri_merge, minimum=-1)
    if num_uri_merge == 0:
        return shards
    uris = list(chain.from_iterable([shard] if isinstance(shard, str) else shard for shard in shards))
    step = len(uris) if num_uri_merge == -1 else num_uri_merge
    return [uris[start : start + step] for start in range(0, len(uris), step)]
