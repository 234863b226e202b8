"""The names of ranges by which people's tools, such as those of torch.profiler, find a loader's time."""

import re

import pytest
import torch
from torch.utils.data import IterableDataset

from fkat_data import DataLoader, ShardedDataLoader
from fkat_data.mixing import DictDataLoader, RoundRobin
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


class Own(DataLoader):
    pass


def streaming(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"x": "int"}) as writer:
        for index in range(6):
            writer.write({"x": index})
    return StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=2), batch_size=2)


def sharded(tmp_path, **options):
    return ShardedDataLoader(0, ["a"], lambda shard: list(range(3)), multiprocessing=False, **options)


def names_of(loader):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        count = len(list(loader))
    return count, {event.key: event.count for event in profile.key_averages()}


TORCHS = "_SingleProcessDataLoaderIter"
KINDS = {
    "DataLoader": (lambda path: DataLoader(range(6), batch_size=2), TORCHS, "DataLoader"),
    "an iterable dataset": (lambda path: DataLoader(Stream(), batch_size=2), TORCHS, "DataLoader"),
    "a subclass": (lambda path: Own(range(6), batch_size=2), TORCHS, "DataLoader"),
    "threads": (
        lambda path: DataLoader(range(6), batch_size=2, num_workers=1, workers="threads"),
        "_MultiProcessingDataLoaderIter",
        "DataLoader",
    ),
    "StreamingDataLoader": (streaming, TORCHS, "StreamingDataLoader"),
    "ShardedDataLoader": (sharded, "ShardedDataLoader", "ShardedDataLoader"),
    "DictDataLoader": (
        lambda path: DictDataLoader({"a": sharded(path)}, RoundRobin(["a"]), key=None),
        "DictDataLoader",
        "ShardedDataLoader",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_call_of_next_has_the_range_that_tools_look_for(kind, tmp_path):
    make, iterator, loader = KINDS[kind]
    count, seen = names_of(make(tmp_path))
    assert count in (1, 3)
    assert seen[f"enumerate(DataLoader)#{iterator}.__next__"] == count + 1  # the last one raises StopIteration
    assert all(re.fullmatch(r"enumerate\(DataLoader\)#\w+\.__next__", name) for name in seen if "enumerate" in name)
    assert f"{loader}.wait" in seen
    others = {"DataLoader", "StreamingDataLoader", "ShardedDataLoader"} - {loader}
    assert not {f"{other}.{action}" for other in others for action in ("wait", "move", "decode")} & set(seen)


def test_the_name_is_torchs_own():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        list(torch.utils.data.DataLoader(range(6)))
    expected = {event.key for event in profile.key_averages() if "enumerate" in event.key}
    _, seen = names_of(DataLoader(range(6)))
    assert expected == {name for name in seen if "enumerate" in name}


def test_with_worker_processes_the_name_is_torchs_of_several_processes(processes):
    with DataLoader(range(6), batch_size=2, num_workers=1, timeout=600) as loader:  # workers alone make what is decoded
        count, seen = names_of(loader)
    assert seen["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"] == count + 1
    assert {"DataLoader.wait", "DataLoader.decode"} <= set(seen)


def test_a_profiler_of_the_users_gets_the_names_of_the_loaders_class():
    class Listening:
        def __init__(self):
            self.started = set()

        def start(self, name):
            self.started.add(name)

        def stop(self, name):
            pass

    profiler = Listening()
    list(DataLoader(range(6), profiler=profiler))
    assert {"DataLoader.wait", "DataLoader.produce"} <= profiler.started
    assert all(name.startswith("DataLoader.") for name in profiler.started)
