"""What works on Windows, and what is refused there in one line: on Linux without what Windows does not have."""

from pathlib import Path

PROGRAM = """
import sys
import torch
from fkat_data import ConfigurationError, DataLoader, DataLoaderFactory, ShardedDataLoader, ShuffledShardSampler, item_generators
from fkat_data.configuration import instantiate
import fkat_data.datasets
from fkat_data.samplers import SequenceShardSampler

assert sys.platform == "win32"

class Numbers(torch.utils.data.Dataset):
    def __init__(self, shard):
        self.start = int(shard)
    def __len__(self):
        return 20
    def __getitem__(self, index):
        return {"number": torch.tensor(self.start + index), "noise": torch.rand(2)}

def loader(**options):
    shards = ShuffledShardSampler(SequenceShardSampler(["0", "100", "200"]), seed=7)
    return ShardedDataLoader(7, shards, DataLoaderFactory(Numbers, batch_size=4), **options)

def content(microbatches):
    return [[microbatch[name].tolist() for name in ("number", "noise")] for microbatch in microbatches]

with loader(multiprocessing=False) as whole:
    expected = content(whole)
assert len(expected) == 15
with loader(multiprocessing=False, device="cpu", trace=sys.argv[1]) as first:
    iterator = iter(first)
    begun = content(next(iterator) for _ in range(6))
    state = first.state_dict()
    print(first.statistics().num_cpus)
with loader(multiprocessing=False) as second:
    second.load_state_dict(state)
    assert begun + content(second) == expected

class Drawn(Numbers):
    def __getitem__(self, index):
        return {"number": torch.tensor(self.start + index), "noise": item_generators().python.random()}

def drawn(**options):
    with ShardedDataLoader(7, ["0", "100"], DataLoaderFactory(Drawn, batch_size=4), **options) as loader:
        return [str(microbatch) for microbatch in loader]

threads = drawn(workers="threads", num_workers_per_shard=3, num_shard_prefetches=1)
assert len(threads) == 10 and threads == drawn(multiprocessing=False)
with DataLoader(Drawn("0"), 4, shuffle=True, num_workers=2, workers="threads") as mapped:
    state = (next(iter(mapped)), mapped.state_dict())[1]
    mapped.load_state_dict(state)
    assert len(list(mapped)) == 4
for options in ({}, {"num_workers_per_shard": 2}, {"start_method": "spawn"}):
    try:
        loader(**options)
    except ConfigurationError as error:
        print(error)
try:
    import fkat_data.streaming
except ImportError as error:
    print(error)
"""


def test_one_process_with_threads_is_enough_and_all_else_is_refused_in_one_line(run_script, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parent / "like_windows")
    lines = run_script(PROGRAM, str(tmp_path / "run.json")).stdout.splitlines()
    assert int(lines[0]) >= 1
    assert len(set(lines[1:4])) == 1
    assert len(lines) == 5
    assert lines[1].startswith("multiprocessing = True: expected False, or workers='threads', on Windows")
    assert lines[4].startswith("fkat_data.streaming needs Linux or macOS")
