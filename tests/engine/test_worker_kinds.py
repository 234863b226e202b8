"""Workers of every kind keep one contract; and what threads alone have to do."""

import random
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import torch
from drop_in_examples import Strand
from meeting import Meeting
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, RandomSampler
from worker_protocol import check_worker

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader, item_generators
from fkat_data.errors import ConfigurationError, WorkerStalledError
from fkat_data.testing.contracts import WorkerContract


@pytest.mark.parametrize("kind", [None, "threads", pytest.param("processes", marks=pytest.mark.with_processes)])
def test_a_worker_does_what_the_protocol_says(kind):
    check_worker(kind)


@pytest.mark.usefixtures("processes")
class TestProcesses(WorkerContract):
    stall_timeout_s = 2.0

    def options(self):
        return {"workers": "processes"}

    def left(self):
        return [child for child in psutil.Process().children(recursive=True) if "fkat_data" in child.name()]


class TestThreads(WorkerContract):
    can_die = False

    def options(self):
        return {"workers": "threads"}

    def left(self):
        return [thread for thread in threading.enumerate() if thread.name.startswith("fkat_data worker")]


class Numbers(Dataset):
    """Numbers, made by a function; 60 of them."""

    def __init__(self, make=torch.tensor):
        self.make = make

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return self.make(index)


def threads(dataset, batch_size=4, **options):
    return DataLoader(dataset, batch_size, num_workers=2, workers="threads", **options)


COUNTED = """
import threading
import torch
from fkat_data import DataLoader

torch_threads = []
with DataLoader(list(range(40)), 4, num_workers=3, workers="threads") as loader:
    assert len(list(loader)) == 10
    other = threading.Thread(target=lambda: torch_threads.append(torch.get_num_threads()))
    other.start()
    other.join()
    print(torch.get_num_threads(), *torch_threads)
"""


def test_the_program_keeps_its_number_of_torch_threads(run_script):
    expected = run_script("import torch; print(torch.get_num_threads())").stdout.split()
    assert run_script(COUNTED).stdout.split() == expected * 2


def test_threads_make_several_microbatches_at_once():
    meeting = Meeting(3)

    def meet(index):
        if index in (8, 9, 10):
            meeting.wait()  # alone, none of them would go on
        return index

    with DataLoader(Numbers(meet), 1, num_workers=3, workers="threads") as loader:
        assert torch.cat(list(loader)).tolist() == list(range(60))


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (random.random, "python"),
        (np.random.random, "numpy"),
        (lambda: torch.rand(()), "torch"),
    ],
)
@pytest.mark.parametrize("first", [0, 33])
def test_a_dataset_that_draws_from_a_shared_generator_is_refused(draw, name, first):
    """Also one that begins to draw within an epoch: the caller sees it where it waits."""

    def make(index):
        time.sleep(0.005)
        if index >= first:
            draw()
        return index

    with threads(Numbers(make), seed=1) as loader, pytest.raises(ConfigurationError, match=f"workers.*{name}"):
        [list(loader) for _ in range(100)]  # on a busy machine, the caller may wait in few of them


def test_the_programs_own_draws_are_neither_moved_nor_taken_for_the_datasets():
    def shuffled(shard):
        random.random()  # where a shard is opened, generators are its own
        return TorchDataLoader(Numbers(lambda index: (index, item_generators().python.random())), 4, shuffle=True)

    def draws(*_):
        return random.random(), np.random.random(), torch.rand(()).item()

    states = []
    for options in ({"multiprocessing": False}, {"workers": "threads", "num_workers_per_shard": 2}):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        with ShardedDataLoader(0, ["a", "b"], shuffled, **options) as loader:
            states.append([*map(draws, loader)])
    assert states[0] == states[1]


def test_a_shuffled_shard_with_windows_is_that_of_the_callers_thread():
    def rows(samples):
        return [sample + item_generators().python.randrange(2) for sample in samples for _ in range(int(sample) % 3)]

    found = []
    for options in ({"multiprocessing": False}, {"workers": "threads"}):
        factory = DataLoaderFactory(
            lambda shard: Numbers(), sampler_generator=RandomSampler, batch_size=4, window_fn=rows, window_size=7
        )
        with ShardedDataLoader(0, ["a", "b"], factory, **options) as loader:
            found.append([microbatch.tolist() for _ in range(2) for microbatch in loader])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: threads(Strand(range(9))), r"iterable dataset.*get_worker_info\(\)"),
        (lambda: threads(Numbers(), worker_init_fn=print), "worker_init_fn"),
        (lambda: DataLoader(Numbers(), workers="fibers"), "'processes', 'threads'"),
        (
            lambda: list(
                ShardedDataLoader(0, ["a"], lambda shard: TorchDataLoader(Numbers(), num_workers=1), workers="threads")
            ),
            "more than torch's own",
        ),
    ],
)
def test_what_threads_cannot_make_is_refused_by_name(make, reason):
    with pytest.raises(ConfigurationError, match=f"^workers = .*{reason}"):
        make()


def test_an_iterable_dataset_in_the_callers_thread_needs_no_threads():
    assert len(list(DataLoader(Strand(range(9)), 2, workers="threads"))) == 5


def is_running(name):
    """Whether a function of this name runs, in any thread."""
    frames = list(sys._current_frames().values())
    while frames:
        if any(frame.f_code.co_name == name for frame in frames):
            return True
        frames = [frame.f_back for frame in frames if frame.f_back is not None]
    return False


def test_a_thread_that_does_not_end_is_named_with_its_stack_when_the_loader_is_closed(caplog):
    is_closed = threading.Event()

    def lasting(index):
        if index == 9:
            is_closed.wait(30)
        return index

    with threads(Numbers(lasting)) as loader:
        next(iter(loader))
        while not is_running("lasting"):
            time.sleep(0.01)
    assert [("in lasting" in text, "fkat_data worker" in text) for text in caplog.messages if "closed" in text] == [
        (True, True)
    ]
    is_closed.set()


def test_a_first_microbatch_that_does_not_come_is_an_error_too():
    is_over = threading.Event()
    with threads(Numbers(lambda _: is_over.wait(30)), timeout=1) as loader:
        with pytest.raises(WorkerStalledError, match=r"(?s)microbatch 0 .*in fetch"):
            next(iter(loader))
        is_over.set()


def test_what_may_lie_ready_is_bounded_by_its_bytes():
    made = []

    def large(index):
        made.append(index)
        return torch.full((1 << 19,), index, dtype=torch.uint8)

    with threads(Numbers(large), 1, memory_limit_bytes=1 << 21, prefetch_factor=30) as loader:
        iterator = iter(loader)
        for count in range(1, 30):
            assert next(iterator)[0, 0] == count - 1
            time.sleep(0.002)
            if count > 8:  # the sizes are known
                assert len(made) <= count + 8, count


def test_statistics_know_threads_as_workers():
    with threads(Numbers(lambda index: time.sleep(0.002) or index), seed=0) as loader:
        assert len(list(loader)) == 15
        found = loader.statistics()
    assert (found.num_workers, found.produced, found.delivered) == (2, 15, 15)
    assert found.produce_s > 0.1
    assert "worker" in str(found.verdict)
