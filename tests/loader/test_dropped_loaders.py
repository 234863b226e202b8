"""A loader that works in the caller's thread and is dropped leaves nothing behind, not even until garbage is collected."""

import gc
import weakref

import pytest
from test_walk import Iterated, stored

from fkat_data import DataLoader, ShardedDataLoader
from fkat_data.streaming import StreamingDataLoader


class Numbers(list):
    """A dataset that can be referred to weakly."""


FACES = {
    "shards": (
        lambda folder: lambda shard: DataLoader(range(8), batch_size=4),
        lambda factory: ShardedDataLoader(0, ["a"], factory, multiprocessing=False),
    ),
    "indices": (lambda folder: Numbers(range(8)), lambda dataset: DataLoader(dataset, batch_size=4)),
    "iterable": (lambda folder: Iterated(), lambda dataset: DataLoader(dataset, batch_size=4)),
    "stream": (stored, lambda dataset: StreamingDataLoader(dataset, batch_size=4)),
}


@pytest.mark.parametrize("face", FACES)
def test_the_data_of_a_dropped_loader_are_gone_at_once(face, tmp_path):
    make, load = FACES[face]
    data = make(tmp_path / "data")
    loader, known = load(data), weakref.ref(data)
    del data
    gc.collect()
    gc.disable()
    try:
        batches = iter(loader)
        next(batches)
        del batches, loader
        assert known() is None
    finally:
        gc.enable()
