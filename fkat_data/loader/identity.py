"""A loader's identity: what its random draws depend on, besides the position."""

from typing import Any, NamedTuple

from fkat_data.arguments import integer
from fkat_data.distributed import rank_and_world_size
from fkat_data.errors import ConfigurationError
from fkat_data.types import ResplittableSampler


class Identity(NamedTuple):
    """What a loader's random draws depend on.

    Attributes:
        seed: The loader's seed.
        dp_rank: The loader's data-parallel rank.
        batching: How samples are grouped, which decides on what is in a microbatch; None: unknown.
    """

    seed: int
    dp_rank: int
    batching: str | None = None


def identity_of(seed: int, dp_rank: int | None, sampler: object) -> Identity:
    """Return a loader's identity from its arguments.

    Raises:
        ConfigurationError: An argument is no number, no rank of this job, or differs from its sampler's rank.
    """
    seed = integer("seed", seed)
    of_sampler = _rank_of(sampler)
    if dp_rank is None:
        return Identity(seed, of_sampler or 0)
    # There may be fewer data-parallel ranks than ranks, but not more.
    _, world_size = rank_and_world_size()
    dp_rank = integer("dp_rank", dp_rank, minimum=0, maximum=world_size - 1 if world_size > 1 else None)
    if of_sampler is not None and dp_rank != of_sampler:
        raise ConfigurationError("dp_rank", dp_rank, f"{of_sampler}, as its shard_sampler has, or none")
    return Identity(seed, dp_rank)


def _rank_of(sampler: Any) -> int | None:
    """Return the data-parallel rank whose shards a sampler gives; None if it does not say."""
    if not isinstance(sampler, ResplittableSampler) or sampler.dp_size is None:
        return None
    dp_rank = getattr(sampler, "dp_rank", None)
    return None if dp_rank is None else integer("shard_sampler.dp_rank", dp_rank, minimum=0)
