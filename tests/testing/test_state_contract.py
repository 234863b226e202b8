"""Our own stateful objects keep the contract; one that does not is found out."""

import pytest
import torch

from fkat_data import DataLoaderFactory, DistributedDataParallelShardSampler, ShardedDataLoader, ShuffledShardSampler
from fkat_data.datasets import ResumableSequentialSampler
from fkat_data.samplers import SequenceShardSampler
from fkat_data.streaming import JSONWriter, StreamingDataLoader, StreamingDataset
from fkat_data.testing.contracts import StateContract

SHARDS = [f"shard-{index}" for index in range(5)]


class TestIndices(StateContract):
    def make(self):
        return ResumableSequentialSampler(range(7), start_index=2)


class TestShards(StateContract):
    def make(self):
        return SequenceShardSampler(SHARDS)


class TestShuffledShards(StateContract):
    def make(self):
        return ShuffledShardSampler(SequenceShardSampler(SHARDS), seed=3)


class TestSharesOfRanks(StateContract):
    def make(self):
        return DistributedDataParallelShardSampler(ShuffledShardSampler(SequenceShardSampler(SHARDS), 3), 2, 1)


class Noisy(torch.utils.data.Dataset):
    def __init__(self, shard):
        self.shard = int(shard[6:])

    def __len__(self):
        return 3 + self.shard % 2

    def __getitem__(self, index):
        return {"place": 10 * self.shard + index, "noise": torch.rand(2)}


class TestLoader(StateContract):
    num_items = 30

    def make(self):
        return ShardedDataLoader(
            seed=7,
            shard_sampler=ShuffledShardSampler(SequenceShardSampler(SHARDS), 3),
            dataloader_factory=DataLoaderFactory(Noisy, batch_size=2),
            num_shard_prefetches=1,
            multiprocessing=False,
        )


class TestStream(StateContract):
    num_items = 14

    @pytest.fixture(autouse=True)
    def _data(self, tmp_path):
        self.folder = tmp_path / "data"
        with JSONWriter(out=str(self.folder), columns={"number": "int"}, size_limit=200) as writer:
            for number in range(23):
                writer.write({"number": number})

    def make(self):
        dataset = StreamingDataset(
            local=self.folder, batch_size=4, shuffle=True, shuffle_algo="block", shuffle_block_size=10
        )
        return StreamingDataLoader(dataset, batch_size=4)
