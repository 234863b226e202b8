"""Shards that are begun, and files of each format that hold twelve samples with a word, for tests that write them again."""

import io
import json
import tarfile
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq

from fkat_data import DistributedDataParallelShardSampler, ShardedDataLoader
from fkat_data.datasets import JsonDataset, ParquetDataset, TarDataset

NUM_SAMPLES = 12


def write_lines(path, word):
    path.write_text("".join(json.dumps({"n": n, "word": word}) + "\n" for n in range(NUM_SAMPLES)), "utf-8")


def write_rows(path, word, count=NUM_SAMPLES):
    pq.write_table(pa.table({"n": range(count), "word": [word] * count}), path, row_group_size=4)


def write_members(path, word, count=NUM_SAMPLES):
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            member = tarfile.TarInfo(f"{number:03}.txt")
            member.size = len(word)
            archive.addfile(member, io.BytesIO(word.encode()))


FORMATS = [(JsonDataset, write_lines), (ParquetDataset, write_rows), (TarDataset, write_members)]


def saved_after(num_taken, shards, factory, *, multiprocessing=False, **options):
    """Return the state, through JSON, of a loader that was left after so many microbatches."""
    with ShardedDataLoader(0, shards, factory, multiprocessing=multiprocessing, **options) as loader:
        list(islice(loader, num_taken))
        return json.loads(json.dumps(loader.local_state_dict()))


def left(state, shards, factory, *, multiprocessing=False, **options):
    """Return the microbatches of the epoch that a state leaves."""
    with ShardedDataLoader(0, shards, factory, multiprocessing=multiprocessing, **options) as loader:
        loader.load_state_dict(state)
        return list(loader)


def saved_by_two_ranks(num_taken, shards, factory):
    """Return the state of two ranks that have each taken so many microbatches, and a sampler for one rank."""
    samplers = [DistributedDataParallelShardSampler(shards, dp_size=2, dp_rank=rank) for rank in range(2)]
    states = [saved_after(num_taken, sampler, factory, dp_rank=rank) for rank, sampler in enumerate(samplers)]
    return ShardedDataLoader.merge_state_dicts(states), DistributedDataParallelShardSampler(
        shards, dp_size=1, dp_rank=0
    )
