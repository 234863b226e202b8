"""Train with Lightning; after a kill, the same command goes on at the next microbatch.

Run it with ``python train.py``, with ``python train.py trainer.devices=2``, or with torchrun.
"""

import math
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import OmegaConf

from fkat_data.configuration import register_resolvers
from fkat_data.lightning import DataModule, ExactResume


class Waves(torch.utils.data.Dataset):
    """The samples of a shard: points of a wave, with noise."""

    def __init__(self, shard):
        self.first = int(shard)

    def __len__(self):
        return 100

    def __getitem__(self, index):
        x = torch.tensor([(self.first + index) / 100])
        return x, torch.sin(2 * math.pi * x) + 0.1 * torch.randn(1)


class Model(LightningModule):
    """A small network, with a schedule that needs to know how many steps there are."""

    def __init__(self, learning_rate):
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def training_step(self, microbatch, index):
        x, y = microbatch
        loss = torch.nn.functional.mse_loss(self.layers(x), y)
        if self.trainer.is_global_zero:
            print(f"step {self.global_step}: loss {loss.item()!r}", flush=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)
        num_steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, max(num_steps, 1))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


if __name__ == "__main__":
    register_resolvers()
    config = OmegaConf.merge(OmegaConf.load(Path(__file__).with_name("config.yaml")), OmegaConf.from_cli(sys.argv[1:]))
    seed_everything(7)
    saving = ModelCheckpoint("checkpoints", every_n_train_steps=5, save_top_k=-1, save_last=True)
    trainer = Trainer(callbacks=[ExactResume(), saving], **config.trainer)
    trainer.fit(Model(**config.model), datamodule=DataModule(**config.data), ckpt_path="last", weights_only=True)
