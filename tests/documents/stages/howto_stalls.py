# in process
from stage import SHARDS, factory

from fkat_data import ShardedDataLoader


def train(microbatch):
    pass


loader = ShardedDataLoader(7, SHARDS, factory, multiprocessing=False)


# after
assert loader.statistics().delivered == 40
