"""A loader's parent opens the shipment once, and workers are forks of it, unless that could share what it must not."""

import mmap
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from own_workers import parent_pids, worker_pids
from walks import begun, wait_until

from fkat_data import DataLoader, ShardedDataLoader, WorkerError

pytestmark = pytest.mark.usefixtures("processes")


class Opening:
    """Tells who has opened it, and who reads it. What a subclass opens is made by ``open``."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return os.getpid(), self.opener, self.read(index)

    def __getstate__(self):
        return {"folder": self.folder}

    def __setstate__(self, state):
        self.folder = state["folder"]
        self.opener = os.getpid()
        self.open()

    def open(self):
        pass

    def read(self, index):
        return index


class Shards:
    """Tells the process that has opened it."""

    def __init__(self):
        self.opener = 0

    def __getstate__(self):
        return {"is_sent": True}

    def __setstate__(self, state):
        self.opener = os.getpid()

    def __call__(self, shard):
        return (self.opener for _ in range(20))


def test_workers_and_their_successors_share_what_was_opened_once():
    with ShardedDataLoader(0, ["a", "b"], Shards(), num_microbatch_prefetches=1, max_worker_restarts=1) as loader:
        iterator = begun(loader, 1)
        before, opened = set(worker_pids()), parent_pids()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        assert set(iterator) == opened
        assert not set(worker_pids()) & before
    wait_until(lambda: not parent_pids())


class OpensFile(Opening):
    """Keeps a file open, whose position forks would share."""

    def open(self):
        self.file = (self.folder / "numbers").open("rb", buffering=0)

    def read(self, index):
        self.file.seek(index)
        return self.file.read(1)[0]


class StartsThread(Opening):
    """Has a thread, which a fork would not have."""

    def open(self):
        self.asked, self.answered = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self):
        while self.asked.acquire():
            self.answered.release()

    def read(self, index):
        self.asked.release()
        assert self.answered.acquire(timeout=60)
        return index


class MakesSharedMemory(Opening):
    """Has memory of its own, which forks would write to together."""

    def open(self):
        self.memory = mmap.mmap(-1, 4096)

    def read(self, index):
        self.memory[0] += 1
        return index


class HasSocket(Opening):
    """Has a connection to itself."""

    def open(self):
        self.ours, self.theirs = socket.socketpair()

    def read(self, index):
        self.ours.send(bytes([index]))
        return self.theirs.recv(1)[0]


class StartsProcess(Opening):
    """Has a child, which a fork is not the parent of."""

    def open(self):
        self.child = subprocess.Popen(["sleep", "600"])

    def read(self, index):
        assert self.child.poll() is None
        return index


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (OpensFile, "left files open, whose position forks would share: .*numbers"),
        (StartsThread, "started threads, which a fork would lose: "),
        (MakesSharedMemory, "made shared memory"),
        (HasSocket, "left files open.*socket"),
        (StartsProcess, "started processes"),
    ],
)
def test_what_forks_would_share_or_lose_each_worker_opens_for_itself_and_the_log_says_why(
    tmp_path, caplog, kind, reason
):
    (tmp_path / "numbers").write_bytes(bytes(range(4)))
    with DataLoader(kind(tmp_path), batch_size=None, num_workers=2, timeout=600, start_method="template") as loader:
        for _ in range(2):
            found = list(loader)
            assert [index for _, _, index in found] == [0, 1, 2, 3]
            assert all(pid == opener for pid, opener, _ in found)
        assert re.search(reason, loader.statistics().opened_alone)
    said = [message for message in caplog.messages if "opens the dataset for itself" in message]
    assert len(said) == 1
    assert re.search(reason, said[0]), said


class MapsFile(Opening):
    """Maps a file, for which Python keeps a descriptor that nothing reads by."""

    def open(self):
        self.numbers = np.memmap(self.folder / "numbers", np.uint8, "r")

    def read(self, index):
        return int(self.numbers[index])


class MakesFolder(Opening):
    """Has a folder that is gone with it."""

    def open(self):
        self.made = tempfile.TemporaryDirectory(dir=self.folder)

    def read(self, index):
        (Path(self.made.name) / str(os.getpid())).write_text("here")
        return index


class HasArrow(Opening):
    """Holds a table of pyarrow's, whose allocator has a thread that each fork starts again."""

    def open(self):
        import pyarrow.compute

        self.numbers = pyarrow.array(range(1 << 20))
        pyarrow.compute.sum(self.numbers)

    def read(self, index):
        return self.numbers[index].as_py()


@pytest.mark.parametrize("kind", [MapsFile, MakesFolder, HasArrow])
def test_what_forks_may_share_is_opened_once(tmp_path, caplog, kind):
    (tmp_path / "numbers").write_bytes(bytes(range(4)))
    with DataLoader(kind(tmp_path), batch_size=None, num_workers=2, timeout=600, start_method="template") as loader:
        found = list(loader)
        assert [index for _, _, index in found] == [0, 1, 2, 3]
        assert {opener for _, opener, _ in found} == parent_pids()
        (pid, *_) = worker_pids()
        os.kill(pid, signal.SIGTERM)  # it is deaf to that
        assert len(list(loader)) == 4
    # The parent removes its folder, and no worker has before.
    wait_until(lambda: [path.name for path in tmp_path.iterdir()] == ["numbers"])
    assert not caplog.messages


def test_a_loader_that_is_closed_while_its_parent_opens_is_closed_at_once(tmp_path):
    loader = ShardedDataLoader(0, ["a"], OpensSlowly(tmp_path / "begun"))
    wait_until((tmp_path / "begun").exists)
    loader.close()
    assert not parent_pids()


class OpensSlowly:
    """Takes its time to be opened."""

    def __init__(self, begun_path):
        self.begun_path = begun_path

    def __setstate__(self, state):
        state["begun_path"].touch()
        time.sleep(600)

    def __call__(self, shard):
        return [0]


class Many:
    """Has so many bytes in its pickle that those are released once they are open."""

    def __init__(self):
        self.parts = [bytes([number]) * 2048 for number in range(100)] * 100
        self.more = [number.to_bytes(2048, "little") for number in range(10_000)]

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return self.more[index][0]


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_large_dataset_is_sent_again_where_its_parent_is_killed_but_not_if_it_has_changed(is_changed):
    dataset = Many()
    options = {"num_workers": 1, "prefetch_factor": 1, "max_worker_restarts": 2, "start_method": "template"}
    with DataLoader(dataset, batch_size=None, **options) as loader:
        iterator = begun(loader, 1)
        (parent,), (worker,) = parent_pids(), worker_pids()
        os.kill(worker, signal.SIGKILL)  # its successor is a fork of the same parent
        assert next(iterator) == 1
        assert parent_pids() == {parent}
        if is_changed:
            dataset.more[39] = bytes(2048)
        for pid in (parent, *worker_pids()):
            os.kill(pid, signal.SIGKILL)
        if is_changed:
            with pytest.raises(WorkerError, match="the dataset has changed in this program"):
                list(iterator)
        else:
            assert list(iterator) == list(range(2, 40))
