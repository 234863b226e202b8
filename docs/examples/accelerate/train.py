"""Train on two ranks with accelerate, and go on where the last run was stopped.

::

    torchrun --nproc-per-node=2 train.py stop_after=5    # or: accelerate launch --num_processes 2 --cpu train.py
    torchrun --nproc-per-node=2 train.py

Each rank loads its own shards, and each sample is used once an epoch, however often the run is stopped.
"""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from omegaconf import DictConfig, OmegaConf

from fkat_data import DataLoaderFactory
from fkat_data.configuration import instantiate, register_resolvers
from fkat_data.huggingface import prepare


class Numbers(torch.utils.data.Dataset[Any]):
    """The samples of a shard: 20 numbers."""

    def __init__(self, shard: str) -> None:
        self.first = int(shard)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        number = torch.tensor(self.first + index)
        return {"id": number, "x": torch.rand(4) + number}


def main(config: DictConfig) -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(**config.accelerator)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    factory = DataLoaderFactory(Numbers, batch_size=4)
    with instantiate({**config.loader, "dataloader_factory": factory}) as loader:
        model, optimizer, microbatches = prepare(accelerator, model, optimizer, loader)
        # Stands for a log: how often each sample was used, in checkpoints as the loader's place is.
        used = torch.nn.Parameter(torch.zeros(80), requires_grad=False)
        accelerator.register_for_checkpointing(torch.nn.ParameterList([used]))
        latest = Path(config.output_dir, "latest")
        if latest.exists():
            accelerator.load_state(latest.read_text())
        num_microbatches = 0
        for epoch in range(loader.epoch, config.num_epochs):
            for microbatch in microbatches:
                with accelerator.accumulate(model):
                    loss = model(microbatch["x"]).square().mean()
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                used[accelerator.gather_for_metrics(microbatch["id"])] += 1
                num_microbatches += 1
                if num_microbatches % config.save_steps == 0:
                    accelerator.save_state(folder := f"{config.output_dir}/{epoch}-{microbatches.step}")
                    accelerator.wait_for_everyone()  # every rank has written its files
                    if accelerator.is_main_process:
                        latest.write_text(folder)
                if num_microbatches == config.stop_after:
                    return
        accelerator.print(f"samples used {config.num_epochs} times: {int((used == config.num_epochs).sum())} of 80")
        accelerator.print(f"weights {accelerator.unwrap_model(model).weight.tolist()}")


if __name__ == "__main__":
    register_resolvers()
    main(OmegaConf.merge(OmegaConf.load(Path(__file__).with_name("train.yaml")), OmegaConf.from_cli()))
    PartialState().destroy_process_group()
