"""The plan of a sampler that can be asked for other ranks' shards: an epoch goes on when their number changes."""

import hashlib
from collections.abc import Sequence
from typing import Any

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.plan.elastic import Layer, Piece, deal, first_step
from fkat_data.plan.shard_plan import PureShardPlan, ShardPlan, shard_plan
from fkat_data.samplers.base import ShardSampler
from fkat_data.types import ResplittableSampler, Shard

__all__ = ["ElasticShardPlan", "elastic_shard_plan"]


def elastic_shard_plan(sampler: Any) -> ShardPlan:
    """Return the plan of a sampler: one that can be split anew where the sampler can.

    Raises:
        ConfigurationError: It is no iterable of shards, or a pure one without shards.
    """
    plan = shard_plan(sampler)
    is_elastic = isinstance(plan, PureShardPlan) and isinstance(sampler, ShardSampler)
    if is_elastic and isinstance(sampler, ResplittableSampler) and sampler.dp_size is not None:
        return ElasticShardPlan(sampler, plan, sampler.dp_size)
    return plan


class ElasticShardPlan(ShardPlan):
    """A rank's plan, where the shards are split over ranks whose number may change within an epoch.

    Args:
        sampler: Gives this rank's shards, and other ranks'.
        plan: The plan of the sampler as it is.
        dp_size: Data-parallel ranks that it splits over.
        dp_rank: The rank whose plan this is: it matters once there are layers.
        layers: Re-splits that came before.
    """

    def __init__(
        self,
        sampler: ResplittableSampler,
        plan: ShardPlan,
        dp_size: int,
        dp_rank: int = 0,
        layers: tuple[Layer, ...] = (),
    ) -> None:
        self._sampler = sampler
        self.dp_size = dp_size
        self._dp_rank = dp_rank
        self.layers = layers
        self._own = plan
        self._epoch = -1
        self._pieces: Sequence[Piece] | None = None
        self._begun: dict[int, PureShardPlan] = {}
        self._digest = ""

    def for_rank(self, dp_size: int, dp_rank: int, epoch: int, layers: tuple[Layer, ...] = ()) -> "ElasticShardPlan":
        """Return the plan that another rank of another number of ranks has after some re-splits.

        Raises:
            StateMismatchError: In this epoch there are not enough shards for so many ranks.
        """
        sampler, own = self._of_rank(dp_size, dp_rank, epoch)
        return ElasticShardPlan(sampler, own, dp_size, dp_rank, layers)

    @property
    def own(self) -> ShardPlan:
        """The plan of this rank's sampler as it is, for epochs that are not split anew."""
        return self._own

    def adopt(self, dp_rank: int, layers: tuple[Layer, ...]) -> None:
        """Be the plan of a rank after some re-splits from now on."""
        self._dp_rank, self.layers = dp_rank, layers
        self._epoch = -1

    def shard(self, epoch: int, index: int) -> Shard | None:
        """Return the shard at a place, or None past the epoch's end."""
        piece = self.piece(epoch, index)
        if self._pieces is None:
            return self._own.shard(epoch, index)
        return None if piece is None else self._begun[piece.dp_rank].shard(epoch, piece.shard_index)

    def piece(self, epoch: int, index: int) -> Piece | None:
        """Return what stands at a place of an epoch that was split anew; None elsewhere."""
        self._go_to(epoch)
        return self._pieces[index] if self._pieces is not None and index < len(self._pieces) else None

    def num_shards(self, epoch: int) -> int | None:
        """Return the number of shards in an epoch; it may be 0 in one that was split anew."""
        self._go_to(epoch)
        return self._own.num_shards(epoch) if self._pieces is None else len(self._pieces)

    def first_step(self, epoch: int) -> int:
        """Return the microbatches that count as delivered when this rank's part of an epoch begins."""
        return first_step(epoch, self.layers)

    def digest(self, epoch: int) -> str | None:
        """Return 16 hexadecimal digits that name the epoch's order, and where its pieces come from."""
        self._go_to(epoch)
        if self._pieces is None:
            return self._own.digest(epoch)
        if not self._digest:
            digest = hashlib.blake2b(digest_size=8, person=b"fkat_data pieces")
            for piece in self._pieces:
                shard = self._begun[piece.dp_rank].shard(epoch, piece.shard_index)
                digest.update(repr((tuple(piece), shard)).encode())
            self._digest = digest.hexdigest()
        return self._digest

    def _go_to(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        begun: dict[int, PureShardPlan] = {}

        def num_shards(dp_size: int, dp_rank: int) -> int:
            begun[dp_rank] = self._of_rank(dp_size, dp_rank, epoch)[1]
            return begun[dp_rank].num_shards(epoch) or 0

        dealt = deal(epoch, self.layers, self.dp_size, num_shards)
        self._pieces = None if dealt is None else dealt.pieces[self._dp_rank]
        self._begun = {} if self._pieces is None else {piece.dp_rank: begun[piece.dp_rank] for piece in self._pieces}
        self._epoch, self._digest = epoch, ""

    def _of_rank(self, dp_size: int, dp_rank: int, epoch: int) -> tuple[ResplittableSampler, PureShardPlan]:
        try:
            sampler = self._sampler.for_rank(dp_size, dp_rank)
            return sampler, PureShardPlan(sampler.shards, epoch)
        except ConfigurationError as error:
            raise StateMismatchError("dp_size", dp_size, self.dp_size, f"the shards have changed: {error}") from error
