# in process
from stage import SHARDS, ShardedDataLoader, factory

sampler = SHARDS
# after
assert ShardedDataLoader(7, sampler, factory, multiprocessing=False)
