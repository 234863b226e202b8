# in process
from stage import SHARDS, factory

from fkat_data import ShardedDataLoader


def train(microbatch):
    pass


# after
assert loader.statistics().delivered == 40
