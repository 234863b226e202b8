from pathlib import Path

import torch

Path("train.py").write_text("from torch.utils.data import DataLoader\n")
dataset = torch.arange(3200)
num_ranks, rank = 2, 0
model = torch.nn.Linear(1, 1)


def train(batch):
    assert batch.numel() == 32


# after
assert len(loader) == 50
loader.close()
