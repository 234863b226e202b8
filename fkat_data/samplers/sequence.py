"""Samplers over a fixed list of shards."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any, Self, cast

from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import integer
from fkat_data.errors.wording import redacted_location
from fkat_data.runtime.interruption import genuine
from fkat_data.samplers.base import ShardSampler, check_shards, has_own_iteration, is_empty_list, uris_of
from fkat_data.seeding import preserved_generators, seed_global_generators
from fkat_data.types import ResplittableSampler, Shard, num_listed_of


class SequenceShardSampler(ShardSampler):
    """The given shards in the given order, in every epoch.

    Args:
        shards: Any finite, ordered iterable of shards; read once.

    Raises:
        ConfigurationError: ``shards`` is empty, or an item is not a shard.
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = tuple(check_shards("shards", shards))

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return the given shards."""
        return self._shards

    @property
    def num_listed(self) -> int | None:
        """Number of the given shards."""
        return len(self._shards)

    def first(self, num_listed: int) -> Self:
        """Return this sampler over the first shards alone, at the start of epoch 0."""
        return self._with(_shards=self._shards[:num_listed])

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        first: Any = self._shards[0]
        yield "num_shards", len(self._shards)
        first = cast("list[Any]", first)[0] if isinstance(first, list) else first
        yield "first", redacted_location(first if isinstance(first, str) else repr(first))
        yield from super()._repr_facts()


def as_shard_sampler(argument: str, sampler: object) -> ShardSampler:
    """Return a sampler with an order for every epoch.

    A sampler that implements ``shards`` is returned unchanged. One that implements ``__iter__`` instead becomes an
    ``IteratedShardSampler``, and one that assigns a list to ``self.shards`` has that list in every epoch. Any other
    iterable is read once, and every epoch has that order: if it shuffles, let it be a ``ShardSampler``.

    Args:
        argument: Name of the argument that holds the sampler, for error messages.
        sampler: A shard sampler, or any finite, ordered iterable of shards.

    Raises:
        ConfigurationError: ``sampler`` is neither, or cannot give every epoch's shards.
    """
    if not isinstance(sampler, ShardSampler):
        return SequenceShardSampler(check_shards(argument, sampler))
    own: Any = sampler.shards
    has_loop, has_list = has_own_iteration(sampler), not callable(own) and not is_empty_list(own)
    if callable(own) and not has_loop and type(sampler).shards is not ShardSampler.shards:
        return sampler
    if isinstance(sampler, ResplittableSampler) and sampler.dp_size is not None:
        raise ConfigurationError(
            argument,
            sampler,
            "a sampler that overrides shards(epoch), not __iter__ or self.shards: it gives other ranks' shards as well",
        )
    if has_loop or (has_list and type(sampler).set_epoch is not ShardSampler.set_epoch):
        return IteratedShardSampler(argument, sampler)
    if has_list:
        return SequenceShardSampler(check_shards(argument, own))
    raise ConfigurationError(
        argument, sampler, "a sampler with shards(epoch) -> Sequence[Shard], a list in self.shards, or its own __iter__"
    )


def merge_uris(shards: Sequence[Shard], num_uri_merge: int) -> Sequence[Shard]:
    """Return shards of ``num_uri_merge`` consecutive URIs each; the last one may be shorter.

    Groups among ``shards`` are flattened first. The URIs keep their order.

    >>> merge_uris(["a", ["b", "c"]], 2)
    [['a', 'b'], ['c']]

    Args:
        shards: The shards to merge.
        num_uri_merge: URIs per shard; -1: all in one shard; 0: return ``shards`` unchanged.

    Raises:
        ConfigurationError: ``num_uri_merge`` is not an integer of at least -1, or a shard is no URI and no list of
            URIs.
    """
    num_uri_merge = integer("num_uri_merge", num_uri_merge, minimum=-1)
    if num_uri_merge == 0:
        return shards
    named = (
        uris_of(f"shards[{index}], for num_uri_merge={num_uri_merge}", shard) for index, shard in enumerate(shards)
    )
    uris = list(chain.from_iterable(named))
    step = max(1, len(uris)) if num_uri_merge == -1 else num_uri_merge
    return [uris[start : start + step] for start in range(0, len(uris), step)]


class IteratedShardSampler(ShardSampler):
    """The order of a sampler whose ``__iter__`` yields one epoch, for any epoch at any time.

    The epochs are the loops over a copy of the sampler: epoch 2 is what its third loop yields, after two whole loops
    before it. So counters and generators that the sampler keeps between loops move as they do in a run that nothing
    stops. ``set_epoch(epoch)`` is called before each loop if the sampler has its own.

    During a loop, python's, numpy's and torch's global generators are seeded from the epoch alone, and restored after
    it: a sampler that shuffles with them yields the same order on every rank and after a resume.

    Args:
        argument: Name of the argument that holds the sampler, for error messages.
        sampler: The sampler; later changes to it have no effect.

    Raises:
        ConfigurationError: The sampler cannot be copied.
    """

    def __init__(self, argument: str, sampler: ShardSampler) -> None:
        self._argument = argument
        try:
            self._begun: ShardSampler = copy.deepcopy(sampler)
        except genuine(Exception) as error:
            raise ConfigurationError(
                argument,
                sampler,
                "a sampler with shards(epoch), or one that copy.deepcopy() can copy, so that its __iter__ can begin at "
                f"any epoch: {type(error).__name__}: {error}",
            ) from error
        self._current: ShardSampler | None = None
        self._epoch = -1
        self._shards: list[Shard] = []

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return the shards of an epoch.

        Raises:
            ConfigurationError: A loop yields no shard, or something that is not a shard, or seems endless.
            Exception: Any exception of the sampler.
        """
        if self._current is None or epoch < self._epoch:
            self._current, self._epoch = copy.deepcopy(self._begun), -1
        sampler = self._current
        while self._epoch < epoch:
            # Unset while the sampler runs: after an exception, the next call begins with a new copy.
            self._current = None
            self._shards = self._loop(sampler, self._epoch + 1)
            self._current, self._epoch = sampler, self._epoch + 1
        return self._shards

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "sampler", self._begun
        yield from super()._repr_facts()

    def _loop(self, sampler: ShardSampler, epoch: int) -> list[Shard]:
        kept = preserved_generators(where_shared=True)
        try:
            with kept:
                seed_global_generators(int.from_bytes(blake2b(str(epoch).encode(), digest_size=8).digest()))
                if type(sampler).set_epoch is not ShardSampler.set_epoch:
                    sampler.set_epoch(epoch)
                return check_shards(self._argument, sampler)
        finally:
            kept.restore()


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

    @property
    def num_listed(self) -> int | None:
        """Shards of the inner sampler's list; None if it does not say."""
        return num_listed_of(self._sampler)

    def first(self, num_listed: int) -> Self:
        """Return this sampler over the first shards of the list alone, at the start of epoch 0."""
        return self._with(_sampler=cast("Any", self._sampler).first(num_listed), _last=None)

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
