"""Train with FSDP, save with torch.distributed.checkpoint, and resume on another number of ranks.

::

    torchrun --nproc_per_node=2 distributed_checkpoint.py steps=20   # distributed_checkpoint.yaml lists the settings
    torchrun --nproc_per_node=4 distributed_checkpoint.py            # goes on after step 20, on four ranks

The loader is one more entry of the checkpoint. Each sample of an epoch is delivered once, whatever the ranks are.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from omegaconf import OmegaConf
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from fkat_data.configuration import instantiate, register_resolvers


class Training:
    """The model, its optimizer and the count of steps, as torch.distributed.checkpoint takes them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, 4)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def main() -> None:
    config = OmegaConf.merge(OmegaConf.load(Path(__file__).with_suffix(".yaml")), OmegaConf.from_cli(sys.argv[1:]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    register_resolvers()
    training = Training()
    with instantiate(config.loader) as loader:
        whole = {"training": training, "loader": loader}
        saved = sorted(Path(config.folder).glob("step-*/.metadata"))
        if saved:
            dcp.load(whole, checkpoint_id=saved[-1].parent)
        batches = endless(loader)
        while training.step < config.steps:
            epoch, batch = loader.epoch, next(batches)
            training.model(batch["value"].float().unsqueeze(-1)).square().mean().backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
            training.step += 1
            print(f"epoch {epoch}, step {training.step}: {batch['value'].tolist()}", flush=True)
            if training.step % config.save_every == 0:
                dcp.save(whole, checkpoint_id=f"{config.folder}/step-{training.step:06}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
