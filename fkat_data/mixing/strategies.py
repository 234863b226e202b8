"""The source of each draw, as a pure function of epoch and draw: strategies, and a schedule of sources that may end."""

import copy
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, count
from typing import Any, Literal, Self, TypeAlias, cast, get_args

import numpy as np

from fkat_data.errors import ConfigurationError, StateMismatchError, arguments
from fkat_data.errors.sample_errors import early_end
from fkat_data.runtime.interruption import genuine

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

    def __repr__(self) -> str:
        # A state has it: an address would be another one in each run.
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


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
        self._weights = _weights(weights)
        self._seed = arguments.integer("seed", seed)
        self._last: tuple[Collection[str], list[str], list[float]] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in the given order."""
        return tuple(self._weights)

    @property
    def weights(self) -> list[float]:
        """The weights, in the order of ``names``."""
        return list(self._weights.values())

    def with_weights(self, weights: Mapping[str, float]) -> Self:
        """Return the same strategy with other weights: each draw has the same random number.

        Args:
            weights: As for the class, of the same sources.

        Raises:
            ConfigurationError: They are of other sources, or one is not a number greater than 0.
        """
        found = _weights(weights)
        if found.keys() != self._weights.keys():
            expected = f"a weight for each of these sources: {', '.join(self._weights)}"
            raise ConfigurationError("weights", weights, expected)
        made = copy.copy(self)
        vars(made).update(_weights={name: found[name] for name in self._weights}, _last=None)
        return made

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


def _weights(given: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) for name in given):
        raise ConfigurationError("weights", given, "a non-empty mapping from names to weights")
    return {name: arguments.positive(f"weights[{name!r}]", weight) for name, weight in given.items()}


def token_weights(shares: Mapping[str, float], lengths: Mapping[str, Any]) -> dict[str, float]:
    """Return weights of draws that give each source its share of the tokens.

    They are for ``Weighted`` where a draw is a sample, and for the ``proportion`` of streams. Where a draw is a
    microbatch, its tokens count: pass their mean number.

    Args:
        shares: Each source's share of the tokens, greater than 0; only the proportions matter.
        lengths: Of each source, the tokens of its samples, as a list or an array, such as the ``lengths`` of
            ``TokenDocuments``; or their mean number.

    Raises:
        ConfigurationError: A share is not a number greater than 0, or the lengths of a source are not known. Pack each
            source into rows of one length then, and mix those.
    """
    for name in shares:
        if name not in lengths:
            expected = f"lengths of {name!r}; or pack each source into rows of one length, and mix those"
            raise ConfigurationError("lengths", sorted(lengths), expected)
    return {
        name: arguments.positive(f"shares[{name!r}]", share) / _mean_length(f"lengths[{name!r}]", lengths[name])
        for name, share in shares.items()
    }


def _mean_length(argument: str, lengths: Any) -> float:
    try:
        found = np.asarray(lengths, np.float64)
    except genuine(TypeError, ValueError):
        found = np.zeros(0)
    if not found.size or found.ndim > 1 or not found.min() >= 0:
        raise ConfigurationError(argument, lengths, "the tokens of each sample, or their mean number")
    return arguments.positive(argument, float(found.mean()))


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
    def freq(self) -> list[list[Any]]:
        """The pairs of a source and its number of draws."""
        return [[name, number] for name, number in self._freq]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in order of their first appearance."""
        return tuple(dict.fromkeys(name for name, _ in self._freq))

    def source(self, epoch: int, draw: int, among: Collection[str]) -> str | None:
        """Return the source of a draw, or None if that source has run out."""
        name, _ = self._freq[bisect_right(self._bounds, draw % self._bounds[-1])]
        return name if name in among else None

    def __repr__(self) -> str:
        return f"Frequency({self.freq})"


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _are_names(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)


OnExhausted: TypeAlias = Literal["drop", "restart", "stop"]
ON_EXHAUSTED: tuple[OnExhausted, ...] = get_args(OnExhausted)
# A user's own strategy might skip every draw.
_MAX_SKIPPED_DRAWS = 1_000_000
# A trainer that fetches ahead saves the positions before the newest changes, too.
_MOST_CHANGES = 8
# Weights that were set, by the epoch and the draw from which on they count.
_Change: TypeAlias = tuple[tuple[int, int], Weighted]


class Schedule:
    """A mixture's position in its epoch.

    Args:
        strategy: Chooses the source of each draw.
        names: Names of the sources.
        on_exhausted: What happens when a source runs out. ``"drop"``: it is removed, and the epoch ends when none is
            left. ``"restart"``: it starts again, and the epoch ends when each source has run out once. ``"stop"``: the
            epoch ends.

    Raises:
        ConfigurationError: An argument is invalid, or the strategy has other sources than ``names``.

    Attributes:
        given: The strategy that it was made with.
        epoch: Current epoch, from 0.
        draw: Index of the next draw in the epoch.
        is_over: Whether the epoch has ended.
    """

    def __init__(self, strategy: SamplerStrategy, names: Iterable[str], on_exhausted: OnExhausted) -> None:
        if not isinstance(strategy, SamplerStrategy):
            raise ConfigurationError("strategy", strategy, "a SamplerStrategy: Weighted, RoundRobin or Frequency")
        self._names = tuple(names)
        if set(strategy.names) != set(self._names):
            raise ConfigurationError(
                "strategy", strategy, f"a strategy over exactly these sources: {', '.join(self._names)}"
            )
        self.given = strategy
        self._changes: tuple[_Change, ...] = ()
        self._on_exhausted: OnExhausted = arguments.choice("on_exhausted", on_exhausted, ON_EXHAUSTED)
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.epoch: int = epoch
        self.draw: int = 0
        self.is_over: bool = False
        self._left = frozenset(self._names)
        self._exhausted: frozenset[str] = frozenset()

    @property
    def strategy(self) -> SamplerStrategy:
        """The strategy of the next draw."""
        at = self.epoch, self.draw
        return next((strategy for begin, strategy in reversed(self._changes) if begin <= at), self.given)

    def with_weights(self, weights: Mapping[str, float]) -> Weighted:
        """Return the strategy with other weights.

        Raises:
            ConfigurationError: The strategy has no weights, or these are not valid.
        """
        if not isinstance(self.given, Weighted):
            expected = "Weighted: other strategies have no weights"
            raise ConfigurationError("strategy", self.given, expected)
        return self.given.with_weights(weights)

    def change(self, strategy: Weighted) -> None:
        """Follow another strategy from the next draw on."""
        at = self.epoch, self.draw
        earlier = (each for each in self._changes if each[0] < at)
        self._changes = (*earlier, (at, strategy))[-_MOST_CHANGES:]

    def saved_strategy(self) -> str | tuple[Any, ...]:
        """Return what a state says of the strategy: the given one, and the changes, if there are any."""
        # A field that is always there: torch.distributed.checkpoint reads those alone that the present state has.
        given = repr(self.given)
        changes = (
            {"from": list(at), "weights": dict(zip(strategy.names, strategy.weights, strict=True))}
            for at, strategy in self._changes
        )
        return (given, *changes) if self._changes else given

    def is_given_in(self, saved: object) -> bool:
        """Return whether what a state says of the strategy is of the given one."""
        return _parts_of(saved)[:1] == [repr(self.given)]

    def source(self) -> str | None:
        """Return the source of the next draw, or None if the epoch is over.

        Raises:
            ConfigurationError: The strategy never chooses one of the sources that are left.
        """
        for _ in range(_MAX_SKIPPED_DRAWS):
            if self.is_over:
                return None
            try:
                name = self.strategy.source(self.epoch, self.draw, self._left)
            except genuine(StopIteration) as error:
                raise early_end("strategy", "epoch") from error
            if name in self._left:
                return name
            self.draw += 1
        raise ConfigurationError(
            "strategy", self.strategy, f"one that draws from the sources that are left: {', '.join(sorted(self._left))}"
        )

    def drawn(self) -> None:
        """Count the current draw as made."""
        self.draw += 1

    def ran_out(self, name: str, *, is_empty: bool) -> bool:
        """Record that a source has run out. Return whether the caller must restart it.

        Args:
            name: The source.
            is_empty: Whether the source has yielded nothing since its start. Such a source is not restarted.
        """
        self._exhausted |= {name}
        if self._on_exhausted == "drop" or is_empty:
            self._left -= {name}
        if self._on_exhausted == "stop":
            self.is_over = True
        elif self._on_exhausted == "restart":
            self.is_over = len(self._exhausted) == len(self._names)
        self.is_over = self.is_over or not self._left
        return self._on_exhausted == "restart" and not self.is_over and not is_empty

    def snapshot(self) -> tuple[Any, ...]:
        """Return what ``restore`` needs to undo all that follows."""
        return self.epoch, self.draw, self.is_over, self._left, self._exhausted

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Undo what an interrupted call has done."""
        self.epoch, self.draw, self.is_over, self._left, self._exhausted = snapshot

    def num_draws(self, lengths: Mapping[str, int]) -> int:
        """Return the number of draws in this epoch for sources of these lengths, all at their start."""
        if self._on_exhausted == "drop":
            return sum(lengths.values())
        walk = Schedule(self.strategy, self._names, self._on_exhausted)
        walk.begin(self.epoch)
        taken, total = dict.fromkeys(self._names, 0), 0
        while (name := walk.source()) is not None:
            if taken[name] < lengths[name]:
                taken[name] += 1
                total += 1
                walk.drawn()
            elif walk.ran_out(name, is_empty=taken[name] == 0):
                taken[name] = 0
        return total

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values."""
        return {
            "epoch": self.epoch,
            "draw": self.draw,
            "is_over": self.is_over,
            "exhausted": sorted(self._exhausted),
            "left": sorted(self._left),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved position.

        Raises:
            StateMismatchError: A field is missing or invalid. The position then stays unchanged.
        """
        present = self.state_dict()
        for field in present:
            if field not in state_dict:
                raise StateMismatchError(field, "<missing>", present[field], "this is not a state of a mixture")
        numbers = [arguments.saved_integer(field, state_dict[field], minimum=0) for field in ("epoch", "draw")]
        sets = [self._sources(field, state_dict[field]) for field in ("exhausted", "left")]
        if not isinstance(state_dict["is_over"], bool):
            raise StateMismatchError("is_over", state_dict["is_over"], "<true or false>")
        self._changes = self._changes_in(state_dict.get("strategy"))
        self.epoch, self.draw = numbers
        self._exhausted, self._left = sets
        self.is_over = state_dict["is_over"]

    def _changes_in(self, saved: object) -> tuple[_Change, ...]:
        """Return the changes in a state; none where the caller has given another strategy since, which counts."""
        if not self.is_given_in(saved):
            return ()
        try:
            return tuple(
                (_begin_of(*change["from"]), self.with_weights(change["weights"])) for change in _parts_of(saved)[1:]
            )
        except genuine(TypeError, KeyError, ValueError, ConfigurationError):
            hint = "the state is damaged"
            raise StateMismatchError("strategy", saved, "<a strategy, and weights from draws on>", hint) from None

    def _sources(self, field: str, saved: object) -> frozenset[str]:
        names: object = saved
        if not isinstance(names, list) or not all(name in self._names for name in cast("list[object]", names)):
            raise StateMismatchError(field, saved, sorted(self._names), "the state belongs to other sources")
        return frozenset(name for name in self._names if name in cast("list[object]", names))


def check_changes(of_ranks: Sequence[object]) -> None:
    """Return if all ranks have set the same weights at the same draws.

    Args:
        of_ranks: What the state of each rank says of the strategy.

    Raises:
        StateMismatchError: They have not.
    """
    changes = [_parts_of(saved)[1:] for saved in of_ranks]
    if any(each != changes[0] for each in changes):
        raise StateMismatchError("strategy", changes, "<the same on all ranks>", "call set_weights() on every rank")


def _parts_of(saved: object) -> list[Any]:
    """Return what a state says of the given strategy, and of each change."""
    return [*cast("Sequence[Any]", saved)] if isinstance(saved, (list, tuple)) else [saved]


def _begin_of(epoch: object, draw: object) -> tuple[int, int]:
    return arguments.integer("epoch", epoch, minimum=0), arguments.integer("draw", draw, minimum=0)
