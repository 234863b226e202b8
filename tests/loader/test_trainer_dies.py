"""Nothing outlives a trainer that is killed while its workers start; those that work are in tests/faults."""

import contextlib
import signal
import subprocess
import sys
import time

import psutil
import pytest
from interpreters import environment_of

pytestmark = pytest.mark.usefixtures("processes")

PROGRAM = """
import time
import torch
from fkat_data import ShardedDataLoader

def factory(shard):
    yield torch.zeros(50_000)

loader = ShardedDataLoader(0, ["a", "b", "c"], factory, num_shard_prefetches=2)
iterator = iter(loader)
print("ready", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def trainer_process(path, environment=None):
    """A trainer that has come to its loader."""
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


def test_a_trainer_killed_while_its_workers_start_leaves_none(tmp_path):
    path = tmp_path / "trainer.py"
    path.write_text(PROGRAM)
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
    path.write_text(slow + PROGRAM)
    with trainer_process(path, environment_of()) as trainer:
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
