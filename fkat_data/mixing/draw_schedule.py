"""The schedule of a mixture's epoch: which source is next, which have nothing left, and when it is over."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from fkat_data import arguments
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.mixing.strategies import SamplerStrategy

__all__ = ["ON_EXHAUSTED", "Schedule"]

ON_EXHAUSTED = ("drop", "restart", "stop")
# A strategy of the user's own might pass over every draw.
_MOST_PASSED_OVER = 1_000_000


class Schedule:
    """Where a mixture is in its epoch.

    Args:
        strategy: Says which source a draw belongs to.
        names: The sources.
        on_exhausted: What becomes of a source that has nothing left: ``"drop"``: it is left out, and the epoch ends
            when none is left; ``"restart"``: it begins again, and the epoch ends when each has run out once;
            ``"stop"``: the epoch ends.

    Raises:
        ConfigurationError: An argument is none of these, or the strategy's sources are others.

    Attributes:
        epoch: The epoch, from 0.
        draw: The next draw in it.
        is_over: Whether the epoch has nothing left.
    """

    def __init__(self, strategy: SamplerStrategy, names: Iterable[str], on_exhausted: str) -> None:
        if not isinstance(strategy, SamplerStrategy):
            raise ConfigurationError("strategy", strategy, "a SamplerStrategy: Weighted, RoundRobin or Frequency")
        self._names = tuple(names)
        if set(strategy.names) != set(self._names):
            raise ConfigurationError(
                "strategy", strategy, f"a strategy over exactly the sources that there are: {', '.join(self._names)}"
            )
        self.strategy = strategy
        self._on_exhausted = arguments.choice("on_exhausted", on_exhausted, ON_EXHAUSTED)
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.epoch = epoch
        self.draw = 0
        self.is_over = False
        self._left = frozenset(self._names)
        self._exhausted: frozenset[str] = frozenset()

    def source(self) -> str | None:
        """Return the source of the next draw, or None if the epoch is over.

        Raises:
            ConfigurationError: The strategy names none of the sources that are left.
        """
        for _ in range(_MOST_PASSED_OVER):
            if self.is_over:
                return None
            name = self.strategy.source(self.epoch, self.draw, self._left)
            if name in self._left:
                return name
            self.draw += 1
        raise ConfigurationError(
            "strategy", self.strategy, f"one that draws from what is left: {', '.join(sorted(self._left))}"
        )

    def drawn(self) -> None:
        """Count a draw: its source gave something."""
        self.draw += 1

    def ran_out(self, name: str, *, is_empty: bool) -> bool:
        """Note that a source had nothing for the draw; return whether it is to begin again.

        Args:
            name: The source.
            is_empty: Whether it had nothing at all since it began: it is not to begin again then.
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

    def num_draws(self, lengths: Mapping[str, int]) -> int:
        """Return how many draws this epoch has, if every source begins anew and has so many to give."""
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
        """Return the place as plain values."""
        return {
            "epoch": self.epoch,
            "draw": self.draw,
            "is_over": self.is_over,
            "exhausted": sorted(self._exhausted),
            "left": sorted(self._left),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a place that ``state_dict`` gave.

        Raises:
            StateMismatchError: A field is missing or no such value; the place is then as it was.
        """
        present = self.state_dict()
        for field in present:
            if field not in state_dict:
                raise StateMismatchError(field, "<missing>", present[field], "it is no state of a mixture")
        numbers = [_number(field, state_dict[field], present[field]) for field in ("epoch", "draw")]
        sets = [self._sources(field, state_dict[field]) for field in ("exhausted", "left")]
        if not isinstance(state_dict["is_over"], bool):
            raise StateMismatchError("is_over", state_dict["is_over"], present["is_over"])
        self.epoch, self.draw = numbers
        self._exhausted, self._left = sets
        self.is_over = state_dict["is_over"]

    def _sources(self, field: str, saved: object) -> frozenset[str]:
        names: object = saved
        if not isinstance(names, list) or not all(name in self._names for name in cast("list[object]", names)):
            raise StateMismatchError(field, saved, sorted(self._names), "it is the state of other sources")
        return frozenset(name for name in self._names if name in cast("list[object]", names))


def _number(field: str, saved: object, present: object) -> int:
    try:
        return arguments.integer(field, saved, minimum=0)
    except ConfigurationError as error:
        raise StateMismatchError(field, saved, present, f"it has to be {error.expected}") from None
