"""The loader and the streaming dataset without what Linux alone has: what macOS runs, run here."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import leavings
import psutil
import pytest
from interpreters import environment_of
from patience import Patience
from programs import still_alive

pytestmark = pytest.mark.usefixtures("processes")

LOADER = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader
from own_workers import worker_pids
from fkat_data import ConfigurationError, ShardedDataLoader, WorkerStalledError

assert sys.platform == "darwin" and not hasattr(os, "memfd_create")

class Samples(torch.utils.data.Dataset):
    def __init__(self, shard):
        self.start = int(shard)
        open("here").close()  # the folder that the trainer was in
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if self.start == 900:
            time.sleep(600)
        return {"large": torch.full((50_000,), self.start + index), "noise": torch.rand(2)}

def factory(shard):
    return DataLoader(Samples(shard), batch_size=4)

def loader(shards=("100", "200", "300"), **options):
    return ShardedDataLoader(3, list(shards), factory, **options)

def content(microbatch):
    return microbatch["large"][:, 0].tolist(), microbatch["noise"].tolist()

def read(**options):
    with loader(**options) as whole:
        return [content(microbatch) for microbatch in whole]

open("here", "w").close()
expected = read(multiprocessing=False)
assert len(expected) == 30
assert read(num_shard_prefetches=1, num_workers_per_shard=2) == expected

# A worker that is killed is replaced, or is an error at once.
with loader(max_worker_restarts=1) as one:
    iterator = iter(one)
    begun = [next(iterator) for _ in range(3)]
    os.chdir("/")
    os.kill(worker_pids()[0], signal.SIGKILL)
    assert [*map(content, begun), *map(content, iterator)] == expected

# What a worker does is seen from outside.
os.chdir(sys.argv[1])
stacks = []
while not any("__getitem__" in stack for stack in stacks):
    # On a busy machine, a worker may import torch for longer.
    assert len(stacks) < 5, stacks
    with loader(["900"], stall_timeout_s=10.0 * (1 + len(stacks))) as slow:
        try:
            next(iter(slow))
        except WorkerStalledError as error:
            stacks.append(error.stack)

try:
    loader(start_method="template")
except ConfigurationError as error:
    assert "'spawn' on macOS" in str(error)
print("done")
"""

KILLED = """
import subprocess, sys, time
import torch
from fkat_data import ShardedDataLoader

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index == 2:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        if index > 4:
            time.sleep(600)
        return torch.zeros(50_000)

def factory(shard):
    return torch.utils.data.DataLoader(Samples(), batch_size=2)

loader = ShardedDataLoader(0, ["a", "b", "c"], factory, num_shard_prefetches=2)
iterator = iter(loader)
kept = [next(iterator), next(iterator)]
print("ready", flush=True)
time.sleep(600)
"""

STREAMING = """
import sys
import torch
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

def write(folder):
    with MDSWriter(out=folder, columns={"number": "int", "text": "str"}, size_limit=700) as writer:
        for number in range(120):
            writer.write({"number": number, "text": f"sample {number}"})

def dataset(remote, local):
    return StreamingDataset(remote=remote, local=local, shuffle=True, shuffle_seed=5, batch_size=4, cache_limit="6kb")

def numbers(batches):
    return [batch["number"].tolist() for batch in batches]

if __name__ == "__main__":
    assert sys.platform == "darwin"
    folder = sys.argv[1]
    write(folder + "/remote")
    alone = numbers(StreamingDataLoader(dataset(folder + "/remote", folder + "/alone"), batch_size=4))
    assert sorted(sum(alone, [])) == list(range(120))
    options = {"batch_size": 4, "num_workers": 2}
    loader = StreamingDataLoader(dataset(folder + "/remote", folder + "/shared"), **options)
    iterator = iter(loader)
    begun = numbers(next(iterator) for _ in range(11))
    state = loader.state_dict()
    del iterator
    again = StreamingDataLoader(dataset(folder + "/remote", folder + "/shared"), **options)
    again.load_state_dict(state)
    assert sorted(sum(begun + numbers(again), [])) == list(range(120))
    assert len(numbers(again)) == 30  # the next epoch
    options["multiprocessing_context"] = "spawn"
    spawned = StreamingDataLoader(dataset(folder + "/remote", folder + "/shared"), **options)
    for _ in range(2):
        assert sorted(sum(numbers(spawned), [])) == list(range(120))
    print("done")
"""


@pytest.fixture
def without_linux(monkeypatch):
    if sys.platform == "linux":
        monkeypatch.syspath_prepend(Path(__file__).parent / "without_linux")


def test_worker_processes_make_the_same_microbatches_and_are_replaced(without_linux, run_script, tmp_path):
    shared_memory = leavings.SharedMemory()
    assert run_script(LOADER, str(tmp_path)).stdout == "done\n"
    assert not shared_memory.left()


def test_a_streaming_dataset_with_a_cache_is_read_by_several_workers_and_resumed(without_linux, run_script, tmp_path):
    assert run_script(STREAMING, str(tmp_path)).stdout == "done\n"


def test_a_killed_trainer_leaves_no_process_and_no_shared_memory(without_linux, tmp_path):
    path = tmp_path / "trainer.py"
    path.write_text(KILLED)
    shared_memory = leavings.SharedMemory()
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True, env=environment_of()) as trainer:
        try:
            assert trainer.stdout.readline() == "ready\n"
            patience = Patience()
            while len(found := psutil.Process(trainer.pid).children(recursive=True)) < 4:
                assert not patience.is_over(), found
                time.sleep(0.05)
        finally:
            trainer.kill()
    try:
        assert not still_alive(found)
        assert not shared_memory.left()
    finally:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
