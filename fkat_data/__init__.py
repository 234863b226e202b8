"""fkat_data feeds training loops: sharded, prefetched through shared memory, exact after a resume.

Everything that most users need is here; datasets, streaming and the Hydra side are subpackages of their own.
"""

from fkat_data.errors import (
    CacheFullError,
    ConfigurationError,
    DownloadError,
    FkatDataError,
    MemoryLimitError,
    OutstandingError,
    RankMismatchError,
    ReplayMismatchError,
    SampleError,
    ShardCorruptError,
    ShardError,
    ShardNotFoundError,
    SkippedSamplesError,
    StaleIteratorError,
    StateMismatchError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)
from fkat_data.errors.acceptance import accepting
from fkat_data.loaders.data_loader import DataLoader
from fkat_data.loaders.factory import DataLoaderFactory
from fkat_data.loaders.loader_plan import Provenance
from fkat_data.loaders.sample_records import SampleRecord
from fkat_data.loaders.sharded import ShardedDataLoader
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.plan.commits import Ticket
from fkat_data.samplers.base import ShardSampler
from fkat_data.samplers.data_parallel import DistributedDataParallelShardSampler
from fkat_data.samplers.listing import FsShardSampler
from fkat_data.samplers.sequence import ShuffledShardSampler
from fkat_data.seeding import ItemGenerators, item_generators
from fkat_data.types import RandomAccess, Shard

__version__ = "0.1.0"

__all__ = [
    "CacheFullError",
    "ConfigurationError",
    "DataLoader",
    "DataLoaderFactory",
    "DistributedDataParallelShardSampler",
    "DownloadError",
    "FkatDataError",
    "FsShardSampler",
    "ItemGenerators",
    "LoaderStatistics",
    "MemoryLimitError",
    "OutstandingError",
    "Provenance",
    "RandomAccess",
    "RankMismatchError",
    "ReplayMismatchError",
    "SampleError",
    "SampleRecord",
    "Shard",
    "ShardCorruptError",
    "ShardError",
    "ShardNotFoundError",
    "ShardSampler",
    "ShardedDataLoader",
    "ShuffledShardSampler",
    "SkippedSamplesError",
    "StaleIteratorError",
    "StateMismatchError",
    "Ticket",
    "WorkerDiedError",
    "WorkerError",
    "WorkerStalledError",
    "accepting",
    "item_generators",
]
