"""Classify lines of Python's standard library by their package, in microbatches of lines of similar length.

::

    python train.py                    # train.yaml lists the settings
    python train.py buffer_size=16     # more padding

Sorting within a buffer keeps the order random, and the padding small: the program prints how much there was.
"""

import sysconfig
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import DataLoader, Dataset

from fkat_data import DataLoaderFactory, ShuffledShardSampler
from fkat_data.configuration import instantiate
from fkat_data.datasets import BufferSortedDataset, DatasetChain, PaddingCollate
from fkat_data.samplers import SequenceShardSampler


class Lines(Dataset[dict[str, Any]]):
    """The lines of a shard, which is some files; the label is the number of their package."""

    def __init__(self, shard: list[str], packages: list[str]) -> None:
        lines = [
            (line.strip().encode(), packages.index(Path(path).parent.name))
            for path in shard
            for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
            if line.strip()
        ]
        self.lines = [lines[index] for index in torch.randperm(len(lines)).tolist()]  # another order each epoch

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, Any]:
        line, label = self.lines[index]
        return {"bytes": torch.tensor(list(line), dtype=torch.int64) + 1, "label": label}

    def sort_key(self, index: int) -> int:
        return len(self.lines[index][0])


def main(config: DictConfig) -> tuple[float, float]:
    """Return the last losses' mean, and the share of padding."""
    root, packages = Path(sysconfig.get_paths()["stdlib"]), list(config.packages)
    files = [sorted(map(str, (root / name).glob("*.py")))[:3] for name in packages]
    shards = [list(group) for group in zip(*files, strict=False)]  # each has a file of every package
    sort = partial(BufferSortedDataset, buffer_size=config.buffer_size, pack_size=config.batch_size)
    factory = DataLoaderFactory(
        DatasetChain([partial(Lines, packages=packages), sort]),
        dataloader_generator=partial(DataLoader, collate_fn=PaddingCollate(0)),
        batch_size=config.batch_size,
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(257, 32, padding_idx=0), torch.nn.Linear(32, len(packages)))
    optimizer, losses, num_padding, num_all = torch.optim.Adam(model.parameters(), 0.02), [], 0, 0
    sampler = ShuffledShardSampler(SequenceShardSampler(shards), seed=1)
    with instantiate({**config.loader, "shard_sampler": sampler, "dataloader_factory": factory}) as loader:
        for _ in range(config.epochs):
            for microbatch in loader:
                loss = torch.nn.functional.cross_entropy(model(microbatch["bytes"]), microbatch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                num_padding += int((microbatch["bytes"] == 0).sum())
                num_all += microbatch["bytes"].numel()
    return sum(losses[-50:]) / len(losses[-50:]), num_padding / num_all


if __name__ == "__main__":
    config = OmegaConf.merge(OmegaConf.load(Path(__file__).with_name("train.yaml")), OmegaConf.from_cli())
    print("loss {:.2f}; {:.1%} of what the model reads is padding".format(*main(config)))
