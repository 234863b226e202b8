"""Strategies: which source a draw belongs to, as a function of its place alone."""

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, count
from typing import Any, cast

from fkat_data import arguments
from fkat_data.errors import ConfigurationError

__all__ = ["Frequency", "RoundRobin", "SamplerStrategy", "Weighted"]

_EVERY_HASH = 2.0**64


class SamplerStrategy(ABC):
    """Says which source a draw belongs to.

    A pure function of the strategy's arguments, the epoch, the draw and the sources that are left: no history, so
    that a mixture goes on exactly from any place, and every rank mixes alike.
    """

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The sources that it draws from, each once."""

    @abstractmethod
    def source(self, epoch: int, draw: int, among: Collection[str]) -> str | None:
        """Return the source of a draw; None passes the draw over.

        Args:
            epoch: The epoch, from 0.
            draw: The place in it, from 0; draws that were passed over count.
            among: The sources that have something left, at least one of ``names``.
        """

    def __iter__(self) -> Iterator[str]:
        """Yield the sources of epoch 0, without end, as long as every one has something left."""
        among = frozenset(self.names)
        return (name for name in (self.source(0, draw, among) for draw in count()) if name is not None)


class Weighted(SamplerStrategy):
    """Draws a source at random, by weights: independent draws, each computed from the seed and its place.

    Among the sources that are left, the weights keep their proportions.

    Args:
        weights: A weight for each source, more than 0; only their proportions count.
        seed: Any integer. Another one is another order.

    Raises:
        ConfigurationError: No weights, or one that is no number of more than 0; or ``seed`` is no integer.
    """

    def __init__(self, weights: Mapping[str, float], seed: int = 0) -> None:
        if not isinstance(weights, Mapping) or not weights or not all(isinstance(name, str) for name in weights):
            raise ConfigurationError("weights", weights, "a mapping from names to weights, not empty")
        for name, weight in cast("Mapping[str, object]", weights).items():
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
                raise ConfigurationError(f"weights[{name!r}]", weight, "a number of more than 0")
        self._weights = {name: float(weight) for name, weight in weights.items()}
        self._seed = arguments.integer("seed", seed)
        self._last: tuple[Collection[str], list[str], list[float]] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The sources, as they were given."""
        return tuple(self._weights)

    def source(self, epoch: int, draw: int, among: Collection[str]) -> str | None:
        """Return the source of a draw; one of those that are left."""
        last = self._last
        if last is None or last[0] != among:
            names = [name for name in self._weights if name in among]
            last = self._last = (frozenset(among), names, list(accumulate(self._weights[name] for name in names)))
        _, names, bounds = last
        if not names:
            return None
        place = f"{self._seed:x}/{epoch:x}/{draw:x}".encode()
        digest = blake2b(place, digest_size=8, person=b"fkat_data mixing").digest()
        point = int.from_bytes(digest, "little") / _EVERY_HASH * bounds[-1]
        # A point may round up to the last bound.
        return names[min(bisect_right(bounds, point), len(names) - 1)]

    def __repr__(self) -> str:
        return f"Weighted({self._weights}, seed={self._seed})"


class RoundRobin(SamplerStrategy):
    """Draws one source after the other, again and again; one that has nothing left is passed over.

    Args:
        names: The sources in their order.

    Raises:
        ConfigurationError: It is no list of names, each of them once.
    """

    def __init__(self, names: Sequence[str]) -> None:
        if not _is_sequence(names) or not names or len(set(names)) < len(names) or not _are_names(names):
            raise ConfigurationError("names", names, "a list of names, not empty, each of them once")
        self._names = tuple(names)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources, as they were given."""
        return self._names

    def source(self, epoch: int, draw: int, among: Collection[str]) -> str | None:
        """Return the source of a draw, or None if it has nothing left."""
        del epoch
        name = self._names[draw % len(self._names)]
        return name if name in among else None

    def __repr__(self) -> str:
        return f"RoundRobin({list(self._names)})"


class Frequency(SamplerStrategy):
    """Draws so many times from one source, then so many times from the next, again and again.

    Args:
        freq: Pairs of a source and a number of draws of at least 1, such as ``[["code", 2], ["text", 1]]``. A source
            may come more than once.

    Raises:
        ConfigurationError: It is no list of such pairs.
    """

    def __init__(self, freq: Sequence[Sequence[Any]]) -> None:
        if not _is_sequence(freq) or not freq or not all(_is_sequence(pair) and len(pair) == 2 for pair in freq):
            raise ConfigurationError("freq", freq, "a list of pairs of a source and a number of draws, not empty")
        if not _are_names([pair[0] for pair in freq]):
            raise ConfigurationError("freq", freq, "the name of a source first in each pair")
        self._freq = [
            (str(name), arguments.integer(f"freq[{place}]", number, minimum=1))
            for place, (name, number) in enumerate(freq)
        ]
        self._bounds = list(accumulate(number for _, number in self._freq))

    @property
    def names(self) -> tuple[str, ...]:
        """The sources in the order in which they first come."""
        return tuple(dict.fromkeys(name for name, _ in self._freq))

    def source(self, epoch: int, draw: int, among: Collection[str]) -> str | None:
        """Return the source of a draw, or None if it has nothing left."""
        del epoch
        name, _ = self._freq[bisect_right(self._bounds, draw % self._bounds[-1])]
        return name if name in among else None

    def __repr__(self) -> str:
        return f"Frequency({[list(pair) for pair in self._freq]})"


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _are_names(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)
