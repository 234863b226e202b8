# in process
from stage import factory

from fkat_data import ShardedDataLoader

# after
assert (loader.epoch, loader.step) == (0, 16)
