"""What ``ps`` shows of each process of the library: what it is, of which loader, and of which program."""

import contextlib
import os
import sys

import psutil
import pytest
import torch
from own_workers import importer_pids, parent_pids, template_pids, worker_pids
from walks import wait_until

from fkat_data import DataLoader
from fkat_data.worker.process import lifeline
from fkat_data.worker.process.process_title import process_title, set_title


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return index


def command_line(pid):
    """Return what ps shows of a process; nothing of one that has ended since it was found."""
    with contextlib.suppress(psutil.NoSuchProcess):
        # setproctitle, if it is installed, leaves empty words behind.
        return " ".join(filter(None, psutil.Process(pid).cmdline()))


def name(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).name()


def loader(**options):
    return DataLoader(Numbers(), batch_size=2, num_workers=2, timeout=600, **options)


@pytest.mark.parametrize(
    ("first", "program"),
    [
        ("/home/me/train.py", "train.py"),
        ("/lib/site-packages/my_training/__main__.py", "my_training"),
        ("-c", "python -c"),
        ("", "python"),
        ("a\nb\x00c\udcff.py", "a?b?c?.py"),
        ("t" * 50, "t" * 40),
    ],
)
def test_a_title_names_the_program_by_its_file(monkeypatch, first, program):
    monkeypatch.setattr(sys, "argv", [first, "--epochs", "3"])
    assert process_title("template") == f"fkat_data: template, {program} ({os.getpid()})"
    title = process_title("worker 3 of 8", "DataLoader")
    assert title == f"fkat_data: worker 3 of 8, DataLoader in {program} ({os.getpid()})"


def test_a_program_without_arguments_has_a_title(monkeypatch):
    monkeypatch.delattr(sys, "argv")
    assert process_title("importer") == f"fkat_data: importer, python ({os.getpid()})"


def test_processes_that_the_template_forks_say_what_they_are(processes):
    with loader(start_method="template", max_worker_restarts=1) as found:
        iterator = iter(found)
        next(iterator)
        owner = process_title("", "DataLoader").partition(", ")[2]
        wait_until(lambda: [name(pid) for pid in worker_pids()] == ["fkat-worker-0", "fkat-worker-1"])
        assert [command_line(pid) for pid in worker_pids()] == [
            f"fkat_data: worker 0 of 2, {owner}",
            f"fkat_data: worker 1 of 2, {owner}",
        ]
        assert [command_line(pid) for pid in parent_pids()] == [f"fkat_data: parent of workers, {owner}"]
        assert process_title("template") in [command_line(pid) for pid in template_pids()]
        assert [command_line(pid) for pid in importer_pids()] == [process_title("importer")] * len(importer_pids())
        killed = worker_pids()[1]
        psutil.Process(killed).kill()
        title = f"fkat_data: worker 1 of 2, {owner}"
        wait_until(
            lambda: len(next(iterator)) and title in [command_line(pid) for pid in worker_pids() if pid != killed]
        )


def test_forks_of_the_program_say_what_they_are(processes):
    before = psutil.Process().cmdline()
    with loader(start_method="fork") as found:
        next(iter(found))
        wait_until(lambda: [name(pid) for pid in worker_pids()] == ["fkat-worker-0", "fkat-worker-1"])
        lines = [command_line(pid).partition(",")[0] for pid in [*worker_pids(), *parent_pids()]]
        assert lines == ["fkat_data: worker 0 of 2", "fkat_data: worker 1 of 2", "fkat_data: parent of workers"]
    assert psutil.Process().cmdline() == before


def test_spawned_processes_say_what_they_are_from_their_start_on(processes, tmp_path, monkeypatch):
    (tmp_path / "setproctitle.py").write_text(
        f"import os\ndef setproctitle(title):\n    open(os.path.join({str(tmp_path)!r}, title), 'w').close()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with loader(start_method="spawn") as found:
        iterator = iter(found)
        for number, pid in enumerate(worker_pids()):
            title = process_title(f"worker {number} of 2", "DataLoader")
            line = command_line(pid)
            assert title in line
            assert len(line) < len(sys.executable) + len(lifeline.__file__) + 150
        next(iterator)
        wait_until(lambda: [name(pid) for pid in worker_pids()] == ["fkat-worker-0", "fkat-worker-1"])
        titles = {process_title(f"worker {number} of 2", "DataLoader") for number in range(2)}
        assert {command_line(pid) for pid in worker_pids()} == titles
        assert titles <= {path.name for path in tmp_path.iterdir()}


def test_a_title_that_has_no_room_is_shortened(processes):
    pid = os.fork()
    if pid == 0:
        try:
            set_title("fkat_data: worker 0 of 2, " + "x" * 100_000, "fkat-worker-0")
            is_shortened = psutil.Process().cmdline() == ["fkat_data:", "worker", "0", "of", "2"]
            os._exit(0 if is_shortened else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
