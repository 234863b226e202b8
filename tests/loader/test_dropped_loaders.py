"""A loader that works in the caller's thread and is dropped leaves nothing behind, not even until garbage is collected."""

import gc
import weakref

import pytest
import torch

from fkat_data import DataLoader, ShardedDataLoader
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


class Iterated(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from range(8)


class Factory:
    def __call__(self, shard):
        return DataLoader(Numbers(), batch_size=4)


def streamed(folder):
    with MDSWriter(out=str(folder), columns={"x": "int"}) as writer:
        for number in range(8):
            writer.write({"x": number})
    return StreamingDataset(local=str(folder), batch_size=4)


FACES = {
    "shards": (lambda folder: Factory(), lambda factory: ShardedDataLoader(0, ["a"], factory, multiprocessing=False)),
    "indices": (lambda folder: Numbers(), lambda dataset: DataLoader(dataset, batch_size=4)),
    "iterable": (lambda folder: Iterated(), lambda dataset: DataLoader(dataset, batch_size=4)),
    "stream": (streamed, lambda dataset: StreamingDataLoader(dataset, batch_size=4)),
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
