"""Samplers with an ``__iter__`` of their own, as functions of the epoch."""

import copy
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine
from fkat_data.samplers.base import ShardSampler, check_shards
from fkat_data.seeding import preserved_generators, seed_global_generators
from fkat_data.types import Shard

__all__ = ["IteratedShardSampler"]


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
        with preserved_generators():
            seed_global_generators(int.from_bytes(blake2b(str(epoch).encode(), digest_size=8).digest()))
            if type(sampler).set_epoch is not ShardSampler.set_epoch:
                sampler.set_epoch(epoch)
            return check_shards(self._argument, sampler)
