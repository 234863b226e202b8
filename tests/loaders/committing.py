"""Loaders whose microbatches the caller commits, and a model of them: plain lists."""

import json
import random
import tempfile
from functools import cache

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from fkat_data import DataLoader, DistributedDataParallelShardSampler, ShardedDataLoader
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

COUNT = 37


class Numbers(Dataset):
    """Each item is its number, and one that was drawn."""

    def __init__(self, first=0, count=COUNT):
        self.first, self.count = first, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor([self.first + index, int(torch.randint(0, 1 << 30, ()))])


class Drawn:
    """A sampler of the user's, without a state."""

    def __len__(self):
        return COUNT

    def __iter__(self):
        return iter(torch.randperm(COUNT).tolist())


class DrawnStream(StreamingDataset):
    def get_item(self, index):
        return {"number": super().get_item(index)["number"], "drawn": int(torch.randint(0, 1 << 30, ()))}


def twice(samples):
    return [sample for sample in samples for _ in range(2)]


def of_shard(shard):
    return TorchDataLoader(Numbers(shard * 100, 3 + shard % 4), batch_size=2)


@cache
def written():
    folder = tempfile.mkdtemp()
    with MDSWriter(out=folder, columns={"number": "int"}, size_limit=64 + 5 * 12) as writer:
        for number in range(COUNT):
            writer.write({"number": number})
    return folder


def sharded(num_ranks=1, rank=0, **how):
    sampler = [1, 5, 2, 7, 3]
    is_dealt = how.pop("is_dealt", False)
    if num_ranks > 1 or is_dealt:
        sampler = DistributedDataParallelShardSampler(sampler, num_ranks, rank, drop_last=False)
    if not how.pop("num_workers", 0):
        how["multiprocessing"] = False
    return ShardedDataLoader(3, sampler, of_shard, **how)


def dealt(loader, num_ranks, rank):
    loader.deal_out(num_ranks, rank)
    return loader


def stream(kind=StreamingDataset):
    return kind(local=written(), batch_size=3, shuffle=True, shuffle_seed=5)


# Of each: what makes it, and whether its ranks are made by the loader's arguments.
FACES = {
    "shards": sharded,
    "shuffled": lambda num_ranks=1, rank=0, **how: dealt(
        DataLoader(Numbers(), 3, shuffle=True, seed=3, **how), num_ranks, rank
    ),
    "drawn": lambda num_ranks=1, rank=0, **how: dealt(
        DataLoader(Numbers(), 3, sampler=Drawn(), seed=3, **how), num_ranks, rank
    ),
    "windows": lambda **how: DataLoader(Numbers(), 3, shuffle=True, seed=3, window_fn=twice, window_size=4, **how),
    "drawn windows": lambda **how: DataLoader(
        Numbers(), 3, sampler=Drawn(), seed=3, window_fn=twice, window_size=4, **how
    ),
    "stream": lambda **how: StreamingDataLoader(stream(), **how),
    "stream of samples": lambda **how: DataLoader(stream(DrawnStream), 3, **how),
    "windows of a stream": lambda **how: DataLoader(stream(), 3, window_fn=twice, window_size=4, **how),
}
ELASTIC = ("shards", "shuffled", "drawn")


def plain(microbatch):
    return str(microbatch)


@cache
def reference(face, num_epochs):
    """Return the microbatches of some epochs, as the loader gives them that commits by delivery."""
    loader = FACES[face]()
    return [[plain(each) for each in loader] for _ in range(num_epochs)]


class Walk:
    """Delivers, commits, releases, saves and loads at random, and says what was committed."""

    def __init__(self, face, seed, num_epochs, hows=({},), **commit):
        self.face, self.num_epochs, self.hows = face, num_epochs, hows
        self.rng = random.Random(seed)
        self.commit = {"commit": "manual", **commit}
        self.loader = self.made()
        self.outstanding, self.waiting, self.committed = [], [], []
        self.position = (0, 0)

    def made(self):
        return FACES[self.face](**self.commit, **self.rng.choice(self.hows))

    def settle(self):
        ticket = self.rng.choice(self.outstanding)
        self.outstanding.remove(ticket)
        if self.rng.random() < 0.7:
            self.loader.commit(ticket)
            self.committed.append(ticket)
        else:
            self.loader.release(ticket)
            self.waiting.append(ticket)

    def deliver(self, microbatch):
        ticket, expected = self.loader.ticket, reference(self.face, self.num_epochs + 1)
        assert plain(microbatch) == expected[ticket.epoch][ticket.step], ticket
        if self.waiting:  # what was released comes before what is new, in the order of its release
            assert ticket == self.waiting.pop(0)
        else:
            assert ticket[:2] == self.position
            is_last = ticket.step + 1 == len(expected[ticket.epoch])
            self.position = (ticket.epoch + 1, 0) if is_last else (ticket.epoch, ticket.step + 1)
        self.outstanding.append(ticket)
        assert self.loader.num_outstanding == len(self.outstanding)

    def reload(self):
        state = json.loads(json.dumps(self.loader.local_state_dict()))
        if self.rng.random() < 0.5:
            self.loader.close()
            self.loader = self.made()
        self.loader.load_state_dict(state)
        self.waiting = sorted([*self.waiting, *self.outstanding])
        self.outstanding = []

    def go(self):
        num_microbatches = sum(map(len, reference(self.face, self.num_epochs + 1)[: self.num_epochs]))
        for _ in range(200):
            is_left = False
            for microbatch in self.loader:
                self.deliver(microbatch)
                while self.outstanding and self.rng.random() < 0.5:
                    self.settle()
                if self.rng.random() < 0.1:
                    is_left = True
                    break
            if is_left or self.rng.random() < 0.3:
                self.reload()
            while self.outstanding:
                self.settle()
            if len(self.committed) >= num_microbatches and not self.waiting:
                break
        self.loader.close()
        return sorted(ticket[:2] for ticket in self.committed)


def numbers_of(face, num_epochs):
    return [(epoch, step) for epoch in range(num_epochs) for step in range(len(reference(face, num_epochs + 1)[epoch]))]
