"""The setup of a simulated run: its ranks, its speed, its bandwidth, and what shards cost."""

import math
from dataclasses import dataclass

from fkat_data import arguments
from fkat_data.errors import ConfigurationError

#: The speed of zstd on one core of a server.
_DECOMPRESS_BYTES_PER_S = 500e6
#: The default of torch's DataLoader.
_PREFETCH_FACTOR = 2


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The numbers that describe a run. All bandwidths are in bytes a second, and may be infinite.

    Attributes:
        num_nodes: The number of nodes.
        ranks_per_node: The number of ranks on each node.
        workers_per_rank: The number of DataLoader workers that read for a rank; 0: the rank reads for itself.
        prefetch_factor: The number of batches that each worker makes ahead.
        worker_start_s: Seconds that the workers take to start, in each epoch; shards are fetched meanwhile.
        step_s: Seconds of a step, without waiting for data.
        bandwidth_bytes_per_s: The bandwidth of a node, which its transfers share equally.
        connection_bytes_per_s: The bandwidth of a single transfer, at most.
        store_bytes_per_s: The bandwidth of the store to all nodes together, at most.
        latency_s: Seconds from a request to its first byte.
        decompress_bytes_per_s: The speed at which a thread decompresses, in decompressed bytes.
        num_threads: The number of shards that a rank fetches and decompresses at a time.
        predownload: The number of samples that a rank fetches ahead of those that it reads.
        batches_together: The number of batches that a rank reads at once, at most; it waits for the shards of all of
            them. An epoch begins with one, then two, then four, ...
        batches_per_chunk: Batches of different chunks are never read at once; None: the epoch is one chunk.
        most_open: The number of shards that a rank keeps open, at most.
        cache_limit_bytes: The limit of a node's cache; None: unlimited.
        num_steps: The number of steps, over as many epochs as needed; None: ``num_epochs`` decides.
        num_epochs: The number of epochs; None: ``num_steps`` decides.

    Raises:
        ConfigurationError: A number is invalid, or both or neither of ``num_steps`` and ``num_epochs`` are given.
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
            if not arguments.is_number(value) or not 0 <= value < math.inf:
                raise ConfigurationError(name, value, "a number of seconds, at least 0")
        for name in (
            "bandwidth_bytes_per_s",
            "connection_bytes_per_s",
            "store_bytes_per_s",
            "decompress_bytes_per_s",
        ):
            value = getattr(self, name)
            if not arguments.is_number(value) or not value > 0:
                raise ConfigurationError(name, value, "bytes a second, more than 0")
        if (self.num_steps is None) == (self.num_epochs is None):
            given = {"num_steps": self.num_steps, "num_epochs": self.num_epochs}
            raise ConfigurationError("duration", given, "either num_steps or num_epochs")

    @property
    def num_ranks(self) -> int:
        """The number of ranks on all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def batches_made_ahead(self) -> int:
        """The number of batches that a rank's workers make before they deliver the first."""
        return self.workers_per_rank * self.prefetch_factor


@dataclass(frozen=True)
class ShardCosts:
    """The costs of one shard.

    Attributes:
        fetched_bytes: Bytes to fetch.
        raw_bytes: Bytes after decompression.
        is_compressed: Whether the fetched files are compressed.
        keeps_zip: Whether the compressed files stay on disk after decompression.
        num_requests: Number of requests, one for each file.
    """

    fetched_bytes: int
    raw_bytes: int
    is_compressed: bool = False
    keeps_zip: bool = False
    num_requests: int = 1

    @property
    def making_bytes(self) -> int:
        """Bytes on disk during the fetch and the decompression."""
        return self.raw_bytes + self.fetched_bytes if self.is_compressed else self.raw_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes on disk afterwards."""
        return self.making_bytes if self.keeps_zip else self.raw_bytes
