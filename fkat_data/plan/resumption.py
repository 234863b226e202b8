"""Where an engine goes on."""

from typing import Any, NamedTuple

from fkat_data.plan.elastic import Layer
from fkat_data.plan.task import ShardTerms
from fkat_data.position import Position

__all__ = ["Resumption"]


class Resumption(NamedTuple):
    """Where to go on.

    Attributes:
        position: The position in the plan that the rest gives.
        dp_rank: The data-parallel rank whose part of the plan it is.
        layers: Every change of the number of ranks that an epoch under way depends on.
        sampler: What the order of the position's epoch depends on, as the plan's ``sampler_state`` returned it.
        skipped: Indices of the epoch's shards that failed and were skipped.
        terms: What workers have reported of the shards that were begun.
    """

    position: Position
    dp_rank: int = 0
    layers: tuple[Layer, ...] = ()
    sampler: dict[str, Any] | None = None
    skipped: tuple[int, ...] = ()
    terms: ShardTerms | None = None
