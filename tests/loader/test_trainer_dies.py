"""Nothing outlives a trainer that is killed, whatever its workers are doing."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.usefixtures("processes")

PROGRAM = """
import os, sys, time
import torch
from torch.utils.data import DataLoader
from fkat_data import ShardedDataLoader

def busy():
    sum(range(10**10))  # one call into C: it gives the interpreter's lock to nobody

class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index > 4:
            time.sleep(0.3)  # what was made before is on its way
            {inner}
        return torch.zeros(50_000)

def factory(shard):
    if {nested}:
        return DataLoader(Dataset(), batch_size=2, num_workers=2)
    return DataLoader(Dataset(), batch_size=2)

loader = ShardedDataLoader(0, ["a", "b", "c"], factory, num_shard_prefetches={ahead}, num_microbatch_prefetches={depth})
iterator = iter(loader)
next(iterator)
print("ready", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def trainer_process(path, environment=None):
    """A trainer that has come to its first microbatch, or to its loader."""
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, env=environment) as trainer:
        try:
            assert trainer.stdout.readline() == "ready\n"
            yield trainer
        finally:
            trainer.kill()


def check_that_they_end(workers):
    _, alive = psutil.wait_procs(workers, timeout=5)
    for worker in alive:
        worker.kill()
    assert not alive


@pytest.mark.parametrize(
    ("inner", "nested", "ahead", "depth"),
    [
        ("busy()", False, 0, -1),
        ("busy()", True, 0, -1),
        ("time.sleep(600)", True, 2, -1),
        # waiting for the trainer's allowance
        ("pass", False, 2, 1),
    ],
    ids=["busy in C", "nested and busy in C", "nested and asleep", "waiting"],
)
def test_all_processes_are_gone_when_the_trainer_is_killed(tmp_path, inner, nested, ahead, depth):
    before = set(Path("/dev/shm").iterdir())
    path = tmp_path / "trainer.py"
    path.write_text(PROGRAM.format(inner=inner, nested=nested, ahead=ahead, depth=depth))
    with trainer_process(path) as trainer:
        time.sleep(0.8)
        workers = psutil.Process(trainer.pid).children(recursive=True)
        # The template, and the workers. The second of two begins a shard of its own ahead: its nested ones are there, too.
        assert len(workers) == 1 + max(1, ahead) * (3 if nested else 1)
    check_that_they_end(workers)
    pids = {str(worker.pid) for worker in workers}
    left = [file for file in Path("/dev/shm").glob("torch_*") if file not in before and file.name.split("_")[1] in pids]
    for file in left:
        file.unlink()
    assert nested or not left, "what a nested DataLoader's own workers leave is torch's"


def test_a_trainer_killed_while_its_workers_start_leaves_none(tmp_path):
    path = tmp_path / "trainer.py"
    path.write_text(PROGRAM.format(inner="pass", nested=False, ahead=2, depth=-1).replace("next(iterator)", ""))
    for delay in (0.0, 0.2):
        with trainer_process(path) as trainer:
            workers = psutil.Process(trainer.pid).children(recursive=True)
            time.sleep(delay)
        check_that_they_end(workers)


def test_workers_that_still_import_are_gone_at_once_and_deaf_to_what_ends_others(tmp_path):
    path = tmp_path / "trainer.py"
    # What the workers import first waits: they stay where they are before any of the package runs in them.
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "pickle.py").write_text("import time\ntime.sleep(600)\n")
    slow = f"import os, pickle\nos.environ['PYTHONPATH'] = {str(folder)!r} + os.pathsep + os.environ['PYTHONPATH']\n"
    program = PROGRAM.format(inner="pass", nested=False, ahead=2, depth=-1).replace("next(iterator)", "")
    path.write_text(slow + program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with trainer_process(path, environment) as trainer:
        workers = psutil.Process(trainer.pid).children()
        assert len(workers) == 1  # the template: the workers are not born yet
        for worker in workers:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                worker.send_signal(number)
        assert len(psutil.wait_procs(workers, timeout=0.5)[1]) == 1
        trainer.kill()
        # Their new parent may take its time to reap them: as zombies they are as dead.
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and any(map(is_working, workers)):
            time.sleep(0.01)
        assert not any(map(is_working, workers))


def is_working(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
