"""This process's rank in its job, from torch.distributed and the launcher's environment variables.

One rule for the whole package:

- An initialised process group determines the rank and the number of ranks. ``RANK`` and ``WORLD_SIZE`` may be missing;
  if one of them is set, it must agree with the group.
- Without a process group, ``RANK`` and ``WORLD_SIZE`` determine them. Neither may be missing in a job of several ranks.
- ``LOCAL_WORLD_SIZE`` is the number of ranks on each node. If it is missing, each rank counts as a node.

A blank variable counts as missing.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import integer
from fkat_data.runtime.distributed import is_initialized, rank_and_world_size
from fkat_data.runtime.interruption import genuine

_UNSET = "<unset>"
# Where no launcher says how many there are: as many as a machine mostly has accelerators.
_MOST_RANKS_OF_A_NODE = 8
_REMEDY = "set both as torchrun does, initialise torch.distributed first, or pass the rank explicitly"

# A worker process has no process group, so the trainer sends the group's numbers.
_adopted_group: tuple[int, int] | None = None


@dataclass(frozen=True)
class Launch:
    """The facts that are known about this process's rank in its job.

    Attributes:
        world_size: Number of ranks in the job.
        ranks_per_node: Number of ranks on each node.
        known_rank: Index of this rank; None if ``RANK`` is missing and no process group is initialised yet.
        local_rank: Index of this rank on its node, as ``LOCAL_RANK`` says; 0 if it is missing.
    """

    world_size: int
    ranks_per_node: int
    known_rank: int | None
    local_rank: int

    @property
    def rank(self) -> int:
        """Index of this rank.

        Raises:
            ConfigurationError: It is not known: ``WORLD_SIZE`` is set, but ``RANK`` is not, and no process group is
                initialised.
        """
        if self.known_rank is None:
            raise ConfigurationError(
                "RANK",
                _UNSET,
                f"an integer from 0 to {self.world_size - 1}, as WORLD_SIZE = {self.world_size}: {_REMEDY}",
            )
        return self.known_rank


def current_group() -> tuple[int, int] | None:
    """Return the rank and the number of ranks of torch.distributed's process group; None without one.

    In a worker of a ``ShardedDataLoader``, these are the trainer's.
    """
    return rank_and_world_size() if is_initialized() else _adopted_group


def adopt_group(group: tuple[int, int] | None) -> None:
    """In a worker process: use the trainer's process group.

    Args:
        group: What ``current_group`` returned in the trainer.
    """
    global _adopted_group  # noqa: PLW0603 - a fact about this process, as torch's own worker info is
    _adopted_group = group


def current_launch() -> Launch:
    """Return what is known about this process's rank in its job.

    Raises:
        ConfigurationError: An environment variable is invalid, or contradicts another one or the process group.
    """
    return launch_of(os.environ, current_group())


def launch_of(environment: Mapping[str, str], group: tuple[int, int] | None = None) -> Launch:
    """Return what environment variables and a process group say about a process's rank in its job.

    Args:
        environment: Environment variables.
        group: Rank and number of ranks of the process group; None without one.

    Raises:
        ConfigurationError: A variable is invalid, or contradicts another one or the process group.
    """
    rank = _variable(environment, "RANK", minimum=0)
    world_size = _variable(environment, "WORLD_SIZE", minimum=1)
    if group is not None:
        _check_agreement("RANK", rank, group[0], "rank")
        _check_agreement("WORLD_SIZE", world_size, group[1], "number of ranks")
        rank, world_size = group
    elif world_size is None:
        if rank:
            raise ConfigurationError("RANK", rank, f"an integer from 0 to 0, as WORLD_SIZE is not set: {_REMEDY}")
        rank, world_size = 0, 1
    elif rank is None and world_size == 1:
        rank = 0
    if rank is not None and rank >= world_size:
        raise ConfigurationError("RANK", rank, f"an integer from 0 to {world_size - 1}, as WORLD_SIZE = {world_size}")
    return Launch(world_size, _ranks_per_node(environment, world_size), rank, _local_rank(environment, world_size))


def ranks_on_this_node() -> int:
    """Return how many ranks share this machine's memory, for a default: where ``LOCAL_WORLD_SIZE`` says nothing, eight at most."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "").strip()
    if text.isdecimal() and int(text):
        return int(text)
    group = current_group()
    size = os.environ.get("WORLD_SIZE", "").strip() if group is None else str(group[1])
    return min(max(1, int(size)), _MOST_RANKS_OF_A_NODE) if size.isdecimal() else 1


def _ranks_per_node(environment: Mapping[str, str], world_size: int) -> int:
    ranks_per_node = _variable(environment, "LOCAL_WORLD_SIZE", minimum=1)
    if ranks_per_node is None:
        return 1
    if world_size % ranks_per_node:
        raise ConfigurationError("LOCAL_WORLD_SIZE", ranks_per_node, f"a divisor of WORLD_SIZE = {world_size}")
    # Nodes with different numbers of ranks would each compute another order.
    num_nodes = _variable(environment, "GROUP_WORLD_SIZE", minimum=1)
    if num_nodes is not None and num_nodes * ranks_per_node != world_size:
        raise ConfigurationError(
            "LOCAL_WORLD_SIZE",
            ranks_per_node,
            f"the same number of ranks on each of GROUP_WORLD_SIZE = {num_nodes} nodes, {world_size} in all (WORLD_SIZE)",
        )
    return ranks_per_node


def _local_rank(environment: Mapping[str, str], world_size: int) -> int:
    size = _variable(environment, "LOCAL_WORLD_SIZE", minimum=1)
    name, size = ("WORLD_SIZE", world_size) if size is None else ("LOCAL_WORLD_SIZE", size)
    found = _variable(environment, "LOCAL_RANK", minimum=0) or 0
    if found >= size:
        raise ConfigurationError("LOCAL_RANK", found, f"an integer from 0 to {size - 1}, as {name} = {size}")
    return found


def _check_agreement(name: str, said: int | None, present: int, meaning: str) -> None:
    if said is not None and said != present:
        raise ConfigurationError(
            name,
            said,
            f"{present}, this process's {meaning} in torch.distributed: unset RANK and WORLD_SIZE, set them to match, "
            "or pass the rank explicitly",
        )


def _variable(environment: Mapping[str, str], name: str, *, minimum: int) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    try:
        number: object = int(text)
    except genuine(ValueError):
        number = text
    return integer(name, number, minimum=minimum)
