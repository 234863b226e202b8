"""A trainer that is killed takes every process below it along, whatever they are doing at that moment."""

import signal
import time

import psutil
import pytest
from walks import wait_until

PROGRAM = """
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset
from fkat_data import ShardedDataLoader

doing, mark, num_nested = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

# Room for the microbatch that is kept, and for no other.
limit_bytes = 1 << 20 if doing == "waiting for a segment" else None
num_ahead = 1 if doing == "waiting for leave" else -1

def do():
    time.sleep(0.3)  # a thread of a nested worker sends what was made before
    (mark / str(os.getpid())).touch()
    if doing == "busy in C":
        sum(range(10**11))  # one call into C: it gives the interpreter's lock to nobody
    elif doing == "importing":
        sys.path.insert(0, str(mark))
        import slow_to_import
    elif doing == "reading":
        reader, writer = os.pipe()
        os.read(reader, 1)

class Occupied(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index > 4:
            do()
        return torch.full((50_000,), index)

def load(shard):
    return DataLoader(Occupied(), batch_size=2, num_workers=num_nested)

loader = ShardedDataLoader(0, ["a", "b"], load, 1, num_ahead, memory_limit_bytes=limit_bytes)
iterator = iter(loader)
kept = next(iterator)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("doing", "num_nested"),
    [
        ("busy in C", 2),
        ("importing", 0),
        ("reading", 2),
        ("waiting for a segment", 0),
        ("waiting for leave", 0),
    ],
)
def test_all_below_a_killed_trainer_is_gone_within_five_seconds(start, tmp_path, doing, num_nested):
    mark = tmp_path / "mark"
    mark.mkdir()
    (mark / "slow_to_import.py").write_text("import time\nwhile True:\n    time.sleep(0.01)\n")
    program = start(PROGRAM, doing, mark, num_nested)
    program.expect("ready")
    # What the worker, or its own workers, do is begun; each says so itself.
    num_begun = 0 if doing.startswith("waiting") else max(1, num_nested)
    while len(list(mark.glob("[0-9]*"))) < num_begun:
        assert program.process.poll() is None, program.stderr
        time.sleep(0.01)
    for worker in program.below() if num_begun == 0 else ():
        wait_until(lambda: worker.status() == psutil.STATUS_SLEEPING)  # noqa: B023
    descendants = program.below()
    assert len(descendants) == 3 + num_nested  # the template, the loader's parent, the worker, and its own
    for process in descendants:
        assert process.status() != psutil.STATUS_ZOMBIE
    program.kill()
    program.check_all_gone(5.0)
    assert program.stderr == ""


#: A trainer that has come to its loader; what it is told of is searched first by its workers.
STARTING = """
import os, sys, time
from fkat_data import ShardedDataLoader

os.environ["PYTHONPATH"] = os.pathsep.join([*sys.argv[1:], os.environ["PYTHONPATH"]])
iterator = iter(ShardedDataLoader(0, ["a", "b", "c"], lambda shard: [shard], num_shard_prefetches=2))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.2])
def test_a_trainer_killed_while_its_workers_start_leaves_none(start, delay_s):
    program = start(STARTING)
    program.expect("ready")
    assert program.below()
    time.sleep(delay_s)
    program.kill()
    program.check_all_gone()


def test_workers_that_still_import_are_gone_at_once_and_deaf_to_what_ends_others(start, tmp_path):
    # What the workers import first waits: they stay where they are before any of the package runs in them.
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "pickle.py").write_text("import time\ntime.sleep(600)\n")
    program = start(STARTING, tmp_path / "slow")
    program.expect("ready")
    (template,) = program.below()  # the workers are not born yet
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        template.send_signal(number)
    assert psutil.wait_procs([template], timeout=0.5)[1] == [template]
    program.kill()
    program.check_all_gone()
