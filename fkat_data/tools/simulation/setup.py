"""What is simulated: who reads, how fast, and over which line."""

import math
from dataclasses import dataclass

from fkat_data import arguments
from fkat_data.errors import ConfigurationError

__all__ = ["Setup"]

#: A zstd stream on one core of a server.
_DECOMPRESS_BYTES_PER_S = 500e6
#: Batches that torch's DataLoader lets each worker make ahead.
_PREFETCH_FACTOR = 2


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run's numbers. All bandwidths are in bytes a second, and may be infinite.

    Attributes:
        num_nodes: Number of nodes.
        ranks_per_node: Ranks of each node.
        workers_per_rank: Processes of a DataLoader that read for a rank; 0: the rank reads for itself.
        prefetch_factor: Batches that each of these makes ahead.
        worker_start_s: Seconds that these take to start, at the beginning of each epoch; shards are fetched meanwhile.
        step_s: Seconds of a step, without any waiting for data.
        bandwidth_bytes_per_s: What a node receives, shared evenly by its transfers.
        connection_bytes_per_s: What a single transfer receives at the most.
        store_bytes_per_s: What the store sends at the most, to all nodes together.
        latency_s: Seconds from a request to its first byte.
        decompress_bytes_per_s: How fast a thread decompresses, in decompressed bytes.
        num_threads: Shards that a rank makes ready at a time.
        predownload: Samples of a rank that are fetched beyond those that are being read.
        batches_together: Batches that a rank reads at once, at the most: the shards of all of them are waited for. An
            epoch begins with a single one, then two, then four, ...
        batches_per_chunk: Batches after which what is read at once begins anew; None: the end of the epoch.
        most_open: Shards that a rank has open at the most.
        cache_limit_bytes: What the shards on a node may take; None: all stay.
        num_steps: So many steps, over as many epochs as it takes; None: ``num_epochs`` says.
        num_epochs: So many epochs; None: ``num_steps`` says.

    Raises:
        ConfigurationError: A number is none of these, or not one of ``num_steps`` and ``num_epochs`` is given.
    """

    num_nodes: int = 1
    ranks_per_node: int = 1
    workers_per_rank: int = 0
    prefetch_factor: int = _PREFETCH_FACTOR
    worker_start_s: float = 0.0
    step_s: float
    bandwidth_bytes_per_s: float
    connection_bytes_per_s: float = math.inf
    store_bytes_per_s: float = math.inf
    latency_s: float = 0.0
    decompress_bytes_per_s: float = _DECOMPRESS_BYTES_PER_S
    num_threads: int = 8
    predownload: int
    batches_together: int = 1
    batches_per_chunk: int | None = None
    most_open: int = 4096
    cache_limit_bytes: int | None = None
    num_steps: int | None = None
    num_epochs: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "num_nodes",
            "ranks_per_node",
            "prefetch_factor",
            "num_threads",
            "batches_together",
            "most_open",
        ):
            arguments.integer(name, getattr(self, name), minimum=1)
        for name in ("workers_per_rank", "predownload"):
            arguments.integer(name, getattr(self, name), minimum=0)
        for name in ("batches_per_chunk", "cache_limit_bytes", "num_steps", "num_epochs"):
            if getattr(self, name) is not None:
                arguments.integer(name, getattr(self, name), minimum=1)
        for name in ("step_s", "latency_s", "worker_start_s"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value < math.inf:
                raise ConfigurationError(name, value, "a number of seconds, at least 0")
        for name in (
            "bandwidth_bytes_per_s",
            "connection_bytes_per_s",
            "store_bytes_per_s",
            "decompress_bytes_per_s",
        ):
            value = getattr(self, name)
            if not _is_number(value) or not value > 0:
                raise ConfigurationError(name, value, "bytes a second, more than 0")
        if (self.num_steps is None) == (self.num_epochs is None):
            given = {"num_steps": self.num_steps, "num_epochs": self.num_epochs}
            raise ConfigurationError("duration", given, "one of num_steps and num_epochs")

    @property
    def num_ranks(self) -> int:
        """Number of ranks over all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def batches_made_ahead(self) -> int:
        """Batches that a rank's workers make before the one that the trainer asks for is delivered."""
        return self.workers_per_rank * self.prefetch_factor


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
