"""What documents take for granted: a loader, a training step, a small dataset."""

import torch

import fkat_data
from fkat_data.streaming import MDSWriter

SHARDS = ["0", "100", "200", "300"]


class Numbers(torch.utils.data.Dataset):
    def __init__(self, shard):
        self.start = int(shard)

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"number": torch.tensor(self.start + index)}


class Lines(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.arange(1 + index % 7)

    def sort_key(self, index):
        return 1 + index % 7


factory = fkat_data.DataLoaderFactory(Numbers, batch_size=10)
made = []


def ShardedDataLoader(*arguments, **options):  # noqa: N802 - stands for the class, and fills in what a document leaves out
    arguments = arguments if arguments and arguments != (...,) else (7, SHARDS, factory)
    made.append(fkat_data.ShardedDataLoader(*arguments, **options))
    return made[-1]


def train(microbatch):
    assert microbatch["number"].numel() == 10


def write_numbers(out, count=1000):
    with MDSWriter(out=out, columns={"number": "int", "text": "str"}) as writer:
        for number in range(count):
            writer.write({"number": number, "text": f"sample {number}"})
