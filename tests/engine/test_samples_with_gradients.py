"""Samples that require grad: each case ends as with torch, where torch's loop ends."""

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader


def leaf():
    return torch.ones(2, requires_grad=True)


SAMPLES = {
    "leaf": leaf,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "of a graph": lambda: leaf() * 2,
    "view": lambda: torch.ones(4, requires_grad=True)[:2],
    "large": lambda: torch.ones(100_000, requires_grad=True) * 2,
    "in a dict": lambda: {"a": leaf() * 2, "b": 1},
    "leaf in a tuple": lambda: (leaf(), 1),
    "detached": lambda: torch.zeros(2) + (leaf() * 2).detach(),
}
LEAVES = {"leaf", "parameter", "leaf in a tuple", "detached"}
WAYS = {
    "collated": {"batch_size": 2},
    "as it is": {"batch_size": None},
    "listed": {"batch_size": 2, "collate_fn": list},
}


class Items(Dataset):
    def __init__(self, name):
        self.make = SAMPLES[name]

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.make()


class Stream(Items, IterableDataset):
    def __iter__(self):
        return (self.make() for _ in range(2))


def shown(value):
    if isinstance(value, torch.Tensor):
        return value.tolist(), type(value), value.requires_grad, value.is_leaf
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    return [shown(each) for each in value] if isinstance(value, (list, tuple)) else value


def outcome(loader):
    try:
        return shown(next(iter(loader)))
    except RuntimeError as error:
        return RuntimeError, " ".join([str(error), *getattr(error, "__notes__", [])])


def sharded(name, **options):
    factory = DataLoaderFactory(Items, dataloader_generator=lambda *given, **_: TorchDataLoader(*given, **options))
    return ShardedDataLoader(0, [name], factory)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SAMPLES)
def test_without_workers_they_keep_their_graph(name, way):
    due = outcome(TorchDataLoader(Items(name), **WAYS[way]))
    assert outcome(DataLoader(Items(name), **WAYS[way])) == due
    with DataLoader(Items(name), num_workers=1, workers="threads", **WAYS[way]) as loader:
        assert outcome(loader) == due


@pytest.mark.parametrize("kind", [Items, Stream])
@pytest.mark.parametrize("way", WAYS)
def test_no_graph_leaves_a_worker_in_silence(kind, way, processes):
    for name in SAMPLES:
        options = WAYS[way]
        with DataLoader(kind(name), num_workers=1, **options) as loader:
            found = outcome(loader)
        if name == "detached" or (name in LEAVES and way != "collated"):
            assert found == outcome(TorchDataLoader(kind(name), **options)), name
        else:
            assert found[0] is RuntimeError, name
            assert "detach()" in found[1], name


def test_no_graph_leaves_a_worker_of_shards_in_silence(processes):
    for way, options in WAYS.items():
        for name in ("leaf", "of a graph", "large"):
            with sharded(name, **options) as loader:
                found = outcome(loader)
            assert (found[0] is RuntimeError) == (name not in LEAVES or way == "collated"), (way, name)
