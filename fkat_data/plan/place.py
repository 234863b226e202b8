"""One rank's place in its plan: where it goes on, and all that finding this place again takes."""

from typing import Any, NamedTuple

from fkat_data.plan.elastic import Layer
from fkat_data.position import Position


class Place(NamedTuple):
    """Where a rank goes on, and the fingerprint of the plan that it is a place in. None: unknown.

    Attributes:
        position: Position in the plan.
        dp_rank: The data-parallel rank whose part of the plan it is.
        layers: Positions of all ranks at each change of their number that an epoch under way depends on.
        sampler: What the order of the position's epoch depends on, as the plan's ``sampler_state`` returned it.
        skipped: Indices of the epoch's shards that failed and were skipped.
        batching: How the begun shard's samples are grouped into microbatches.
        files: What the files of the begun shard are, in numbers.
        seed: Seed of the loader.
        dp_size: Number of data-parallel ranks that the sampler splits its shards over.
        num_shards: Number of the rank's shards in the position's epoch.
        shards: Digest of their order.
    """

    position: Position
    dp_rank: int | None = None
    layers: tuple[Layer, ...] = ()
    sampler: dict[str, Any] | None = None
    skipped: tuple[int, ...] = ()
    batching: str | None = None
    files: tuple[int, ...] | None = None
    seed: int | None = None
    dp_size: int | None = None
    num_shards: int | None = None
    shards: str | None = None
