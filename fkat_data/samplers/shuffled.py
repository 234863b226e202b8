"""Shuffle shards by a hash of seed and epoch: the same order on every rank, and no generator to save."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Self

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError
from fkat_data.samplers.base import ShardSampler
from fkat_data.samplers.sequence import as_shard_sampler
from fkat_data.types import ResplittableSampler, Shard


class ShuffledShardSampler(ShardSampler):
    """The shards of another sampler, in a different order each epoch.

    The order depends only on ``seed``, the epoch and the number of shards. It is the same on every rank, platform and
    version of Python, and uses no random number generator.

    Around a ``DistributedDataParallelShardSampler``, it shuffles the shards of one rank. Inside one, it shuffles all
    shards, so that each rank gets different shards each epoch.

    Args:
        sampler: A shard sampler, or any finite iterable of shards.
        seed: Any integer.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(self, sampler: Iterable[Shard], seed: int = 0) -> None:
        self._sampler = as_shard_sampler("sampler", sampler)
        self._seed = integer("seed", seed)
        self._last: tuple[int, Sequence[Shard]] | None = None

    @property
    def sampler(self) -> ShardSampler:
        """Sampler whose shards are shuffled."""
        return self._sampler

    @property
    def seed(self) -> int:
        """Seed of every epoch's order."""
        return self._seed

    @property
    def dp_size(self) -> int | None:
        """Number of data-parallel ranks that the inner sampler splits its shards over; None if it does not split."""
        return self._sampler.dp_size if isinstance(self._sampler, ResplittableSampler) else None

    @property
    def dp_rank(self) -> int | None:
        """Data-parallel rank of the inner sampler; None if the inner sampler has none."""
        return getattr(self._sampler, "dp_rank", None) if self.dp_size is not None else None

    def for_rank(self, dp_size: int, dp_rank: int) -> Self:
        """Return this sampler for rank ``dp_rank`` of ``dp_size``, at the start of epoch 0.

        Raises:
            ConfigurationError: The inner sampler cannot split its shards over another number of ranks.
        """
        inner = self._sampler
        if not isinstance(inner, ResplittableSampler) or inner.dp_size is None:
            raise ConfigurationError("sampler", inner, "a sampler that can split its shards over any number of ranks")
        return self._with(_sampler=inner.for_rank(dp_size, dp_rank), _last=None)

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return the shards of an epoch, in that epoch's order."""
        last = self._last
        if last is None or last[0] != epoch:
            shards = self._sampler.shards(epoch)
            last = self._last = (epoch, [shards[index] for index in _order(self._seed, epoch, len(shards))])
        return last[1]

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "sampler", self._sampler
        yield "seed", self._seed
        yield from super()._repr_facts()


def _order(seed: int, epoch: int, count: int) -> list[int]:
    # Sorting by a keyed digest is slower than shuffling with a generator, but depends on no generator's algorithm,
    # which could change. Python limits the digits of a decimal integer, but not of a hexadecimal one.
    key = blake2b(f"{seed:x}/{epoch:x}".encode(), person=b"fkat_data.shards").digest()
    return sorted(range(count), key=lambda index: blake2b(index.to_bytes(8, "big"), key=key, digest_size=16).digest())
