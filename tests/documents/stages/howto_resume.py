import torch
from stage import ShardedDataLoader, train

loader = ShardedDataLoader(...)
model = torch.nn.Linear(1, 1)
num_epochs, should_save, path = 2, True, "checkpoint.pt"
