"""What makes microbatches in tests of a loader's start: each notes who makes it, and workers start when they may."""

import os
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, get_worker_info

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

__all__ = ["FACES", "Gate", "Numbers", "from_caller", "made_with"]


class Gate:
    """Lets no worker open what it is sent before ``open`` is called; in the process of the test, it is open.

    Args:
        folder: Where workers see that it is open, and note what they make.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.pid = os.getpid()

    def __setstate__(self, state):
        vars(self).update(state)
        while os.getpid() != self.pid and not (self.folder / "open").exists():
            time.sleep(0.01)

    def open(self):
        (self.folder / "open").touch()

    def note(self, index):
        """Note that a worker makes an item."""
        if os.getpid() != self.pid:
            (self.folder / f"made by a worker {index}").touch()

    def is_passed(self):
        """Return whether a worker has made anything."""
        return any(self.folder.glob("made by a worker *"))


class Numbers(Dataset):
    """Numbers with random draws, and with what the process and the worker are that make them."""

    def __init__(self, gate=None, count=24):
        self.gate = gate
        self.count = count
        self.weights = torch.arange(100_000)  # travels beside the pickle

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.gate is not None:
            self.gate.note(index)
        # Nothing of this may reach the program's dataset.
        self.weights[index] = -1
        self.newest = index
        info = get_worker_info()
        worker = -1 if info is None else info.id
        return index, torch.rand(2), np.random.rand(), os.getpid(), worker


class Collate:
    """Stacks samples of a stream, and notes which process does it."""

    def __init__(self, gate):
        self.gate = gate

    def __call__(self, samples):
        if self.gate is not None:
            self.gate.note(samples[0]["number"])
        numbers = torch.tensor([int(sample["number"]) for sample in samples])
        return numbers, torch.rand(2), np.random.rand(), torch.tensor([os.getpid()] * len(samples)), None


def of_indices(gate, folder, num_workers, start_method="template", **options):
    options |= {"num_workers": num_workers, "start_method": start_method}
    return DataLoader(Numbers(gate), batch_size=4, shuffle=True, seed=5, **options)


def of_stream(gate, folder, num_workers, start_method="template", **options):
    options |= {"num_workers": num_workers, "start_method": start_method}
    if not (Path(folder) / "data").exists():
        with MDSWriter(out=str(Path(folder) / "data"), columns={"number": "int"}) as writer:
            for number in range(24):
                writer.write({"number": number})
    dataset = StreamingDataset(local=str(Path(folder) / "data"), shuffle=True, batch_size=4)
    return StreamingDataLoader(dataset, batch_size=4, collate_fn=Collate(gate), **options)


class Shards:
    """A factory of a user's own: each shard is a number, and has two microbatches."""

    def __init__(self, gate):
        self.gate = gate

    def __call__(self, shard):
        return TorchDataLoader(Numbers(self.gate, 8), batch_size=4, shuffle=True)


def of_shards(gate, folder, num_workers, **options):
    if "timeout" in options:
        options["stall_timeout_s"] = options.pop("timeout")
    return ShardedDataLoader(
        5,
        ["a", "b", "c"],
        Shards(gate),
        num_shard_prefetches=1,
        num_workers_per_shard=max(1, num_workers),
        multiprocessing=num_workers > 0,
        **options,
    )


def of_shards_ahead(gate, folder, num_workers, **options):
    factory = DataLoaderFactory(ShardDataset(gate), batch_size=4)
    return ShardedDataLoader(
        5, ["a", "b", "c"], factory, num_shard_prefetches=num_workers, multiprocessing=num_workers > 0, **options
    )


class ShardDataset:
    """Makes the dataset of a shard."""

    def __init__(self, gate):
        self.gate = gate

    def __call__(self, shard):
        return Numbers(self.gate, 8)


FACES = {
    "indices": of_indices,
    "stream": of_stream,
    "shards": of_shards,
    "shards ahead": of_shards_ahead,
}
"""Makes a loader of each kind, of six microbatches, from a gate, a folder, and the number of workers."""


def made_with(microbatch):
    """Return what a microbatch has that does not depend on who makes it."""
    index, drawn, numpy_drawn, *_ = microbatch
    return index.tolist(), drawn.tolist(), torch.as_tensor(numpy_drawn).tolist()


def from_caller(microbatch):
    """Return whether this process has made a microbatch."""
    return set(microbatch[3].tolist()) == {os.getpid()}
