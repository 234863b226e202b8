"""What a plan costs, before anybody pays for it: how full its sequences or batches are, and how unequally ranks compute."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from fkat_data.datasets.equal_cost import Cost, CostBalance
from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import integer


class RankLoad(NamedTuple):
    """What a rank computes in a round.

    Attributes:
        tokens: Tokens of documents or samples.
        computed: Tokens with padding.
        budget: The most tokens that it may have.
        lengths: What its cost is the sum over: lengths of documents, or padded ones of samples.
    """

    tokens: int
    computed: int
    budget: int
    lengths: list[int]


class LoadPlan(Protocol):
    """A ``PackedDataset`` or a ``TokenBudgetBatchSampler``."""

    @property
    def balance(self) -> CostBalance | None:
        """What deals by cost; None: nothing does."""
        ...

    def rank_loads(self) -> Iterator[list[RankLoad]]:
        """Yield what each rank computes, round by round, in the present epoch."""
        ...


class PlanReport(NamedTuple):
    """What an epoch's plan costs.

    Attributes:
        num_ranks: Ranks.
        num_steps: Optimizer steps.
        fill: Share of the sequences or budgets that tokens of documents or samples take.
        padding: Share of the computed tokens that are padding.
        unit: What a rank's work is counted in: "cost" or "tokens".
        slowest: Work of the step's busiest rank over the mean of all ranks, averaged over the steps.
        slowest_worst: The largest of these ratios.
    """

    num_ranks: int
    num_steps: int
    fill: float
    padding: float
    unit: str
    slowest: float
    slowest_worst: float

    def __str__(self) -> str:
        return (
            f"{self.num_steps:,} steps on {self.num_ranks} ranks: {self.fill:.1%} filled, {self.padding:.1%} padding, "
            f"slowest rank at {self.slowest:.3f} times the mean by {self.unit}, {self.slowest_worst:.2f} in the worst step"
        )


def plan_report(dataset: LoadPlan, *, cost: Cost | None = None, accumulate: int | None = None) -> PlanReport:
    """Return what the present epoch's plan of all ranks costs. It plans the epoch as a whole, and reads no data.

    Args:
        dataset: A ``PackedDataset`` or a ``TokenBudgetBatchSampler``, of any of the ranks.
        cost: What to count work by; None: the dataset's ``cost``, and if it has none, tokens.
        accumulate: Rounds of a step; None: the dataset's ``accumulate``.

    Raises:
        ConfigurationError: ``cost`` gives no costs, or the epoch has no step.
    """
    balance = dataset.balance
    num_rounds = 1 if balance is None else balance.accumulate
    if accumulate is not None:
        num_rounds = integer("accumulate", accumulate, minimum=1)
    if cost is not None:
        CostBalance(cost, longest=1)  # raises if it is none

    def work_of(lengths: list[int]) -> float:
        if cost is not None:
            return float(np.sum(cost(np.array(lengths, np.int64))))
        return sum(lengths) if balance is None else balance.of(lengths)

    rounds = dataset.rank_loads()
    tokens = computed = budget = num_ranks = 0
    ratios: list[float] = []
    while step := list(islice(rounds, num_rounds)):
        flat = [load for loads in step for load in loads]
        tokens += sum(load.tokens for load in flat)
        computed += sum(load.computed for load in flat)
        budget += sum(load.budget for load in flat)
        num_ranks = len(step[0])
        sums = np.array([[work_of(load.lengths) for load in loads] for loads in step]).sum(axis=0)
        ratios.append(float(sums.max() / sums.mean()) if sums.any() else 1.0)
    if not ratios:
        raise ConfigurationError("dataset", dataset, "a dataset with at least one step in this epoch")
    unit = "tokens" if cost is None and balance is None else "cost"
    means = float(np.mean(ratios)), max(ratios)
    return PlanReport(num_ranks, len(ratios), tokens / budget, 1 - tokens / computed, unit, *means)
