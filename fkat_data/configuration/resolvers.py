"""OmegaConf resolvers for ranks and sizes, from torch.distributed and the environment variables of torchrun.

=================================  ==================================================================
``${fkat.rank:}``                  the rank; 0 without torchrun
``${fkat.world_size:}``            the number of ranks; 1 without torchrun
``${fkat.local_rank:}``            ``LOCAL_RANK``, the rank on this machine; 0 without torchrun
``${fkat.dp_rank:n}``              the data-parallel rank if *n* ranks share one model; n defaults to 1
``${fkat.dp_size:n}``              the number of data-parallel ranks
=================================  ==================================================================

Consecutive ranks share one model: with ``n`` = 2, ranks 0 and 1 are data-parallel rank 0 and read the same data.
"""

from collections.abc import Callable
from typing import Any, cast

from omegaconf import OmegaConf

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.launch import current_launch


def register_resolvers() -> None:
    """Register ``${fkat.rank:}`` and the other resolvers with OmegaConf. Safe to call more than once."""
    for resolver in (rank, world_size, local_rank, dp_rank, dp_size):
        # Not cached: a process may compose for several worlds in turn, as tests do.
        register = cast("Callable[..., Any]", OmegaConf.register_new_resolver)
        register(f"fkat.{resolver.__name__}", resolver, replace=True, use_cache=False)


def rank() -> int:
    """Return this process's rank.

    Raises:
        ConfigurationError: The rank is not known, an environment variable is invalid, or two of them or a variable and
            the process group contradict each other.
    """
    return current_launch().rank


def world_size() -> int:
    """Return the number of ranks.

    Raises:
        ConfigurationError: An environment variable is invalid, or contradicts another one or the process group.
    """
    return current_launch().world_size


def local_rank() -> int:
    """Return this process's rank on its machine.

    Raises:
        ConfigurationError: An environment variable is invalid, or contradicts another one or the process group.
    """
    return current_launch().local_rank


def dp_rank(model_parallel_size: int = 1) -> int:
    """Return this process's data-parallel rank.

    Args:
        model_parallel_size: Number of consecutive ranks that share one model, a divisor of the number of ranks.

    Raises:
        ConfigurationError: ``model_parallel_size`` or an environment variable is invalid.
    """
    return rank() // _checked_size(model_parallel_size)


def dp_size(model_parallel_size: int = 1) -> int:
    """Return the number of data-parallel ranks.

    Args:
        model_parallel_size: Number of consecutive ranks that share one model, a divisor of the number of ranks.

    Raises:
        ConfigurationError: ``model_parallel_size`` or an environment variable is invalid.
    """
    return world_size() // _checked_size(model_parallel_size)


def _checked_size(model_parallel_size: object) -> int:
    size = arguments.integer("model_parallel_size", model_parallel_size, minimum=1)
    if world_size() % size:
        raise ConfigurationError("model_parallel_size", size, f"a divisor of the {world_size()} ranks (WORLD_SIZE)")
    return size
