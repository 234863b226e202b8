"""The schedule of a mixture's epoch: which source is next, which have run out, and when the epoch ends."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

from fkat_data import arguments
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.mixing.strategies import SamplerStrategy

OnExhausted: TypeAlias = Literal["drop", "restart", "stop"]
ON_EXHAUSTED: tuple[OnExhausted, ...] = get_args(OnExhausted)
# A user's own strategy might skip every draw.
_MAX_SKIPPED_DRAWS = 1_000_000


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
        self.strategy = strategy
        self._on_exhausted: OnExhausted = arguments.choice("on_exhausted", on_exhausted, ON_EXHAUSTED)
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.epoch: int = epoch
        self.draw: int = 0
        self.is_over: bool = False
        self._left = frozenset(self._names)
        self._exhausted: frozenset[str] = frozenset()

    def source(self) -> str | None:
        """Return the source of the next draw, or None if the epoch is over.

        Raises:
            ConfigurationError: The strategy never chooses one of the sources that are left.
        """
        for _ in range(_MAX_SKIPPED_DRAWS):
            if self.is_over:
                return None
            name = self.strategy.source(self.epoch, self.draw, self._left)
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
        self.epoch, self.draw = numbers
        self._exhausted, self._left = sets
        self.is_over = state_dict["is_over"]

    def _sources(self, field: str, saved: object) -> frozenset[str]:
        names: object = saved
        if not isinstance(names, list) or not all(name in self._names for name in cast("list[object]", names)):
            raise StateMismatchError(field, saved, sorted(self._names), "the state belongs to other sources")
        return frozenset(name for name in self._names if name in cast("list[object]", names))
