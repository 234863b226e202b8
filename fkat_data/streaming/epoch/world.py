"""This process's node, rank and worker, from the environment and torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch.utils.data import get_worker_info

from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import integer
from fkat_data.runtime.launch import current_launch, launch_of


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
        """Return this process's world, from torch.distributed, the environment and torch's worker info.

        Args:
            environment: Environment variables to read instead of this process's; torch.distributed is then ignored.

        Raises:
            ConfigurationError: The rank is not known, a variable is invalid, or two of RANK, WORLD_SIZE,
                LOCAL_WORLD_SIZE and the process group contradict each other.
        """
        launch = current_launch() if environment is None else launch_of(environment)
        num_nodes = launch.world_size // launch.ranks_per_node
        return cls(num_nodes, launch.ranks_per_node, worker=launch.rank).with_workers()

    @classmethod
    def of_job(cls) -> "World":
        """Return the world of rank 0 of this job, without workers. This rank may be unknown yet.

        Raises:
            ConfigurationError: A variable is invalid, or contradicts another one or the process group.
        """
        launch = current_launch()
        return cls(launch.world_size // launch.ranks_per_node, launch.ranks_per_node)

    @property
    def num_ranks(self) -> int:
        """Number of ranks on all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def rank(self) -> int:
        """Index of this worker's rank among the ranks of all nodes."""
        return self.worker // self.workers_per_rank

    @property
    def worker_of_rank(self) -> int:
        """Index of this worker within its rank."""
        return self.worker % self.workers_per_rank

    @property
    def node(self) -> int:
        """Index of this worker's node."""
        return self.rank // self.ranks_per_node

    @property
    def rank_of_node(self) -> int:
        """Index of this worker's rank within its node."""
        return self.rank % self.ranks_per_node

    @property
    def num_workers(self) -> int:
        """Number of workers of all ranks."""
        return self.num_ranks * self.workers_per_rank

    @property
    def workers_per_node(self) -> int:
        """Workers of all ranks of a node."""
        return self.ranks_per_node * self.workers_per_rank

    @property
    def worker_of_node(self) -> int:
        """Index of this worker within its node."""
        return self.worker % self.workers_per_node

    @property
    def is_multinode(self) -> bool:
        """Whether there are several nodes."""
        return self.num_nodes > 1

    @property
    def is_leader(self) -> bool:
        """Whether this is the first worker of all."""
        return self.worker == 0

    @property
    def is_local_leader(self) -> bool:
        """Whether this is the first worker of its node."""
        return self.worker_of_node == 0

    def with_workers(self) -> "World":
        """Return this rank's world as a worker of torch's DataLoader sees it; unchanged outside of one."""
        info = get_worker_info()
        if info is None:
            return self
        return replace(self, workers_per_rank=info.num_workers, worker=self.rank * info.num_workers + info.id)

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

    def of_ranks(self, num_ranks: int, rank: int) -> "World":
        """Return the world of one of that many ranks on these nodes, whose others read the same samples as one of them."""
        num_nodes = self.num_nodes if num_ranks % self.num_nodes == 0 else 1
        return World(num_nodes, num_ranks // num_nodes, worker=rank)
