from pathlib import Path

import torch
from stage import ShardedDataLoader, train

loader = ShardedDataLoader(...)
model = torch.nn.Linear(1, 1)
num_epochs, should_save, path = 2, True, "checkpoint.pt"
Path("outputs").mkdir()
torch.save({"loader": loader.state_dict()}, "outputs/last.ckpt")
