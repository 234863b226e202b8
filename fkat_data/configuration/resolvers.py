"""Rank and size as values of a configuration, read from the environment that torchrun sets.

=================================  ==================================================================
``${fkat.rank:}``                  ``RANK``; 0 without torchrun
``${fkat.world_size:}``            ``WORLD_SIZE``; 1 without torchrun
``${fkat.local_rank:}``            ``LOCAL_RANK``, the place among this machine's ranks; 0 without it
``${fkat.dp_rank:n}``              the data-parallel rank where *n* ranks hold one model; n is 1 if left out
``${fkat.dp_size:n}``              the number of data-parallel ranks
=================================  ==================================================================

Consecutive ranks hold one model: with ``n`` = 2, ranks 0 and 1 are data-parallel rank 0 and read the same data.
"""

import os
from collections.abc import Callable
from typing import Any, cast

from omegaconf import OmegaConf

from fkat_data import arguments
from fkat_data.errors import ConfigurationError

__all__ = ["dp_rank", "dp_size", "local_rank", "rank", "register_resolvers", "world_size"]


def register_resolvers() -> None:
    """Make ``${fkat.rank:}`` and its like known to OmegaConf; again does no harm."""
    for resolver in (rank, world_size, local_rank, dp_rank, dp_size):
        # Not cached: a process may compose for one world after another, as tests do.
        register = cast("Callable[..., Any]", OmegaConf.register_new_resolver)
        register(f"fkat.{resolver.__name__}", resolver, replace=True, use_cache=False)


def rank() -> int:
    """Return this process's rank.

    Raises:
        ConfigurationError: ``RANK`` is no integer, or not below ``WORLD_SIZE``.
    """
    return _from_environment("RANK", 0, minimum=0, maximum=world_size() - 1)


def world_size() -> int:
    """Return the number of ranks.

    Raises:
        ConfigurationError: ``WORLD_SIZE`` is no integer of at least 1.
    """
    return _from_environment("WORLD_SIZE", 1, minimum=1)


def local_rank() -> int:
    """Return the rank among this machine's processes.

    Raises:
        ConfigurationError: ``LOCAL_RANK`` is no integer, or not below ``WORLD_SIZE``.
    """
    return _from_environment("LOCAL_RANK", 0, minimum=0, maximum=world_size() - 1)


def dp_rank(model_parallel_size: int = 1) -> int:
    """Return the data-parallel rank.

    Args:
        model_parallel_size: How many consecutive ranks hold one model; divides the number of ranks.

    Raises:
        ConfigurationError: It does not, or a variable of the environment is wrong.
    """
    return rank() // _checked_size(model_parallel_size)


def dp_size(model_parallel_size: int = 1) -> int:
    """Return the number of data-parallel ranks.

    Args:
        model_parallel_size: How many consecutive ranks hold one model; divides the number of ranks.

    Raises:
        ConfigurationError: It does not, or a variable of the environment is wrong.
    """
    return world_size() // _checked_size(model_parallel_size)


def _checked_size(model_parallel_size: object) -> int:
    size = arguments.integer("model_parallel_size", model_parallel_size, minimum=1)
    if world_size() % size:
        raise ConfigurationError("model_parallel_size", size, f"a divisor of the {world_size()} ranks (WORLD_SIZE)")
    return size


def _from_environment(variable: str, default: int, *, minimum: int, maximum: int | None = None) -> int:
    text = os.environ.get(variable)
    try:
        value: object = default if text is None else int(text)
    except ValueError:
        value = text
    return arguments.integer(variable, value, minimum=minimum, maximum=maximum)
