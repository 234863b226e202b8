"""Train a tiny GPT-2 with the Trainer of transformers. Kill it at any time, and run it again: it goes on exactly.

::

    python train.py                              # or: torchrun --nproc-per-node=2 train.py
    python train.py output_dir=outputs/other     # any key of train.yaml

A run that was killed ends with the weights of one that was not, to the last bit.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
import transformers
from omegaconf import DictConfig, OmegaConf

from fkat_data import DataLoaderFactory
from fkat_data.configuration import instantiate, register_resolvers
from fkat_data.huggingface import ExactResumeMixin, last_checkpoint


class Sentences(torch.utils.data.Dataset[Any]):
    """The samples of a shard: 30 random sentences that count upwards."""

    def __init__(self, shard: str) -> None:
        self.first = int(shard)

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = int(torch.randint(96, ()))  # drawn by the loader's worker: the same after a resume
        tokens = (torch.arange(32) + start + self.first + index) % 128
        return {"input_ids": tokens, "labels": tokens}


class Factory(DataLoaderFactory):
    """Batches of 4 sentences; ``num_microbatches`` says the length before a shard was read."""

    def num_microbatches(self, shard: str) -> int:
        return -(-len(Sentences(shard)) // 4)


class ExactTrainer(ExactResumeMixin, transformers.Trainer):
    pass


def main(config: DictConfig) -> str:
    """Return a digest of the weights."""
    torch.set_num_threads(1)
    settings: Any = OmegaConf.to_container(config, resolve=True)
    args = transformers.TrainingArguments(output_dir=config.output_dir, **settings["arguments"])
    transformers.set_seed(args.seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings["model"]))
    with instantiate({**config.loader, "dataloader_factory": Factory(Sentences, batch_size=4)}) as loader:
        trainer = ExactTrainer(model=model, args=args, train_dataset=loader)
        trainer.train(resume_from_checkpoint=last_checkpoint(args.output_dir))
    weights = torch.nn.utils.parameters_to_vector(model.parameters())
    return hashlib.sha256(weights.detach().numpy().tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    register_resolvers()
    config = OmegaConf.merge(OmegaConf.load(Path(__file__).with_name("train.yaml")), OmegaConf.from_cli())
    print(f"weights {main(config)}")
