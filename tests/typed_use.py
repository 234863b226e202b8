"""What a type checker makes of a user's code: read by scripts/check_types.py, never run."""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Iterator
from typing import Any, assert_type

import torch
from torch.utils.data import DataLoader

from fkat_data import DataLoaderFactory, Shard, ShardedDataLoader
from fkat_data.datasets import PackedDataset, PaddingCollate, ParquetDataset, TarDataset, TokenBudgetBatchSampler
from fkat_data.mixing import DictDataLoader, RoundRobin
from fkat_data.streaming import StreamingDataset

Sample = dict[str, torch.Tensor]


def microbatches(shard: Shard) -> list[Sample]:
    return [{"name": torch.tensor(len(shard))}]


def loader_of(dataset: Any, **options: Any) -> DataLoader[Sample]:
    return DataLoader(dataset, **options)


with ShardedDataLoader(7, ["a", "b"], microbatches) as loader:
    assert_type(loader, ShardedDataLoader[Sample])
    assert_type(iter(loader), Iterator[Sample])
    assert_type(loader.load_batch_sync(), Sample)
    for microbatch in loader:
        assert_type(microbatch["name"], torch.Tensor)

# A DataLoader's own type argument is that of its dataset's samples: what it yields is not known.
plain = DataLoaderFactory(ParquetDataset, batch_size=4)
assert_type(plain, DataLoaderFactory[Any])
assert_type(next(iter(ShardedDataLoader(7, ["a"], plain))), Any)
declared: ShardedDataLoader[Sample] = ShardedDataLoader(7, ["a"], plain)
assert_type(next(iter(declared)), Sample)


def rows(dataset: Any, **_: Any) -> list[Sample]:
    return list(dataset)


made = DataLoaderFactory(ParquetDataset, dataloader_generator=rows)
assert_type(ShardedDataLoader(7, ["a"], made), ShardedDataLoader[Sample])

# A word that is misspelt is an error. Each comment is one, too, where there is no error.
ShardedDataLoader(7, ["a"], plain, on_shard_error="ignore")  # pyright: ignore[reportArgumentType]
ShardedDataLoader(7, ["a"], plain, start_method="forkserver")  # pyright: ignore[reportArgumentType]
TokenBudgetBatchSampler([1], 4, too_long="cut")  # pyright: ignore[reportArgumentType]
PackedDataset([torch.ones(1)], 4, too_long="cut")  # pyright: ignore[reportArgumentType]
PaddingCollate(0, padding_side="top")  # pyright: ignore[reportArgumentType]
TarDataset("a.tar", decode={"jpg": "picture"})  # pyright: ignore[reportArgumentType]
DictDataLoader({"a": loader}, RoundRobin(["a"]), on_exhausted="end")  # pyright: ignore[reportArgumentType]
StreamingDataset(local="a", shuffle_algo="py1")  # pyright: ignore[reportArgumentType]
StreamingDataset(local="a", batching_method="balanced")  # pyright: ignore[reportArgumentType]
StreamingDataset(local="a", partition_algo="strict")  # pyright: ignore[reportArgumentType]
StreamingDataset(local="a", sampling_method="random")  # pyright: ignore[reportArgumentType]
