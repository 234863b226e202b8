"""Split the shards over data-parallel ranks, in contiguous blocks of nearly equal size."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, cast

from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import boolean, integer
from fkat_data.samplers.base import ShardSampler
from fkat_data.samplers.sequence import as_shard_sampler, merge_uris
from fkat_data.types import Shard, num_listed_of

_logger = logging.getLogger(__name__)


class DistributedDataParallelShardSampler(ShardSampler):
    """One data-parallel rank's contiguous block of another sampler's shards.

    The blocks of all ranks, one after another, are the whole epoch except what ``drop_last`` drops.

    Args:
        sampler: A shard sampler, or any finite iterable of shards; the same on every rank.
        dp_size: Number of data-parallel ranks.
        dp_rank: Index of this rank, from 0 to ``dp_size - 1``.
        drop_last: If true, every rank gets the same number of shards and the remainder is dropped. If false, the
            first ranks get one shard more; use this to evaluate on every shard.
        num_uri_merge: Number of this rank's URIs to merge into one shard; -1: all; 0: no merging.

    Raises:
        ConfigurationError: An argument is invalid, or the first epoch has fewer shards than ranks.
    """

    def __init__(
        self, sampler: Iterable[Shard], dp_size: int, dp_rank: int, drop_last: bool = True, num_uri_merge: int = 0
    ) -> None:
        self._sampler = as_shard_sampler("sampler", sampler)
        self._dp_size = integer("dp_size", dp_size, minimum=1)
        self._dp_rank = integer("dp_rank", dp_rank, minimum=0, maximum=self._dp_size - 1)
        self._drop_last = boolean("drop_last", drop_last)
        self._num_uri_merge = integer("num_uri_merge", num_uri_merge, minimum=-1)

        shards = self._sampler.shards(0)
        # Split now, so that too few shards fail here, before training starts.
        self._last: tuple[int, Sequence[Shard]] = (0, self._part(0, shards))
        rest = len(shards) % self._dp_size
        if self._drop_last and rest:
            _logger.warning(
                "dropping %d of %d shards in each epoch, so that all %d ranks get the same number "
                "(pass drop_last=False to keep them)",
                rest,
                len(shards),
                self._dp_size,
            )

    @property
    def sampler(self) -> ShardSampler:
        """Sampler whose shards are split."""
        return self._sampler

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks."""
        return self._dp_size

    @property
    def dp_rank(self) -> int:
        """Index of this rank."""
        return self._dp_rank

    @property
    def drop_last(self) -> bool:
        """Whether every rank gets the same number of shards."""
        return self._drop_last

    @property
    def num_uri_merge(self) -> int:
        """Number of URIs to merge into one shard; -1: all; 0: no merging."""
        return self._num_uri_merge

    def for_rank(self, dp_size: int, dp_rank: int) -> Self:
        """Return this sampler for rank ``dp_rank`` of ``dp_size``, at the start of epoch 0.

        Raises:
            ConfigurationError: The rank does not exist. ``shards`` raises if there are too few shards.
        """
        dp_size = integer("dp_size", dp_size, minimum=1)
        dp_rank = integer("dp_rank", dp_rank, minimum=0, maximum=dp_size - 1)
        # Splits no epoch yet: loading a state needs one epoch of many ranks.
        return self._with(_dp_size=dp_size, _dp_rank=dp_rank, _last=(-1, ()))

    @property
    def num_listed(self) -> int | None:
        """Shards of the inner sampler's list; None if it does not say."""
        return num_listed_of(self._sampler)

    def first(self, num_listed: int) -> Self:
        """Return this sampler over the first shards of the list alone, at the start of epoch 0."""
        return self._with(_sampler=cast("Any", self._sampler).first(num_listed), _last=(-1, ()))

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return this rank's shards of an epoch.

        Raises:
            ConfigurationError: The epoch has fewer shards than there are ranks.
        """
        last = self._last
        if last[0] != epoch:
            last = self._last = (epoch, self._part(epoch, self._sampler.shards(epoch)))
        return last[1]

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "sampler", self._sampler
        yield "dp_size", self._dp_size
        yield "dp_rank", self._dp_rank
        yield from super()._repr_facts()

    def _part(self, epoch: int, shards: Sequence[Shard]) -> Sequence[Shard]:
        each, rest = divmod(len(shards), self._dp_size)
        if each == 0:
            raise ConfigurationError(
                "dp_size", self._dp_size, f"at most {len(shards)}, the number of shards in epoch {epoch}"
            )
        if self._drop_last:
            rest = 0
        start = self._dp_rank * each + min(self._dp_rank, rest)
        block = shards[start : start + each + (self._dp_rank < rest)]
        return merge_uris(block, self._num_uri_merge)


def sampler_of_rank(sampler: Iterable[Shard], dp_size: int, dp_rank: int) -> Iterable[Shard]:
    """Return a sampler of one data-parallel rank's shards, from one of all ranks' or one that is of this rank already.

    An iterable of unknown length, and a sampler with a state of its own, are of this rank already.

    Raises:
        ConfigurationError: It is of another rank.
    """
    known = getattr(sampler, "dp_size", None)
    if known is not None:
        found, expected = (known, getattr(sampler, "dp_rank", dp_rank)), (dp_size, dp_rank)
        if found != expected:
            raise ConfigurationError("shard_sampler", sampler, f"one of data-parallel rank {dp_rank} of {dp_size}")
        return sampler
    if dp_size == 1 or not isinstance(sampler, (ShardSampler, Sequence)) or isinstance(sampler, str):
        return sampler
    return DistributedDataParallelShardSampler(sampler, dp_size, dp_rank)
