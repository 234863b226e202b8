"""Shard samplers: which shards a rank reads, and in which order."""

from fkat_data.samplers.base import ShardSampler, check_shards
from fkat_data.samplers.data_parallel import DistributedDataParallelShardSampler
from fkat_data.samplers.listing import FsShardSampler
from fkat_data.samplers.sequence import SequenceShardSampler, ShuffledShardSampler, as_shard_sampler, merge_uris

__all__ = [
    "DistributedDataParallelShardSampler",
    "FsShardSampler",
    "SequenceShardSampler",
    "ShardSampler",
    "ShuffledShardSampler",
    "as_shard_sampler",
    "check_shards",
    "merge_uris",
]
