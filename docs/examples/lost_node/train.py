"""Train on two nodes, and go on with one if the other is lost. The same command on each node:

::

    torchrun --nnodes=1:2 --nproc-per-node=8 --max-restarts=3 --rdzv-id=run --rdzv-backend=c10d \
        --rdzv-endpoint=NODE0:29400 --rdzv-conf=last_call_timeout=10 train.py

The ranks of the other node see a broken connection and end, torchrun starts them again as fewer ranks, and these load
the latest state: what the lost ranks had left of the epoch is dealt out among them. For a node that comes back later,
set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all nodes.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import distributed

from fkat_data import ShardedDataLoader
from fkat_data.configuration import instantiate, register_resolvers


def in_step(loader: ShardedDataLoader) -> Iterator[Any]:
    """Yield the microbatches of an epoch, or None while only other ranks have some left."""
    microbatches = iter(loader)
    while True:
        microbatch = next(microbatches, None)
        num_ranks_with_one = torch.tensor(int(microbatch is not None))
        distributed.all_reduce(num_ranks_with_one)
        if not num_ranks_with_one:
            return
        yield microbatch


def save(path: Path, content: dict[str, Any]) -> None:
    if distributed.get_rank() == 0:
        partial = path.with_suffix(".partial")
        torch.save(content, partial)
        partial.replace(path)


if __name__ == "__main__":
    register_resolvers()
    config = OmegaConf.merge(OmegaConf.load(Path(__file__).with_name("run.yaml")), OmegaConf.from_cli())
    checkpoint = Path(config.checkpoint)
    distributed.init_process_group("gloo")
    # Stands for a model: how often its updates have used each sample.
    model = torch.zeros(config.num_samples, dtype=torch.int64)
    with instantiate(config.loader) as loader:
        if checkpoint.exists():
            content = torch.load(checkpoint, weights_only=True)
            model = content["model"]
            loader.load_state_dict(content["loader"])
        for _ in range(loader.epoch, config.num_epochs):
            for microbatch in in_step(loader):
                ids = torch.empty(0, dtype=torch.int64) if microbatch is None else microbatch["id"]
                update = torch.bincount(ids, minlength=config.num_samples)
                distributed.all_reduce(update)
                model += update
                time.sleep(config.step_s)
                num_ranks = distributed.get_world_size()
                save(checkpoint, {"model": model, "loader": loader.state_dict(), "num_ranks": num_ranks})
    if distributed.get_rank() == 0:
        print(f"samples used {config.num_epochs} times: {int((model == config.num_epochs).sum())} of {len(model)}")
    distributed.destroy_process_group()
