"""The plan of a sampler that knows every rank's shards: an epoch continues when the number of ranks changes."""

import hashlib
from collections.abc import Sequence
from typing import Any

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.plan.place import Layer, Piece, Place, deal, first_step
from fkat_data.plan.shard_plan import PureShardPlan, ShardPlan, shard_plan
from fkat_data.samplers.base import ShardSampler, shard_identity
from fkat_data.types import ResplittableSampler, Shard


def elastic_shard_plan(sampler: Any) -> ShardPlan:
    """Return the plan of a sampler: an elastic one if the sampler can split its shards over any number of ranks.

    A plan stays what it is.

    Raises:
        ConfigurationError: The sampler is not an iterable of shards, or its first epoch is empty.
    """
    if isinstance(sampler, ShardPlan):
        return sampler
    plan = shard_plan(sampler)
    is_elastic = isinstance(plan, PureShardPlan) and isinstance(sampler, ShardSampler)
    if is_elastic and isinstance(sampler, ResplittableSampler) and sampler.dp_size is not None:
        return ElasticShardPlan(sampler, plan, sampler.dp_size)
    return plan


class ElasticShardPlan(ShardPlan):
    """A rank's plan when the number of ranks may change within an epoch.

    Args:
        sampler: Returns the shards of this rank and of any other.
        plan: Plan of the sampler for epochs that were not re-split.
        dp_size: Number of data-parallel ranks that the sampler splits its shards over.
        dp_rank: Rank whose plan this is; unused as long as there are no layers.
        layers: Earlier re-splits.
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
        self.layers: tuple[Layer, ...] = layers
        self._own = plan
        self._epoch = -1
        self._pieces: Sequence[Piece] | None = None
        self._begun: dict[int, PureShardPlan] = {}
        self._digest = ""

    def for_rank(self, dp_size: int, dp_rank: int, epoch: int, layers: tuple[Layer, ...] = ()) -> "ElasticShardPlan":
        """Return the plan of rank ``dp_rank`` of ``dp_size`` after some re-splits.

        Raises:
            StateMismatchError: The epoch has fewer shards than ranks.
        """
        sampler, own = self._of_rank(dp_size, dp_rank, epoch)
        return ElasticShardPlan(sampler, own, dp_size, dp_rank, layers)

    @property
    def own(self) -> ShardPlan:
        """Plan of this rank's sampler, for epochs that were not re-split."""
        return self._own

    def adopt(self, place: Place) -> None:
        """Become the plan of a place, after the re-splits that it says."""
        self._dp_rank, self.layers = place.dp_rank or 0, place.layers
        self._epoch = -1

    def shard(self, epoch: int, index: int) -> Shard | None:
        """Return the shard at an index, or None past the epoch's end."""
        piece = self.piece(epoch, index)
        if self._pieces is None:
            return self._own.shard(epoch, index)
        return None if piece is None else self._begun[piece.dp_rank].shard(epoch, piece.shard_index)

    def piece(self, epoch: int, index: int) -> Piece | None:
        """Return the piece at an index of an epoch that was re-split; None in other epochs."""
        self._go_to(epoch)
        return self._pieces[index] if self._pieces is not None and index < len(self._pieces) else None

    def num_shards(self, epoch: int) -> int | None:
        """Return the number of shards in an epoch; it may be 0 if the epoch was re-split."""
        self._go_to(epoch)
        return self._own.num_shards(epoch) if self._pieces is None else len(self._pieces)

    def first_step(self, epoch: int) -> int:
        """Return the step at which this rank's part of an epoch begins."""
        return first_step(epoch, self.layers)

    def digest(self, epoch: int) -> str | None:
        """Return 16 hexadecimal digits that identify the epoch's order and the origin of its pieces."""
        self._go_to(epoch)
        if self._pieces is None:
            return self._own.digest(epoch)
        if not self._digest:
            digest = hashlib.blake2b(digest_size=8, person=b"fkat_data pieces")
            for piece in self._pieces:
                shard = self._begun[piece.dp_rank].shard(epoch, piece.shard_index)
                digest.update(f"({tuple(piece)!r}, {shard_identity(shard)})".encode())
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
        self._epoch = -1  # an interruption may come between the next lines
        self._pieces = None if dealt is None else dealt.pieces[self._dp_rank]
        self._begun = {} if self._pieces is None else {piece.dp_rank: begun[piece.dp_rank] for piece in self._pieces}
        self._digest = ""
        self._epoch = epoch

    def _of_rank(self, dp_size: int, dp_rank: int, epoch: int) -> tuple[ResplittableSampler, PureShardPlan]:
        try:
            sampler = self._sampler.for_rank(dp_size, dp_rank)
            return sampler, PureShardPlan(sampler.shards, epoch)
        except ConfigurationError as error:
            raise StateMismatchError("dp_size", dp_size, self.dp_size, f"the shards have changed: {error}") from error
