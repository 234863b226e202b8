"""The template process: shared by loaders, replaced where need be, gone with the last one; no death of it hangs."""

import contextlib
import os
import resource
import signal
import time

import numpy as np
import psutil
import pytest
import torch

from fkat_data import ShardedDataLoader, WorkerDiedError
from fkat_data.worker import template_process

pytestmark = pytest.mark.usefixtures("own_template", "processes")

CLOSED_S = 2.0


class Facts:
    """What a worker finds when its settings arrive, as the only microbatch of each shard."""

    def __setstate__(self, state):
        self.found = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "hash": hash("a"),
            "numpy": np.random.get_state()[1][:4].tolist(),
            "torch": torch.initial_seed(),
            "variable": os.environ.get("FKAT_TEMPLATE_TEST"),
        }

    def __getstate__(self):
        return {"a": 1}

    def __call__(self, shard):
        return [self.found]


def load(shard):
    return (torch.full((3,), index) for index in range(20))


def template_of(loader):
    return loader._pool._starter._template._used[-1]


def children():
    return {child.pid for child in psutil.Process().children()}


def test_loaders_share_one_template_that_ends_with_the_last_of_them():
    before = children()
    with ShardedDataLoader(0, ["a", "b"], Facts(), num_shard_prefetches=2) as first:
        with ShardedDataLoader(0, ["a"], Facts()) as second:
            found = [*first, *second]
            parents = {worker["parent"] for worker in found}
            assert len(parents) == 1
            assert children() - before == parents
            assert len({worker["pid"] for worker in found}) == 3
            with ShardedDataLoader(0, ["a"], Facts(), start_method="spawn") as spawned:
                found += spawned
            assert found[-1]["parent"] == os.getpid()
            # All workers hash alike, but each has generators of its own.
            assert len({worker["hash"] for worker in found}) == 1
            assert len({tuple(worker["numpy"]) for worker in found}) == 4
            assert len({worker["torch"] for worker in found}) == 4
        assert children() - before == parents
        assert len(list(first)) == 2
    assert children() == before


def test_another_environment_is_another_template(monkeypatch):
    with ShardedDataLoader(0, ["a"], Facts()) as first:
        monkeypatch.setenv("FKAT_TEMPLATE_TEST", "changed")
        with ShardedDataLoader(0, ["a"], Facts()) as second:
            found = [*first, *second]
    assert len({worker["parent"] for worker in found}) == 2
    assert len({worker["hash"] for worker in found}) == 1
    assert [worker["variable"] for worker in found] == [None, "changed"]


def test_a_loader_closed_while_the_template_imports_is_closed_at_once():
    loader = ShardedDataLoader(0, ["a", "b"], load, num_shard_prefetches=2)
    assert "the process is starting" in loader._pool.workers[0].stack()
    began_s = time.monotonic()
    loader.close()
    assert time.monotonic() - began_s < CLOSED_S / 2


def test_a_template_killed_while_it_imports_is_a_death_of_the_worker_and_replaced():
    with ShardedDataLoader(0, ["a"], load) as loader:
        pid = template_of(loader).pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError) as caught:
            next(iter(loader))
        assert (caught.value.pid, caught.value.exit_code) == (pid, -signal.SIGKILL)
        assert template_of(loader).pid == pid
        with ShardedDataLoader(0, ["a"], load, max_worker_restarts=1) as other:
            assert len(list(other)) == len(list(loader)) == 20
            assert template_of(other) is template_of(loader)


def test_workers_outlive_their_template_and_are_replaced_by_those_of_another():
    with ShardedDataLoader(0, ["a", "b"], load, max_worker_restarts=1, num_microbatch_prefetches=1) as loader:
        iterator = iter(loader)
        seen = [int(next(iterator)[0])]
        first = template_of(loader)
        worker = psutil.Process(loader._pool.workers[0].pid)
        os.kill(first.pid, signal.SIGKILL)
        seen += [int(next(iterator)[0]) for _ in range(9)]
        assert worker.is_running()
        worker.kill()
        seen += [int(microbatch[0]) for microbatch in iterator]
        assert seen == [*range(20), *range(20)]
        assert template_of(loader) is not first


def test_the_death_of_an_orphan_is_noticed():
    with ShardedDataLoader(0, ["a"], load, num_microbatch_prefetches=1) as loader:
        iterator = iter(loader)
        next(iterator)
        pid = loader._pool.workers[0].pid
        os.kill(template_of(loader).pid, signal.SIGKILL)
        time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError) as caught:
            list(iterator)
        assert caught.value.pid == pid


def test_templates_that_end_before_they_start_a_worker_are_given_up(monkeypatch, caplog):
    monkeypatch.setattr(template_process, "_PROGRAM", "import sys; sys.exit('no luck')")
    with ShardedDataLoader(0, ["a"], load) as loader:
        for _ in range(2):
            with pytest.raises(WorkerDiedError, match=r"exit code 1.*\n.*no luck"):
                next(iter(loader))
        assert len(list(loader)) == 20
    assert sum("2 template processes ended before they had started" in record.message for record in caplog.records) == 1


def test_a_template_with_threads_starts_interpreters(monkeypatch, tmp_path, caplog):
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with ShardedDataLoader(0, ["a", "b"], Facts(), num_shard_prefetches=2) as loader:
        found = list(loader)
        assert {worker["parent"] for worker in found} == {template_of(loader).pid}
        assert len({worker["hash"] for worker in found}) == 1
        pid = loader._pool.workers[0].pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError) as caught:
            list(loader)
        assert (caught.value.pid, caught.value.exit_code) == (pid, -signal.SIGKILL)
    assert sum("has threads" in record.message for record in caplog.records) == 1
    assert template_process.template_lease(None).template() is None


def test_a_template_with_too_many_open_files_says_so(capfd):
    with ShardedDataLoader(0, ["a"], load) as loader:
        next(iter(loader))
        template = template_of(loader)
        resource.prlimit(template.pid, resource.RLIMIT_NOFILE, (10, 10))
        with ShardedDataLoader(0, ["a"], load) as other, pytest.raises(WorkerDiedError) as caught:
            next(iter(other))
        assert "too many open files" in caught.value.last_words
        assert len(list(loader)) == 20


def test_a_stopped_template_keeps_nobody_waiting():
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(ShardedDataLoader(0, ["a"], load))
        next(iter(first))
        template = template_of(first)
        os.kill(template.pid, signal.SIGSTOP)
        second = ShardedDataLoader(0, ["a"], load)
        began_s = time.monotonic()
        second.close()
        assert time.monotonic() - began_s < CLOSED_S
        assert len(list(first)) == 20
        began_s = time.monotonic()
        first.close()
        # Its end cannot be seen by a parent that is stopped: a second for each.
        assert time.monotonic() - began_s < 2 * CLOSED_S
    assert not psutil.pid_exists(template.pid)
