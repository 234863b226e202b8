import torch
from stage import ShardedDataLoader, made


class Logger:
    def log_metrics(self, metrics):
        assert metrics["delivered"] == 40


loader = ShardedDataLoader(...)
for _ in loader:
    pass
logger = Logger()
# after
for loader in made[1:]:
    for _ in zip(range(40), loader, strict=False):
        pass
    loader.close()
