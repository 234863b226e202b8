import torch
from stage import ShardedDataLoader, made

loader = ShardedDataLoader(...)


def train(loader):
    for _ in loader:
        pass


# after
from pathlib import Path

assert 'loader="train",rank="0",run="baseline"' in Path("run.prom").read_text()
for loader in made:
    loader.close()
