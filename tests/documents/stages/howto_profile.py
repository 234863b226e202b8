import torch
from stage import ShardedDataLoader, train

loader = ShardedDataLoader(...)
