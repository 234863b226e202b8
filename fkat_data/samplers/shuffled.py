"""Another order each epoch, computed and not drawn: no generator to save, the same on every rank."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Self

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError
from fkat_data.samplers.base import ShardSampler
from fkat_data.samplers.sequence import as_shard_sampler
from fkat_data.types import ResplittableSampler, Shard

__all__ = ["ShuffledShardSampler"]


class ShuffledShardSampler(ShardSampler):
    """The shards of another sampler, in another order each epoch.

    The order depends on ``seed``, the epoch and the number of shards alone: every rank, process, platform and
    version of Python gives the same one, and no random number generator is read or moved.

    Around a ``DistributedDataParallelShardSampler`` it shuffles what one rank has; inside one, all shards, so that
    each rank gets other shards each epoch.

    Args:
        sampler: A shard sampler, or any finite iterable of shards.
        seed: Any integer.

    Raises:
        ConfigurationError: An argument is none of these.
    """

    def __init__(self, sampler: Iterable[Shard], seed: int = 0) -> None:
        self._sampler = as_shard_sampler("sampler", sampler)
        self._seed = integer("seed", seed)
        self._last: tuple[int, Sequence[Shard]] | None = None

    @property
    def sampler(self) -> ShardSampler:
        """The sampler whose shards are shuffled."""
        return self._sampler

    @property
    def seed(self) -> int:
        """The seed of every epoch's order."""
        return self._seed

    @property
    def dp_size(self) -> int | None:
        """Number of data-parallel ranks that the sampler inside splits its shards over; None if it does not."""
        return self._sampler.dp_size if isinstance(self._sampler, ResplittableSampler) else None

    @property
    def dp_rank(self) -> int | None:
        """The data-parallel rank whose shards the sampler inside gives; None if it does not say."""
        return getattr(self._sampler, "dp_rank", None) if self.dp_size is not None else None

    def for_rank(self, dp_size: int, dp_rank: int) -> Self:
        """Return this sampler as a rank of another number of ranks has it, at the start of epoch 0.

        Raises:
            ConfigurationError: The sampler inside cannot be asked for another rank's shards.
        """
        inside = self._sampler
        if not isinstance(inside, ResplittableSampler) or inside.dp_size is None:
            raise ConfigurationError("sampler", inside, "a sampler that splits its shards over ranks, to be split anew")
        return self._with(_sampler=inside.for_rank(dp_size, dp_rank), _last=None)

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return the shards of an epoch in its own order."""
        last = self._last
        if last is None or last[0] != epoch:
            shards = self._sampler.shards(epoch)
            last = self._last = (epoch, [shards[index] for index in _order(self._seed, epoch, len(shards))])
        return last[1]


def _order(seed: int, epoch: int, count: int) -> list[int]:
    # Sorting by a keyed digest takes more time than a shuffle by a generator, but needs no generator whose
    # algorithm has to stay the same for ever. In hexadecimal a seed of any size has a text.
    key = blake2b(f"{seed:x}/{epoch:x}".encode(), person=b"fkat_data.shards").digest()
    return sorted(range(count), key=lambda index: blake2b(index.to_bytes(8, "big"), key=key, digest_size=16).digest())
