"""The template process: shared by loaders, kept for the next one, replaced where need be; no death of it hangs."""

import contextlib
import math
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from interpreters import environment_of
from kept_template import KeptTemplate
from own_workers import own_template_pids, parent_pids, worker_pids
from patience import Patience, check_in_time
from programs import still_alive
from walks import begun, wait_until

from fkat_data import ShardedDataLoader, WorkerDiedError
from fkat_data.worker.process import forkserver, importer_process

pytestmark = pytest.mark.usefixtures("own_template", "processes")


def forker_of_forkers():
    """The process that this one comes from, beside importers and loaders' parents: the template, or the trainer."""
    process = psutil.Process().parent()
    while process.name() in ("fkat-parent", "fkat-importer"):
        process = process.parent()
    return process.pid


class Facts:
    """What a loader's parent, or a worker without one, finds when it opens the shipment: the microbatch of each shard."""

    def __setstate__(self, state):
        self.found = {
            "pid": os.getpid(),
            "parent": forker_of_forkers(),
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


def own_template_pid():
    (pid,) = own_template_pids()
    return pid


def children():
    return {child.pid for child in psutil.Process().children()}


def test_loaders_share_one_template_that_is_kept_for_the_next():
    before = children()
    with ShardedDataLoader(0, ["a", "b"], Facts(), num_shard_prefetches=2) as first:
        with ShardedDataLoader(0, ["a"], Facts()) as second:
            found = [*first, *second]
            parents = {worker["parent"] for worker in found}
            assert len(parents) == 1
            assert children() - before == parents
            assert len({worker["pid"] for worker in found}) == 2
            with ShardedDataLoader(0, ["a"], Facts(), start_method="spawn") as spawned:
                found += spawned
            assert found[-1]["parent"] == os.getpid()
            # All hash alike, but each has generators of its own.
            assert len({worker["hash"] for worker in found}) == 1
            assert len({tuple(worker["numpy"]) for worker in found}) == 3
            assert len({worker["torch"] for worker in found}) == 3
        assert children() - before == parents
        assert len(list(first)) == 2
    assert children() - before == parents
    with ShardedDataLoader(0, ["a"], Facts()) as third:
        assert {worker["parent"] for worker in third} == parents


def test_a_loader_closed_while_the_template_imports_is_closed_at_once():
    def attempt():
        KeptTemplate.end_others(set())
        loader = ShardedDataLoader(0, ["a", "b"], load, num_shard_prefetches=2)
        assert own_template_pids()
        imports = not worker_pids()  # unless this process was held up
        began_s = time.monotonic()
        loader.close()
        return time.monotonic() - began_s if imports else math.inf

    check_in_time(1.0, attempt)


def test_a_template_killed_while_it_imports_is_a_death_of_the_worker_and_replaced():
    with ShardedDataLoader(0, ["a"], load) as loader:
        pid = own_template_pid()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError) as caught:
            next(iter(loader))
        assert (caught.value.pid, caught.value.exit_code) == (pid, -signal.SIGKILL)
        with ShardedDataLoader(0, ["a"], load, max_worker_restarts=1) as other:
            assert len(list(other)) == len(list(loader)) == 20
            assert own_template_pid() != pid


@pytest.mark.parametrize("dies", ["the template", "the parent", "both"])
def test_workers_outlive_what_they_are_forked_from_and_are_replaced(dies):
    with ShardedDataLoader(0, ["a", "b"], load, max_worker_restarts=1, num_microbatch_prefetches=1) as loader:
        iterator = iter(loader)
        seen = [int(next(iterator)[0])]
        template, (parent,) = own_template_pid(), parent_pids()
        worker = psutil.Process(worker_pids()[0])
        for pid in {"the template": [template], "the parent": [parent], "both": [template, parent]}[dies]:
            os.kill(pid, signal.SIGKILL)
        seen += [int(next(iterator)[0]) for _ in range(9)]
        assert worker.is_running()
        worker.kill()
        seen += [int(microbatch[0]) for microbatch in iterator]
        assert seen == [*range(20), *range(20)]
        # Nobody has reaped an orphan's children: they are told from each other by their parent.
        assert psutil.pid_exists(parent) == (dies == "the template")
        assert (own_template_pids() == {template}) == (dies == "the parent")
        # Where nothing has noticed yet that the template is gone, the worker is spawned: without a parent.
        allowed = {"the template": {0}, "the parent": {1}, "both": {0, 1}}
        assert len(parent_pids()) in allowed[dies]


def test_the_death_of_an_orphan_is_noticed():
    with ShardedDataLoader(0, ["a"], load, num_microbatch_prefetches=1) as loader:
        iterator = begun(loader, 1)
        (pid,) = worker_pids()
        for server in (own_template_pid(), *parent_pids()):
            os.kill(server, signal.SIGKILL)
        time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError) as caught:
            list(iterator)
        assert caught.value.pid == pid


def test_templates_that_end_before_they_start_a_worker_are_given_up(monkeypatch, tmp_path, caplog):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'template' in sys.orig_argv:\n    os.write(2, b'no luck')\n    os._exit(1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
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
        assert {worker["parent"] for worker in found} == {own_template_pid()}
        assert len({worker["hash"] for worker in found}) == 1
        pid = worker_pids()[0]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError) as caught:
            list(loader)
        assert (caught.value.pid, caught.value.exit_code) == (pid, -signal.SIGKILL)
    assert sum("has threads" in record.message for record in caplog.records) == 1
    assert forkserver.find_template() is None


def test_a_template_with_too_many_open_files_says_so(capfd):
    with ShardedDataLoader(0, ["a"], load) as loader:
        next(iter(loader))
        template = own_template_pid()
        resource.prlimit(template, resource.RLIMIT_NOFILE, (10, 10))
        os.kill(template, signal.SIGSTOP)  # until all is asked for
        with ShardedDataLoader(0, ["a"], load) as other:
            os.kill(template, signal.SIGCONT)
            with pytest.raises(WorkerDiedError) as caught:
                next(iter(other))
        assert "too many open files" in caught.value.last_words
        assert len(list(loader)) == 20


def test_a_stopped_template_keeps_nobody_waiting():
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(ShardedDataLoader(0, ["a"], load))
        next(iter(first))
        template = own_template_pid()
        os.kill(template, signal.SIGSTOP)
        second = ShardedDataLoader(0, ["a"], load)
        second.close()
        assert len(list(first)) == 20
        first.close()  # the worker's end cannot be seen by a parent that is stopped
    os.kill(template, signal.SIGCONT)
    with ShardedDataLoader(0, ["a"], load) as third:
        assert len(list(third)) == 20
        assert own_template_pid() == template


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_template_without_work_ends_by_itself_and_the_next_loader_gets_another(monkeypatch, caplog):
    for module in (forkserver, importer_process):
        monkeypatch.setattr(module, "IDLE_MS", 100)
    with ShardedDataLoader(0, ["a"], load):
        templates = own_template_pids()  # none, where this process was held up for longer than that
    # Closed before it has started a worker.
    wait_until(lambda: not {*templates} & {*own_template_pids()})
    with ShardedDataLoader(0, ["a"], load) as loader:
        assert len(list(loader)) == 20
        time.sleep(0.3)  # a worker that waits for the next epoch is work
        assert len(list(loader)) == 20
    assert not caplog.records


def stopped_template():
    """Stop the own template, and return its process id; None: it has ended before."""
    for process in [child for child in psutil.Process().children() if child.pid in own_template_pids()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE))  # noqa: B023
            if process.status() == psutil.STATUS_STOPPED:
                return process.pid
    return None


def test_a_request_that_meets_the_end_of_an_idle_template_is_served(monkeypatch):
    for module in (forkserver, importer_process):
        monkeypatch.setattr(module, "IDLE_MS", 100)
    template = None
    while template is None:  # it ends before it is stopped, where this process is held up
        with ShardedDataLoader(0, ["a"], load) as loader:
            assert len(list(loader)) == 20
        template = stopped_template()
    time.sleep(0.2)
    with ShardedDataLoader(0, ["a"], load) as loader:
        assert own_template_pid() == template
        os.kill(template, signal.SIGCONT)
        assert len(list(loader)) == 20
    wait_until(lambda: template not in own_template_pids())


def test_environments_in_turn_use_two_templates_and_a_third_one_ends_the_first_with_its_last_worker(monkeypatch):
    before = children()
    kept = ShardedDataLoader(0, ["a"] * 2, Facts())
    iterator = iter(kept)
    found = next(iterator)
    first_hash, parents = found["hash"], [found["parent"]]
    for value in ("1", None, "1", "2"):
        if value is None:
            monkeypatch.delenv("FKAT_TEMPLATE_TEST")
        else:
            monkeypatch.setenv("FKAT_TEMPLATE_TEST", value)
        with ShardedDataLoader(0, ["a"], Facts()) as loader:
            (found,) = loader
        assert (found["variable"], found["hash"]) == (value, first_hash)
        parents.append(found["parent"])
    first, second, third = parents[0], parents[1], parents[4]
    assert parents == [first, second, first, second, third]
    assert len({first, second, third}) == 3
    assert next(iterator)["parent"] == first
    kept.close()
    wait_until(lambda: children() - before == {second, third})


def test_loaders_one_after_another_leak_nothing_though_workers_are_killed(nothing_left_behind):
    def round_of(number):
        with ShardedDataLoader(0, ["a"], load, num_microbatch_prefetches=1) as loader:
            iterator = begun(loader, 1)
            if number % 3 == 0:
                os.kill(worker_pids()[0], signal.SIGKILL)
                with pytest.raises(WorkerDiedError):
                    list(iterator)
            return psutil.Process(own_template_pid())

    def held(template):
        trainer = psutil.Process()
        return trainer.num_fds(), trainer.num_threads(), template.num_fds(), len(template.children())

    def settled(template, most):
        patience = Patience()  # threads and zombies end a moment after close() has returned
        while is_more(held(template), most) and not patience.is_over():
            time.sleep(0.01)
        return held(template)

    def is_more(found, most):
        return any(now > was for now, was in zip(found, most, strict=True))

    template = round_of(1)
    time.sleep(0.5)
    before = held(template)
    for number in range(30):
        assert round_of(number) == template
    assert not is_more(settled(template, before), before)


PHASES = """
import os, pathlib, sys, time
from fkat_data import ShardedDataLoader

def template():
    pid = os.getppid()
    while pathlib.Path(f"/proc/{pid}/comm").read_text() in ("fkat-parent\\n", "fkat-importer\\n"):
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid

def phase(folder, text):
    os.makedirs(folder)
    os.chdir(folder)
    pathlib.Path(f"of_{folder}.py").write_text(f"NAME = {text!r}")
    sys.path.insert(0, os.getcwd())

def load():
    with ShardedDataLoader(0, ["a"], Dataset()) as loader:
        return list(loader)

phase("first", "1st")
class Dataset:
    def __call__(self, shard):
        import of_first
        yield of_first.NAME, os.getcwd(), template(), sys.argv[1:]
found = load()
os.chdir("..")
phase("second", "2nd")
sys.argv.append("changed")
sys.path.remove(os.path.abspath("../first"))
class Dataset:  # as a cell of a notebook that is run again
    size = 2
    def __call__(self, shard):
        import of_second
        for number in range(self.size):
            yield of_second.NAME, os.getcwd(), template(), sys.argv[1:], "of_first" in sys.modules
found += load()
print([facts[0] for facts in found], [os.path.basename(facts[1]) for facts in found])
print(len({facts[2] for facts in found}), found[-1][3:])

if os.fork() == 0:
    os._exit(5 if load()[0][2] not in (found[0][2], os.getpid()) else 6)
print(os.waitstatus_to_exitcode(os.wait()[1]), load()[0][2] == found[0][2])
print(*(os.readlink(f"/proc/{found[0][2]}/{name}") for name in ("cwd", "fd/1")))
"""


def test_phases_of_a_script_find_what_is_there_now_and_its_fork_has_a_template_of_its_own(run_script, monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    done = run_script(PHASES)
    assert done.stdout.splitlines() == [
        "['1st', '2nd', '2nd'] ['first', 'second', 'second']",
        "1 (['changed'], False)",
        "5 True",
        "/ /dev/null",
    ]
    assert done.stderr == ""


KILLED = """
import signal
from fkat_data import ShardedDataLoader
with ShardedDataLoader(0, ["a"], lambda shard: [0]) as loader:
    list(loader)
print("closed", flush=True)
signal.pause()
"""


def test_a_killed_trainer_leaves_no_idle_template(tmp_path):
    (tmp_path / "script.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment_of()) as trainer:
        try:
            assert trainer.stdout.readline() == "closed\n"
            (template,) = psutil.Process(trainer.pid).children(recursive=True)
        finally:
            trainer.kill()
    assert not still_alive([template])
