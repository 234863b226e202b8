"""A rank's part of the shards: contiguous blocks, as even as can be."""

import logging
from collections.abc import Iterable, Sequence
from typing import Self

from fkat_data.arguments import boolean, integer
from fkat_data.errors import ConfigurationError
from fkat_data.samplers.base import ShardSampler
from fkat_data.samplers.sequence import as_shard_sampler, merge_uris
from fkat_data.types import Shard

__all__ = ["DistributedDataParallelShardSampler"]

_logger = logging.getLogger(__name__)


class DistributedDataParallelShardSampler(ShardSampler):
    """The shards of one data-parallel rank: a contiguous block of another sampler's.

    Over all ranks the blocks are the epoch in its order, less what ``drop_last`` drops.

    Args:
        sampler: A shard sampler, or any finite iterable of shards; the same on every rank.
        dp_size: Number of data-parallel ranks.
        dp_rank: This rank, from 0 to ``dp_size - 1``.
        drop_last: Whether every rank gets equally many shards and the rest at the end is dropped; else the first
            ranks get one shard more. Use false to evaluate: every shard is then seen.
        num_uri_merge: URIs that are joined into one shard, out of this rank's own; -1 for all; 0 for none.

    Raises:
        ConfigurationError: An argument is none of these, or the first epoch has fewer shards than ranks.
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
        # Now: too few shards are an error here and not when training starts.
        self._last: tuple[int, Sequence[Shard]] = (0, self._part(0, shards))
        rest = len(shards) % self._dp_size
        if self._drop_last and rest:
            _logger.warning(
                "%d of %d shards are dropped in each epoch, so that %d ranks get equally many "
                "(drop_last=False keeps them)",
                rest,
                len(shards),
                self._dp_size,
            )

    @property
    def sampler(self) -> ShardSampler:
        """The sampler whose shards are divided."""
        return self._sampler

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks."""
        return self._dp_size

    @property
    def dp_rank(self) -> int:
        """The rank whose shards these are."""
        return self._dp_rank

    @property
    def drop_last(self) -> bool:
        """Whether every rank gets equally many shards."""
        return self._drop_last

    @property
    def num_uri_merge(self) -> int:
        """URIs that are joined into one shard; -1 for all; 0 for none."""
        return self._num_uri_merge

    def for_rank(self, dp_size: int, dp_rank: int) -> Self:
        """Return this sampler as a rank of another number of ranks has it, at the start of epoch 0.

        Raises:
            ConfigurationError: There is no such rank. Too few shards are an error of ``shards``.
        """
        dp_size = integer("dp_size", dp_size, minimum=1)
        dp_rank = integer("dp_rank", dp_rank, minimum=0, maximum=dp_size - 1)
        # No epoch is asked for yet: to load a state, one epoch is needed of many ranks.
        return self._with(_dp_size=dp_size, _dp_rank=dp_rank, _last=(-1, ()))

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return this rank's shards of an epoch.

        Raises:
            ConfigurationError: The epoch has fewer shards than there are ranks.
        """
        last = self._last
        if last[0] != epoch:
            last = self._last = (epoch, self._part(epoch, self._sampler.shards(epoch)))
        return last[1]

    def _part(self, epoch: int, shards: Sequence[Shard]) -> Sequence[Shard]:
        each, rest = divmod(len(shards), self._dp_size)
        if each == 0:
            raise ConfigurationError(
                "dp_size", self._dp_size, f"at most as many ranks as epoch {epoch} has shards: {len(shards)}"
            )
        if self._drop_last:
            rest = 0
        start = self._dp_rank * each + min(self._dp_rank, rest)
        block = shards[start : start + each + (self._dp_rank < rest)]
        return merge_uris(block, self._num_uri_merge)
