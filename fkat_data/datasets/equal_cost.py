"""Costs of documents by their lengths, and rounds in which all ranks compute about equally much."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.errors.arguments import integer
from fkat_data.runtime.interruption import genuine

Cost: TypeAlias = Callable[[npt.NDArray[np.int64]], Any]
"""A function from lengths to the cost of a document of each length, in any unit."""

# Few rounds are not alike where lengths have a long tail; many delay the first one, since all their documents are packed.
_ROUNDS_OF_A_HORIZON = 32
WINDOWS_OF_A_HORIZON = 4
"""A window has few sequences of each cost; several have enough for a round of neighbours."""


def attention_cost(hidden_size: int, window: int | None = None) -> Cost:
    """Return the cost of documents in a transformer with causal attention within each of them: a function of lengths.

    In FLOPs of a layer's forward pass for a document of L tokens: 24 * hidden_size^2 * L for the matrix products with
    weights, and 4 * hidden_size for each pair of tokens of which one attends to the other, of which there are L^2 / 2.
    These are the numbers of Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
    Megatron-LM", appendix, with half of the attention, since it is causal. Layers, and the backward pass, multiply
    both by the same factor. For a model with other ratios, pass a function of your own.

    Args:
        hidden_size: Width of the model.
        window: Number of tokens that a token attends to in sliding-window attention; None: all before it.

    Raises:
        ConfigurationError: A number is not positive.
    """
    integer("hidden_size", hidden_size, minimum=1)
    return partial(_flops, hidden_size, None if window is None else integer("window", window, minimum=1))


def _flops(hidden_size: int, window: int | None, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    tokens = lengths.astype(np.float64)
    seen = tokens if window is None else np.minimum(tokens, window)
    return 24.0 * hidden_size**2 * tokens + 4.0 * hidden_size * (seen * tokens - seen * seen / 2)


class CostBalance:
    """What deals sequences or batches to ranks by their cost.

    Args:
        cost: Called once, with all lengths from 1 to the longest one.
        longest: The longest length.
        accumulate: Rounds of a step.

    Raises:
        ConfigurationError: ``cost`` is no function of lengths, or gives no costs.
    """

    def __init__(self, cost: object, longest: int, accumulate: int = 1) -> None:
        self._costs = _costs_up_to(longest, cost)
        self.accumulate: int = integer("accumulate", accumulate, minimum=1)

    def settings(self) -> dict[str, Any]:
        """Return what must be the same where an epoch goes on, as plain values."""
        return {"cost": zlib.crc32(self._costs.astype("<f8").tobytes()), "accumulate": self.accumulate}

    def of(self, lengths: npt.NDArray[np.int64] | Sequence[int]) -> float:
        """Return the cost of some documents together."""
        # Rounded once, whatever the order and the processor, since all ranks have to agree.
        return math.fsum(self._costs[np.asarray(lengths, np.int64)].tolist())

    def horizons(self, count: int, num_ranks: int, window_count: int) -> list[tuple[int, int]]:
        """Return first and stop of each run of sequences whose rounds are made together.

        Args:
            count: Number of all sequences, a multiple of ``num_ranks``.
            num_ranks: Number of ranks.
            window_count: Mean number of sequences of a window.
        """
        num_rounds = max(_ROUNDS_OF_A_HORIZON, -(-WINDOWS_OF_A_HORIZON * window_count // num_ranks))
        size = num_rounds * num_ranks
        edges = [number * size for number in range(max(1, count // size))]
        return [*zip(edges, [*edges[1:], count], strict=True)]

    def is_enough(self, count: int, num_ranks: int) -> bool:
        """Return whether that many batches make rounds that are alike."""
        return count >= _ROUNDS_OF_A_HORIZON * num_ranks

    def rounds(self, costs: Sequence[float], num_ranks: int, first: int = 0) -> npt.NDArray[np.int64]:
        """Return rounds of neighbours by cost, in the order of their first members: indices by round and rank.

        Their order is that of a shuffled plan, so it does not depend on their costs. Within a step, the rank with the
        most so far gets the cheapest of each round, first of those that differ most. ``accumulate`` decides on this alone,
        not on what a round has.

        Args:
            costs: Costs in the plan's order; their number is a multiple of ``num_ranks``.
            num_ranks: Number of ranks.
            first: Number of rounds before these.
        """
        given = np.array(costs, np.float64)
        rounds = np.argsort(given, kind="stable").reshape(-1, num_ranks)
        rounds = rounds[np.argsort(rounds.min(axis=1))]
        if num_ranks == 1:
            return rounds
        of_ranks = np.arange(num_ranks)
        for start in range(-(first % self.accumulate), len(rounds), self.accumulate):
            step = rounds[max(start, 0) : start + self.accumulate]
            sums = np.zeros(num_ranks)
            # Ranks take turns where they have equally much, so that the costliest of all goes to each of them.
            turn = (of_ranks + start) % num_ranks
            spread = given[step[:, -1]] - given[step[:, 0]]
            for number in np.argsort(-spread, kind="stable"):
                step[number, np.lexsort((turn, -sums))] = step[number].copy()
                sums += given[step[number]]
        return rounds


def balance_of(cost: object, longest: int, accumulate: int) -> CostBalance | None:
    """Return what deals by cost; None: there is no ``cost``.

    Raises:
        ConfigurationError: ``cost`` is no function of lengths, or there is ``accumulate`` without it.
    """
    if cost is not None:
        return CostBalance(cost, longest, accumulate)
    if accumulate != 1:
        raise ConfigurationError(
            "accumulate", accumulate, "1 without cost=, by which the rounds of a step are balanced"
        )
    return None


def check_cost(state: object, balance: CostBalance | None) -> None:
    """Check that a state was saved with the same costs; what is no state is for others to refuse.

    Raises:
        StateMismatchError: It was not.
    """
    if not isinstance(state, Mapping):
        return
    saved, present = cast("Mapping[str, Any]", state), {} if balance is None else balance.settings()
    for field in ("cost", "accumulate"):
        if saved.get(field) != present.get(field):
            hint = f"documents are dealt to ranks by it: pass the {field}= of the run that saved"
            raise StateMismatchError(field, saved.get(field, "<none>"), present.get(field, "<none>"), hint)


def _costs_up_to(longest: int, cost: object) -> npt.NDArray[np.float64]:
    if not callable(cost):
        expected = "a function from an array of lengths to their costs, such as attention_cost(hidden_size)"
        raise ConfigurationError("cost", cost, expected)
    lengths = np.arange(1, longest + 1)
    found: Any = cost(lengths)
    try:
        costs = np.asarray(found, np.float64)
    except genuine(TypeError, ValueError, RuntimeError):
        raise ConfigurationError("cost", cost, f"a function that returns numbers, not {found!r}") from None
    if costs.shape != lengths.shape:
        expected = (
            f"a function that returns one number for each of {longest} lengths, not the shape {list(costs.shape)}"
        )
        raise ConfigurationError("cost", cost, expected)
    wrong = np.flatnonzero(~((costs >= 0) & (costs < math.inf)))
    if len(wrong):
        expected = (
            f"a function that returns numbers of at least 0, not {costs[wrong[0]]} for the length {lengths[wrong[0]]}"
        )
        raise ConfigurationError("cost", cost, expected)
    return np.concatenate([[0.0], costs])
