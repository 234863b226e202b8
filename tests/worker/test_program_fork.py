"""Workers that are forks of one fork of the program: what they have of it, and what stays the program's alone."""

import gc
import json
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import types
import warnings
import weakref

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from fkat_data import DataLoader, ShardedDataLoader
from fkat_data.errors import ConfigurationError, WorkerDiedError

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.filterwarnings("error::DeprecationWarning")]

FORK = {"num_workers": 2, "start_method": "fork"}
module = types.ModuleType("a module of the program's, which no other process can import")


class Words:
    """Words of an open file, each read where it lies; no pickle takes it."""

    def __init__(self, path, number):
        path.write_bytes(b"".join(b"%07d " % index for index in range(number)))
        self.file = path.open("rb")
        self.lock = threading.Lock()
        self.number = number

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        self.file.seek(8 * index)
        return int(self.file.read(8)), os.getpid()


def test_a_program_that_has_chosen_a_number_of_threads_of_torchs_is_forked(run_script):
    text = """
import torch
from fkat_data import DataLoader

torch.set_num_threads(4)
with DataLoader(range(4), None, num_workers=2, start_method="fork") as loader:
    print(list(loader))
"""
    assert run_script(text).stdout == "[0, 1, 2, 3]\n"


def test_a_dataset_that_cannot_be_pickled_is_read_by_each_worker_at_a_place_of_its_own(tmp_path):
    dataset = Words(tmp_path / "words", 20_000)
    place = dataset.file.tell()
    with pytest.raises(ConfigurationError, match="start_method='fork'"):
        next(iter(DataLoader(dataset, None, num_workers=2, start_method="spawn")))
    for arguments in (FORK, {"num_workers": 2, "multiprocessing_context": "fork"}):
        with DataLoader(dataset, None, shuffle=True, seed=1, **arguments) as loader:
            words, pids = zip(*loader, strict=True)
        assert sorted(words) == list(range(20_000))
        assert len({*pids, os.getpid()}) == 3
    assert dataset.file.tell() == place
    dataset.file.close()


class Set:
    """Tells what the program has set."""

    def __len__(self):
        return 1

    def __getitem__(self, _index):
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn("is it shown?", UserWarning, stacklevel=1)
        return {
            "module": module.size,
            "numpy": np.geterr()["over"],
            "dtype": str(torch.get_default_dtype()),
            "is logged": any(isinstance(each, Remembering) for each in logging.getLogger("of the program").handlers),
            "warnings": len(caught),
            "argv": id(module),
        }


class Remembering(logging.Handler):
    def emit(self, record):
        pass


def test_a_worker_has_what_the_program_has_set():
    module.size = 512
    before = np.seterr(over="raise")
    handler = Remembering()
    logging.getLogger("of the program").addHandler(handler)
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            expected = Set()[0]
            [found] = DataLoader(Set(), None, **FORK)
    finally:
        torch.set_default_dtype(torch.float32)
        logging.getLogger("of the program").removeHandler(handler)
        np.seterr(**before)
    assert found == expected
    assert found["module"] == 512
    assert found["warnings"] == 0


class Drawing:
    """Draws from every generator."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return index, torch.rand(2), np.random.rand(), get_worker_info() is None


def told(loader):
    return [[repr(part) for part in batch[:3]] for batch in loader]


def test_the_microbatches_and_their_states_are_those_of_every_other_kind_of_worker():
    def make(**arguments):
        return DataLoader(Drawing(), 3, shuffle=True, seed=4, collate_fn=list, **arguments)

    with make(**FORK) as loader, make(num_workers=2, start_method="template") as other:
        expected = [told(loader), told(loader)]
        assert expected[0] != expected[1]
        assert [told(other), told(other)] == expected
    for cut in (0, 1, 5, 7):
        with make(**FORK) as loader:
            iterator = iter(loader)
            began = told(next(iterator) for _ in range(cut))
            state = loader.state_dict()
        with make(num_workers=1, start_method="fork") as loader:
            loader.load_state_dict(state)
            assert began + told(loader) == expected[0]
            assert told(loader) == expected[1]


class Place:
    def __init__(self):
        self.value = 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2 and os.environ.pop("KILL_WORKER", None):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.value, os.getppid()


def test_an_iteration_begins_with_what_the_program_has_then_and_one_fork_of_it():
    dataset = Place()
    with (
        DataLoader(dataset, None, **FORK) as loader,
        DataLoader(dataset, None, **FORK, persistent_workers=True) as kept,
    ):
        parents = []
        for value in range(3):
            dataset.value = value
            values, of_workers = zip(*loader, strict=True)
            assert values == (value,) * 4
            assert [sample[0] for sample in kept] == [0] * 4
            parents += set(of_workers)
    assert len(parents) == 3  # not one for each worker
    assert os.getpid() not in parents


def test_the_successor_of_a_killed_worker_begins_with_what_the_first_one_had(monkeypatch):
    monkeypatch.setenv("KILL_WORKER", "1")
    dataset = Place()
    options = {"num_workers": 1, "start_method": "fork", "prefetch_factor": 1}
    with DataLoader(dataset, None, **options, max_worker_restarts=2) as loader:
        iterator = iter(loader)
        next(iterator)
        dataset.value = 7
        os.environ.pop("KILL_WORKER")  # the fork has it: each of its workers would end here
        with pytest.raises(WorkerDiedError):
            list(iterator)
        assert loader.statistics().worker_restarts == 2


class KillOnce(Place):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def __getitem__(self, index):
        if index == 2 and self.path.exists():
            self.path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.value, os.getppid()


def test_a_successor_is_a_fork_of_the_same_process(tmp_path):
    path = tmp_path / "once"
    path.touch()
    dataset = KillOnce(path)
    with DataLoader(dataset, None, **FORK, max_worker_restarts=1) as loader:
        iterator = iter(loader)
        samples = [next(iterator)]
        dataset.value = 7
        samples += iterator
    assert [value for value, _ in samples] == [0] * 4
    assert len({parent for _, parent in samples}) == 1


class Local:
    """A class that no other process finds by its name."""


def test_objects_of_the_programs_own_classes_are_of_its_classes():
    class Inner:
        def __init__(self, value):
            self.value = value

    class Made:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return Inner(index), Local()

    with DataLoader(Made(), None, **FORK) as loader:
        for index, (inner, local) in enumerate(loader):
            assert type(inner) is Inner
            assert inner.value == index
            assert type(local) is Local


SCRIPT = """
from fkat_data import DataLoader

class Made:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index, Made, label, Made.Inner(), made_by(index)

    class Inner:
        pass

def label():
    pass

def made_by(index):
    class New:
        number = index
    return New

with DataLoader(Made(), None, num_workers=2, start_method="fork") as loader:
    for index, (found, cls, function, inner, new) in enumerate(loader):
        assert (found, cls, function, type(inner)) == (index, Made, label, Made.Inner)
        assert new.number == index
"""


def test_classes_and_functions_of_a_script_are_its_own(prepared, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    result = prepared.run(tmp_path / "script.py", folder=tmp_path)
    assert result.returncode == 0, result.stderr


class Numbers(IterableDataset):
    """Divides itself over the workers; a generator makes it, which no copy takes."""

    def __init__(self):
        self.numbers = iter(range(10))
        self.made = (number for number in range(10))

    def __iter__(self):
        info = get_worker_info()
        return (number for number in self.made if number % info.num_workers == info.id)


def test_an_iterable_dataset_that_cannot_be_copied_is_read():
    with DataLoader(Numbers(), 2, **FORK) as loader:
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(10))


class Factory:
    """A factory with what cannot be shipped."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, shard):
        with self.lock:
            yield from ((shard, index) for index in range(3))


def test_a_factory_that_cannot_be_shipped_makes_shards():
    with ShardedDataLoader(0, ["a", "b"], Factory(), num_shard_prefetches=1, start_method="fork") as loader:
        assert list(loader) == [(shard, index) for shard in "ab" for index in range(3)]


class Sharing:
    """Adds to a manager's list and to shared memory, and puts into a queue."""

    def __init__(self, words, queue):
        self.words = words
        self.queue = queue
        self.counts = torch.zeros(6).share_memory_()
        self.own = np.zeros(6)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.words.append(index)
        self.queue.put(index)
        self.counts[index] += 1
        self.own[index] += 1
        return index


def test_managers_queues_and_shared_memory_are_the_programs_and_all_else_is_the_workers():
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        queue = context.Queue()
        queue.put(-1)  # its thread is the program's alone
        assert queue.get() == -1
        words = manager.list([7])
        assert len(words) == 1  # the proxy has a connection
        dataset = Sharing(words, queue)
        with DataLoader(dataset, None, **FORK) as loader:
            assert list(loader) == list(range(6))
        assert sorted(words) == [0, 1, 2, 3, 4, 5, 7]
        assert sorted(queue.get(timeout=30) for _ in range(6)) == list(range(6))
    assert dataset.counts.tolist() == [1] * 6
    assert not dataset.own.any()
    queue.close()
    queue.join_thread()


class Quiet:
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return index, len(multiprocessing.active_children()), threading.active_count()


def test_workers_leave_the_programs_children_its_temporary_folders_and_its_finalizers_alone(tmp_path):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    dataset = Quiet(4)
    dataset.folder = tempfile.TemporaryDirectory(dir=tmp_path)
    finalized = tmp_path / "finalized"
    dataset.end = weakref.finalize(dataset, finalized.touch)
    loop = [dataset]
    loop.append(loop)
    try:
        for _ in range(2):
            with DataLoader(dataset, None, **FORK) as loader:
                assert [sample[1:] for sample in loader] == [[0, 1]] * 4
        gc.collect()
        assert child.is_alive()
        assert os.listdir(dataset.folder.name) == []  # noqa: PTH208 - it is there
        assert not finalized.exists()
    finally:
        child.kill()
        child.join()
        child.close()
        dataset.end.detach()
        dataset.folder.cleanup()


def test_a_program_with_busy_threads_is_forked_again_and_again():
    is_over = threading.Event()
    logger = logging.getLogger("of busy threads")
    logger.addHandler(Remembering())
    logger.propagate = False

    def work():
        while not is_over.is_set():
            logger.warning("a lock is taken, and given back")
            torch.ones(8) @ torch.ones(8, 8)  # a draw takes the lock of the generator, which workers seed

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with DataLoader(Quiet(6), 2, **FORK, collate_fn=list, timeout=120) as loader:
            for _ in range(10):
                assert [sample[0] for batch in loader for sample in batch] == list(range(6))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_signals_that_reach_workers_do_not_wake_the_programs_loop():
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handled = []
    chosen = signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number))
    try:
        with DataLoader(Quiet(400), None, **FORK) as loader:
            iterator = iter(loader)
            next(iterator)
            [parent] = (child for child in psutil.Process().children() if child.name() == "fkat-parent")
            for process in (parent, *parent.children()):
                process.send_signal(signal.SIGUSR1)
            assert len(list(iterator)) == 399
        os.write(writing, b"\0")  # other signals of this process may be there, too
        assert signal.SIGUSR1 not in os.read(reading, 1 << 16)
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, chosen)
        os.close(reading)
        os.close(writing)
    assert handled == []


PROGRAM = """
import atexit, json, os, sys, threading
from fkat_data import DataLoader

class Data:
    def __init__(self):
        self.lock = threading.Lock()

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index

class Held:
    program = os.getpid()

    def __del__(self):
        if os.getpid() != self.program:
            open("released in a fork", "w").close()

    def end(self):
        pass

print("waits in the buffer")
atexit.register(Held().end)
atexit.register(lambda: print("the program ends"))
loader = DataLoader(Data(), None, num_workers=2, start_method="fork", prefetch_factor=1)
iterator = iter(loader)
assert [next(iterator) for _ in range(3)] == [0, 1, 2]
if sys.argv[1] == "exception":
    raise RuntimeError("of the program")
elif sys.argv[1] == "die":
    os.kill(os.getpid(), 9)
elif sys.argv[1] == "whole":
    assert len(list(iterator)) == 997
"""


@pytest.mark.parametrize("end", ["whole", "left", "exception", "die"])
def test_however_the_program_ends_its_exit_hooks_run_once_and_its_forks_are_gone(end, prepared, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    result = prepared.run(tmp_path / "program.py", end, folder=tmp_path)
    assert result.stdout == "waits in the buffer\n" + ("" if end == "die" else "the program ends\n")
    assert (result.returncode == 0) == (end in ("whole", "left")), result.stderr
    assert not (tmp_path / "released in a fork").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_iteration_whose_fork_is_killed_ends_or_is_an_error_and_never_hangs(number):
    with DataLoader(Quiet(200), None, **FORK, max_worker_restarts=1) as loader:
        iterator = iter(loader)
        parent = psutil.Process(next(iter(DataLoader(Place(), None, **FORK)))[1])
        assert parent.pid != os.getpid()
        found = [next(iterator)]
        for child in psutil.Process().children():
            if child.name() == "fkat-parent":
                child.send_signal(number)
        try:
            found += iterator
        except WorkerDiedError:
            assert number == signal.SIGKILL
        else:
            assert [sample[0] for sample in found] == list(range(200))
    with DataLoader(Quiet(5), None, **FORK) as loader:
        assert len(list(loader)) == 5


def test_the_figures_of_a_fork_say_what_it_shares(tmp_path):
    held = np.zeros(32 << 20, np.uint8)
    held[:] = 1

    class Holding:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return int(held[index]) + json.loads("1"), psutil.Process().memory_full_info().uss

    with DataLoader(Holding(), None, **FORK) as loader:
        samples = list(loader)
    assert [value for value, _ in samples] == [2] * 4
    assert max(size for _, size in samples) < held.nbytes


def test_where_the_fork_is_gone_a_dead_worker_is_an_error_that_says_so_and_the_next_iteration_works():
    with DataLoader(Quiet(300), None, num_workers=1, start_method="fork", max_worker_restarts=3) as loader:
        iterator = iter(loader)
        next(iterator)
        [parent] = (child for child in psutil.Process().children() if child.name() == "fkat-parent")
        [worker] = parent.children()
        parent.kill()
        psutil.wait_procs([parent], timeout=60)
        worker.kill()
        with pytest.raises(WorkerDiedError) as caught:
            list(iterator)
        assert any(
            "the fork of this program that they are forks of has ended" in note for note in caught.value.__notes__
        )
        assert [sample[0] for sample in loader] == list(range(300))


def test_a_loader_of_shards_whose_fork_ends_between_two_epochs_forks_the_program_again(caplog):
    with ShardedDataLoader(0, ["a", "b"], Factory(), start_method="fork") as loader:
        expected = list(loader)
        [parent] = (child for child in psutil.Process().children() if child.name() == "fkat-parent")
        parent.kill()
        psutil.wait_procs([parent], timeout=60)
        assert list(loader) == expected
    assert "forked again" in caplog.text
