"""Strategies that choose the source of each draw, as pure functions of epoch and draw."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, count
from typing import Any

from fkat_data import arguments
from fkat_data.errors import ConfigurationError

_EVERY_HASH = 2.0**64


class SamplerStrategy(ABC):
    """Chooses the source of each draw of a mixture.

    The choice is a pure function of the strategy's arguments, the epoch, the draw and the sources that are left. So a
    mixture can resume exactly at any draw, and all ranks mix the same way.
    """

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the sources, each once."""

    @abstractmethod
    def source(self, epoch: int, draw: int, among: Collection[str]) -> str | None:
        """Return the source of a draw, or None to skip the draw.

        Args:
            epoch: The epoch, from 0.
            draw: Index of the draw in the epoch, from 0; skipped draws count.
            among: Sources that have not run out, at least one of ``names``.
        """

    def __iter__(self) -> Iterator[str]:
        """Yield the sources of epoch 0 forever, as if none ran out."""
        among = frozenset(self.names)
        return (name for name in (self.source(0, draw, among) for draw in count()) if name is not None)


class Weighted(SamplerStrategy):
    """Draws each source at random with a probability proportional to its weight.

    Draws are independent; each is a hash of the seed, the epoch and the draw. When a source runs out, the others keep
    their proportions.

    Args:
        weights: Weight of each source, greater than 0; only the proportions matter.
        seed: Any integer; each seed gives a different order.

    Raises:
        ConfigurationError: ``weights`` is empty, a weight is not a number greater than 0, or ``seed`` is not an integer.
    """

    def __init__(self, weights: Mapping[str, float], seed: int = 0) -> None:
        if not isinstance(weights, Mapping) or not weights or not all(isinstance(name, str) for name in weights):
            raise ConfigurationError("weights", weights, "a non-empty mapping from names to weights")
        self._weights = {name: arguments.positive(f"weights[{name!r}]", weight) for name, weight in weights.items()}
        self._seed = arguments.integer("seed", seed)
        self._last: tuple[Collection[str], list[str], list[float]] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in the given order."""
        return tuple(self._weights)

    def source(self, epoch: int, draw: int, among: Collection[str]) -> str | None:
        """Return the source of a draw, one of ``among``."""
        last = self._last
        if last is None or last[0] != among:
            names = [name for name in self._weights if name in among]
            last = self._last = (frozenset(among), names, list(accumulate(self._weights[name] for name in names)))
        _, names, bounds = last
        if not names:
            return None
        coordinates = f"{self._seed:x}/{epoch:x}/{draw:x}".encode()
        digest = blake2b(coordinates, digest_size=8, person=b"fkat_data mixing").digest()
        point = int.from_bytes(digest, "little") / _EVERY_HASH * bounds[-1]
        # The product may round up to the last bound.
        return names[min(bisect_right(bounds, point), len(names) - 1)]

    def __repr__(self) -> str:
        return f"Weighted({self._weights}, seed={self._seed})"


class RoundRobin(SamplerStrategy):
    """Draws from the sources in turn, and skips those that have run out.

    Args:
        names: Names of the sources, in order.

    Raises:
        ConfigurationError: ``names`` is not a non-empty list of distinct names.
    """

    def __init__(self, names: Sequence[str]) -> None:
        if not _is_sequence(names) or not names or len(set(names)) < len(names) or not _are_names(names):
            raise ConfigurationError("names", names, "a non-empty list of distinct names")
        self._names = tuple(names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in the given order."""
        return self._names

    def source(self, epoch: int, draw: int, among: Collection[str]) -> str | None:
        """Return the source of a draw, or None if that source has run out."""
        del epoch
        name = self._names[draw % len(self._names)]
        return name if name in among else None

    def __repr__(self) -> str:
        return f"RoundRobin({list(self._names)})"


class Frequency(SamplerStrategy):
    """Draws a fixed number of times from each source in turn, in a repeating cycle.

    Args:
        freq: Pairs of a source and its number of draws, at least 1, such as ``[["code", 2], ["text", 1]]``. A source
            may appear more than once.

    Raises:
        ConfigurationError: ``freq`` is not a non-empty list of such pairs.
    """

    def __init__(self, freq: Sequence[Sequence[Any]]) -> None:
        if not _is_sequence(freq) or not freq or not all(_is_sequence(pair) and len(pair) == 2 for pair in freq):
            raise ConfigurationError("freq", freq, "a non-empty list of pairs of a source and a number of draws")
        if not _are_names([pair[0] for pair in freq]):
            raise ConfigurationError("freq", freq, "pairs that begin with the name of a source")
        self._freq = [
            (str(name), arguments.integer(f"freq[{index}]", number, minimum=1))
            for index, (name, number) in enumerate(freq)
        ]
        self._bounds = list(accumulate(number for _, number in self._freq))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in order of their first appearance."""
        return tuple(dict.fromkeys(name for name, _ in self._freq))

    def source(self, epoch: int, draw: int, among: Collection[str]) -> str | None:
        """Return the source of a draw, or None if that source has run out."""
        del epoch
        name, _ = self._freq[bisect_right(self._bounds, draw % self._bounds[-1])]
        return name if name in among else None

    def __repr__(self) -> str:
        return f"Frequency({[list(pair) for pair in self._freq]})"


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _are_names(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)
