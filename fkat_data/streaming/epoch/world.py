"""This process's node, rank and worker, from the environment and torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torch.utils.data import get_worker_info

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError

__all__ = ["World"]


@dataclass(frozen=True)
class World:
    """The numbers of nodes, ranks and workers, and this worker's index. A rank without workers counts as one worker.

    Attributes:
        num_nodes: Number of nodes.
        ranks_per_node: Ranks on each node.
        workers_per_rank: Workers of each rank.
        worker: Index of this worker among the workers of all ranks.
    """

    num_nodes: int = 1
    ranks_per_node: int = 1
    workers_per_rank: int = 1
    worker: int = 0

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None) -> "World":
        """Return this process's world, from RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and torch's worker info.

        Args:
            environment: Environment variables; None for the process's.

        Raises:
            ConfigurationError: A variable is not an integer, or two contradict each other.
        """
        variables = os.environ if environment is None else environment
        num_ranks = _variable(variables, "WORLD_SIZE", 1, minimum=1)
        ranks_per_node = _variable(variables, "LOCAL_WORLD_SIZE", 1, minimum=1)
        rank = _variable(variables, "RANK", 0, minimum=0)
        if num_ranks % ranks_per_node:
            raise ConfigurationError("LOCAL_WORLD_SIZE", ranks_per_node, f"a divisor of WORLD_SIZE = {num_ranks}")
        if rank >= num_ranks:
            raise ConfigurationError("RANK", rank, f"a number below WORLD_SIZE = {num_ranks}")
        info = get_worker_info()
        workers, worker = (1, 0) if info is None else (info.num_workers, info.id)
        return cls(num_ranks // ranks_per_node, ranks_per_node, workers, rank * workers + worker)

    @property
    def num_ranks(self) -> int:
        """Number of ranks on all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def num_workers(self) -> int:
        """Number of workers of all ranks."""
        return self.num_ranks * self.workers_per_rank

    @property
    def workers_per_node(self) -> int:
        """Workers on each node."""
        return self.ranks_per_node * self.workers_per_rank

    @property
    def rank(self) -> int:
        """Index of this worker's rank among the ranks of all nodes."""
        return self.worker // self.workers_per_rank

    @property
    def node(self) -> int:
        """Index of this worker's node."""
        return self.worker // self.workers_per_node

    @property
    def rank_of_node(self) -> int:
        """Index of this worker's rank within its node."""
        return self.rank % self.ranks_per_node

    @property
    def worker_of_rank(self) -> int:
        """Index of this worker within its rank."""
        return self.worker % self.workers_per_rank

    @property
    def worker_of_node(self) -> int:
        """Index of this worker within its node."""
        return self.worker % self.workers_per_node

    def replicated(self, replication: int) -> "World":
        """Return the world in which ``replication`` consecutive ranks count as one and read the same samples.

        Raises:
            ConfigurationError: ``replication`` does not divide the number of ranks.
        """
        integer("replication", replication, minimum=1)
        if self.num_ranks % replication:
            raise ConfigurationError("replication", replication, f"a divisor of the {self.num_ranks} ranks")
        num_ranks = self.num_ranks // replication
        worker = self.rank // replication * self.workers_per_rank + self.worker_of_rank
        num_nodes = num_ranks // self.ranks_per_node if num_ranks % self.ranks_per_node == 0 else 1
        return World(num_nodes, num_ranks // num_nodes, self.workers_per_rank, worker)


def _variable(variables: Mapping[str, str], name: str, default: int, *, minimum: int) -> int:
    text = variables.get(name, "")
    try:
        number = int(text) if text.strip() else default
    except ValueError:
        raise ConfigurationError(name, text, "an environment variable with an integer") from None
    return integer(name, number, minimum=minimum)
