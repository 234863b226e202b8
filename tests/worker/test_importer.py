"""The importer imports what shipments name once for all loaders, and does harm to none of them."""

import importlib
import os
import re
import signal
import sys

import psutil
import pytest
from own_workers import importer_pids, parent_pids, template_pids
from walks import wait_until

from fkat_data import DataLoader, WorkerDiedError

pytestmark = pytest.mark.usefixtures("processes")

MODULE = """
import atexit, os
from pathlib import Path

HERE = Path(__file__).parent
(HERE / f"imported by {{os.getpid()}}").touch()
atexit.register(lambda: (HERE / f"ended by {{os.getpid()}}").touch())
{more}

class Numbers:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return {value}, os.getpid()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return what writes a module that workers import, and imports it here without its effects."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = []

    def write(name, more="", value="index"):
        names.append(name)
        path = tmp_path / f"{name}.py"
        path.write_text(MODULE.format(more="", value=value))
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        found = importlib.import_module(name)
        path.write_text(MODULE.format(more=more, value=value))
        for mark in tmp_path.glob("imported by *"):
            mark.unlink()
        return found

    yield write
    for name in names:
        sys.modules.pop(name, None)


def importing(folder):
    """Return the processes that have imported a module, by the marks that they left."""
    return {int(mark.name.rpartition(" ")[2]) for mark in folder.glob("imported by *")}


def values(loader):
    return [value for value, _ in loader]


def test_a_module_is_imported_once_for_all_loaders_that_come(module, tmp_path):
    found = module("many_phases")
    for _ in range(3):
        with DataLoader(
            found.Numbers(), batch_size=None, num_workers=2, timeout=600, start_method="template"
        ) as loader:
            assert values(loader) == [0, 1, 2, 3]
    assert importing(tmp_path) == importer_pids()
    assert len(importer_pids()) == 1
    # Exit hooks of what it has imported are its own.
    assert not list(tmp_path.glob("ended by *"))


def test_a_module_that_has_changed_is_imported_again(module, tmp_path):
    for value in ("index", "10 + index"):
        found = module("changing", value=value)
        with DataLoader(
            found.Numbers(), batch_size=None, num_workers=1, timeout=600, start_method="template"
        ) as loader:
            assert values(loader) == [eval(value) for index in range(4)]
        assert importing(tmp_path)
    with DataLoader(found.Numbers(), batch_size=None, num_workers=1, timeout=600, start_method="template") as loader:
        assert values(loader) == [10, 11, 12, 13]
        assert importing(tmp_path) & importer_pids() or len(importing(tmp_path)) == 1


NAPPING = """
import threading, time

def nap():
    Path("/proc/thread-self/comm").write_text("napping")
    time.sleep(600)

threading.Thread(target=nap, daemon=True).start()
"""


@pytest.mark.parametrize(("more", "reason"), [("FILE = open(__file__)", "files open"), (NAPPING, "threads.*napping")])
def test_a_module_that_forks_cannot_share_is_imported_by_each_worker(module, tmp_path, caplog, more, reason):
    found = module("unshared", more)
    with DataLoader(found.Numbers(), batch_size=None, num_workers=2, timeout=600, start_method="template") as loader:
        for _ in range(2):
            pids = {pid for _, pid in loader}
    assert pids <= importing(tmp_path)
    assert sum(bool(re.search(reason, message)) for message in caplog.messages) == 1
    other = module("shared")
    with DataLoader(other.Numbers(), batch_size=None, num_workers=1, timeout=600, start_method="template") as loader:
        assert not {pid for _, pid in loader} & importing(tmp_path)


def test_an_import_that_fails_is_the_error_of_the_first_microbatch(module):
    found = module("failing", "raise RuntimeError('not here')")
    with (
        DataLoader(found.Numbers(), batch_size=None, num_workers=1, timeout=600, start_method="template") as loader,
        pytest.raises(RuntimeError, match="not here"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("more", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_an_import_that_ends_its_process_is_a_death_and_others_are_not_concerned(module, more):
    other, found = module("harmless"), module("ending", more)
    for _ in range(2):
        with (
            DataLoader(found.Numbers(), batch_size=None, num_workers=1, timeout=600, start_method="template") as loader,
            pytest.raises(WorkerDiedError) as caught,
        ):
            next(iter(loader))
        assert caught.value.exit_code == (3 if "exit" in more else -signal.SIGKILL)
    with DataLoader(other.Numbers(), batch_size=None, num_workers=1, timeout=600, start_method="template") as loader:
        assert values(loader) == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_importer_may_be_killed_or_stopped(module, number):
    found = module("kept")
    with DataLoader(found.Numbers(), batch_size=None, num_workers=1, timeout=600, start_method="template") as first:
        iterator = iter(first)
        next(iterator)
        (importer,) = importer_pids()
        os.kill(importer, number)
        assert len(list(iterator)) == 3
        if number == signal.SIGKILL:
            wait_until(lambda: importer not in importer_pids())
            with DataLoader(
                found.Numbers(), batch_size=None, num_workers=1, timeout=600, start_method="template"
            ) as second:
                assert values(second) == [0, 1, 2, 3]
    if number == signal.SIGSTOP:
        second = DataLoader(found.Numbers(), batch_size=None, num_workers=1, timeout=600, start_method="template")
        iter(second)
        second.close()
        os.kill(importer, signal.SIGCONT)


def test_an_importer_is_a_child_of_the_template(module):
    found = module("placed")
    with DataLoader(found.Numbers(), batch_size=None, num_workers=1, timeout=600, start_method="template") as loader:
        list(loader)
        (importer,), (parent,) = importer_pids(), parent_pids()
        assert psutil.Process(parent).ppid() == importer
        assert psutil.Process(importer).ppid() in template_pids()
