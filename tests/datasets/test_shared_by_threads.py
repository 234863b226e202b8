"""Threads that share a dataset read what one alone reads: with ``workers="threads"``."""

import json
import random
import sys
import threading

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_examples import Documents, Keyed

from fkat_data.datasets import (
    BufferSortedDataset,
    DistributedShardedDataset,
    JsonDataset,
    PackedDataset,
    ParquetDataset,
    TokenWindows,
)
from fkat_data.streaming import LocalDataset, MDSWriter


@pytest.fixture(autouse=True)
def switch_interval():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def parquet(folder):
    pq.write_table(pa.table({"x": range(600), "y": map(str, range(600))}), f"{folder}/a.parquet", row_group_size=10)
    return lambda: ParquetDataset(f"{folder}/a.parquet", row_groups_kept=2)


def remote_parquet(folder):
    parquet(folder)
    with fsspec.open(f"memory://{folder}/a.parquet", "wb") as file:
        file.write((folder / "a.parquet").read_bytes())
    return lambda: ParquetDataset(f"memory://{folder}/a.parquet", row_groups_kept=2)


def json_lines(folder):
    (folder / "a.jsonl").write_text("".join(json.dumps({"x": index}) + "\n" for index in range(400)))
    return lambda: JsonDataset(f"{folder}/a.jsonl")


def tokens(folder):
    np.save(folder / "a.npy", np.arange(6_000, dtype=np.int32))
    return lambda: TokenWindows(f"{folder}/a.npy", 10)


def stream(folder):
    with MDSWriter(out=str(folder), columns={"x": "int"}, size_limit=400) as writer:
        for index in range(400):
            writer.write({"x": index})
    return lambda: LocalDataset(str(folder))


def of_shards(folder):
    sizes = {f"{shard:02}": 17 + shard for shard in range(40)}
    params = {key: ([key, size], {}) for key, size in sizes.items()}
    kind = numbered
    return lambda: DistributedShardedDataset(kind, params, rank=0, world_size=1, shuffle=True, shard_sizes=sizes)


def numbered(key, size):
    return [(key, index) for index in range(size)]


def lengths():
    return random.Random(0).choices(range(1, 30), k=400)


def in_buffers(folder):
    return lambda: BufferSortedDataset(Keyed(lengths()), 20, 4, init_seed=1)


def in_drawn_buffers(folder):
    """In the order of another library's generator, which draws one buffer after another."""

    def made():
        dataset = BufferSortedDataset(Keyed(lengths()), 20, 4, init_seed=1)
        version, internal, gauss = random.Random(5).getstate()
        order = {"random_state": [version, list(internal), gauss], "buffer": -1, "offsets": [], "epoch": 0}
        dataset.load_state_dict(dataset.state_dict() | {"drawn_order": order})
        return dataset

    return made


def packed(folder):
    return lambda: PackedDataset(Documents(lengths()), 64, window_size=10, shuffle=True, seed=1)


def by_index(dataset, indices):
    return [repr(dataset[index]) for index in indices]


def together(dataset, indices):
    found = []
    for start in range(0, len(indices), 7):
        some = indices[start : start + 7]
        found += map(
            repr, dataset.__getitems__(some) if hasattr(dataset, "__getitems__") else [dataset[i] for i in some]
        )
    return found


@pytest.mark.parametrize("read", [by_index, together])
@pytest.mark.parametrize(
    "prepare",
    [parquet, remote_parquet, json_lines, tokens, stream, of_shards, in_buffers, in_drawn_buffers, packed],
)
def test_threads_that_share_a_dataset_read_what_one_alone_reads(prepare, read, tmp_path, some):
    make = prepare(tmp_path)
    alone = make()
    # As threads of a worker do: near one another, one a little ahead of the other.
    parts = [range(start, min(start + 50, len(alone))) for start in some(range(0, len(alone), 50))]
    expected = {index: text for part in parts for index, text in zip(part, by_index(alone, part), strict=True)}
    shared, wrong = make(), []

    def work(number):
        order = [index for part in parts for index in random.Random(f"{number} {part.start}").sample(part, len(part))]
        try:
            found = read(shared, order)
            wrong.extend(index for index, text in zip(order, found, strict=True) if text != expected[index])
        except Exception as error:  # noqa: BLE001 - raised in the test
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
