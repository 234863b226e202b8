"""Loaders whose microbatches a tiny language model takes: a sample's first token and its third are its number."""

import torch

from fkat_data import (
    DataLoader,
    DataLoaderFactory,
    DistributedDataParallelShardSampler,
    ShardedDataLoader,
    ShuffledShardSampler,
)
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

NUM_SHARDS, SHARD_SIZE, BATCH_SIZE = 4, 5, 2
NUM_TOKENS = NUM_SHARDS * SHARD_SIZE


class Rows(torch.utils.data.Dataset):
    """The samples of a shard, and a random token in each."""

    loaded = 0

    def __init__(self, shard):
        self.first = int(shard)

    def __len__(self):
        return SHARD_SIZE

    def __getitem__(self, index):
        Rows.loaded += 1
        return row(self.first + index, int(torch.randint(NUM_TOKENS, ())))


class EndlessLookingRows(torch.utils.data.IterableDataset):
    """The same, without a length."""

    def __init__(self, shard):
        self.rows = Rows(shard)

    def __iter__(self):
        return (self.rows[index] for index in range(len(self.rows)))


class CountedFactory(DataLoaderFactory):
    """Knows how many microbatches a shard has."""

    def num_microbatches(self, shard):
        return -(-SHARD_SIZE // BATCH_SIZE)


class OwnIteration(StreamingDataset):
    """A dataset of streams with an ``__iter__`` of its own."""

    def __iter__(self):
        yield from super().__iter__()


def row(number, drawn):
    tokens = torch.tensor([number, drawn, number])
    return {"input_ids": tokens, "labels": tokens.clone()}


def sharded(dataset=Rows, rank=0, num_ranks=1, **options):
    shards = ShuffledShardSampler([str(shard * SHARD_SIZE) for shard in range(NUM_SHARDS)], seed=3)
    sampler = DistributedDataParallelShardSampler(shards, num_ranks, rank)
    factory = (CountedFactory if dataset is Rows else DataLoaderFactory)(dataset, batch_size=BATCH_SIZE)
    return ShardedDataLoader(3, sampler, factory, **{"multiprocessing": False} | options)


class AllRows(torch.utils.data.IterableDataset):
    """The samples of all shards; a rank's own, in turn."""

    def __init__(self, rank=0, num_ranks=1):
        self.numbers = range(rank, NUM_TOKENS, num_ranks)

    def __iter__(self):
        return (Rows("0")[number] for number in self.numbers)


def rows():
    return torch.utils.data.ConcatDataset([Rows(str(shard * SHARD_SIZE)) for shard in range(NUM_SHARDS)])


def data_loader(**options):
    return DataLoader(rows(), BATCH_SIZE, **{"shuffle": True, "seed": 3} | options)


def distributed(rank=0, num_ranks=1):
    sampler = torch.utils.data.DistributedSampler(rows(), num_ranks, rank, seed=3)
    return data_loader(shuffle=None, sampler=sampler)


def iterable(rank=0, num_ranks=1):
    return DataLoader(AllRows(rank, num_ranks), BATCH_SIZE, seed=3, dp_rank=rank)


def write_streams(folder):
    with MDSWriter(out=str(folder), columns={"number": "int"}) as writer:
        for number in range(NUM_TOKENS):
            writer.write({"number": number})


def streaming(folder, kind=StreamingDataset, **options):
    dataset = kind(local=str(folder), shuffle=True, shuffle_seed=3, batch_size=BATCH_SIZE)
    return StreamingDataLoader(dataset, collate_fn=collate, **options)


def collate(samples):
    rows = [row(sample["number"], 0) for sample in samples]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def numbers(microbatch):
    return microbatch["input_ids"].flatten().tolist()
