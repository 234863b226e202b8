"""Small datasets, and what is read of them; spawned workers import this module too."""

from itertools import chain
from pathlib import Path

import numpy as np
import torch

from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset, World

COLUMNS = {"number": "int", "text": "str", "row": "ndarray:int16:3", "ragged": "ndarray:uint8"}


def sample(number):
    return {
        "number": number,
        "text": f"sample {number}",
        "row": np.arange(number, number + 3, dtype=np.int16),
        "ragged": np.arange(1 + number % 3, dtype=np.uint8) + 1,
    }


def write(directory, count, *, first=0, columns=("number", "text"), per_shard=10, **options):
    """A dataset of the numbers from ``first`` on."""
    kept = {name: COLUMNS[name] for name in columns}
    size = {"number": 8, "text": 4 + 18, "row": 6, "ragged": 12}
    limit = 300 + per_shard * (4 + sum(size[name] for name in columns)) if per_shard else None
    with MDSWriter(out=str(directory), columns=kept, size_limit=limit, **options) as writer:
        for number in range(first, first + count):
            writer.write({name: sample(number)[name] for name in columns})
    return str(directory)


def world(num_nodes=1, ranks_per_node=1, rank=0):
    return World(num_nodes, ranks_per_node, 1, rank)


def worlds(num_nodes, ranks_per_node):
    """The world as each rank sees it."""
    return [world(num_nodes, ranks_per_node, rank) for rank in range(num_nodes * ranks_per_node)]


def numbers(batches):
    """The numbers in each batch."""
    return [batch["number"].tolist() for batch in batches]


def global_batches(num_nodes, ranks_per_node, *, state=None, **options):
    """What all ranks of a world read of an epoch, step by step, sorted within a step; and the state after it."""
    read = []
    for rank_world in worlds(num_nodes, ranks_per_node):
        loader = StreamingDataLoader(StreamingDataset(world=rank_world, **options))
        if state is not None:
            loader.load_state_dict(state)
        read.append(numbers(loader))
    counts = {len(batches) for batches in read}
    assert len(counts) == 1, "ranks have different numbers of batches"
    return [sorted(chain.from_iterable(step)) for step in zip(*read, strict=True)]


def shards_directory():
    return Path(__file__).parents[1] / "golden" / "streaming" / "shards"


def same(first, second):
    """Whether two batches are equal, types included."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    return type(first) is type(second) and first == second
