import multiprocessing
import os
import pickle
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from own_datasets import Endless, Iterated
from streaming_examples import numbers
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info
from walks import wait_until

from fkat_data.streaming import StreamingDataLoader, StreamingDataset
from fkat_data.streaming.reader import reader_of

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.filterwarnings("ignore:This DataLoader will create")]


@pytest.fixture(scope="module")
def epochs(options):
    loader = StreamingDataLoader(StreamingDataset(**options))
    return [numbers(loader) for _ in range(9)]


def seeded(loader):
    torch.manual_seed(42)
    return iter(loader)


WAYS = [
    ("fork", 2, True),
    ("fork", 3, False),
    ("fork", 4, True),
    ("spawn", 1, True),
]


@pytest.mark.parametrize(("method", "num_workers", "is_persistent"), WAYS, ids=str)
def test_each_iteration_is_the_next_epoch(options, epochs, method, num_workers, is_persistent):
    dataset = StreamingDataset(**options)
    given = {"multiprocessing_context": method, "num_workers": num_workers, "persistent_workers": is_persistent}
    loader = DataLoader(dataset, batch_size=4, **given)
    assert numbers(seeded(loader)) == epochs[0]
    for batch in seeded(loader):
        assert batch["number"].tolist() == epochs[1][0]
        break
    # Two loaders in turn, both alive.
    other = DataLoader(dataset, batch_size=4, **given)
    first = seeded(loader)
    wait_until(lambda: dataset.next_epoch == 3)  # workers that stay begin an epoch behind torch's word of it
    pairs = list(zip(first, seeded(other), strict=True))
    assert [numbers(batches) for batches in zip(*pairs, strict=True)] == epochs[2:4]
    state = dataset.state_dict(8, from_beginning=False)
    assert (state["epoch"], dataset.next_epoch) == (3, 4)
    dataset.load_state_dict({**state, "epoch": 1})
    assert numbers(seeded(loader)) == epochs[1][2:]
    assert numbers(seeded(other)) == epochs[2]
    del loader, other


def test_spawned_iterators_take_epochs_in_the_order_in_which_they_are_made(options, epochs):
    dataset = StreamingDataset(**options)
    spawned = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "spawn"}
    first, second = (seeded(DataLoader(dataset, **spawned)) for _ in range(2))
    assert dataset.next_epoch == 2
    # As the second may have begun to read before the first.
    assert [numbers(second), numbers(first)] == [epochs[1], epochs[0]]


class Wrapper(IterableDataset):
    """A user's own dataset around ours."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for sample in self.dataset:
            yield {"number": sample["number"]}


def test_datasets_around_it_count_alike(options, epochs):
    forked = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork"}
    loader = DataLoader(Wrapper(StreamingDataset(**options)), **forked)
    assert [numbers(seeded(loader)) for _ in range(2)] == epochs[:2]
    dataset = StreamingDataset(**options | {"epoch_size": 80})
    one = numbers(StreamingDataLoader(StreamingDataset(**options | {"epoch_size": 80})))
    twice = numbers(DataLoader(ChainDataset([dataset, dataset]), **forked))
    assert twice[:20] == one
    assert len(twice) == 40
    own = Iterated(**options)
    assert numbers(DataLoader(own, **forked)) == [[number + 1000 for number in batch] for batch in epochs[0]]
    assert own.next_epoch == 1
    endless = iter(DataLoader(Endless(**options | {"epoch_size": 80}), **forked))
    found = [next(endless)["number"].tolist() for _ in range(60)]
    assert [[number - 1000 for number in batch] for batch in found[:20]] == one
    assert len(set(map(tuple, found))) == 60


def test_a_torch_worker_can_be_told_apart(caplog, options):
    # If torch changes what this library reads of it, the warning says so.
    numbers(DataLoader(StreamingDataset(**options), batch_size=4, num_workers=1, multiprocessing_context="fork"))
    assert "unknown kind" not in caplog.text


class Hesitant(StreamingDataset):
    """The workers of the first loader are the last to begin."""

    def __iter__(self):
        if get_worker_info() is not None and multiprocessing.current_process()._identity[-1] - self.first <= 2:
            time.sleep(0.5)
        return super().__iter__()


def test_loaders_that_begin_at_one_instant_get_their_epochs_in_order(options, epochs):
    dataset = Hesitant(**options)
    dataset.first = next(multiprocessing.process._process_counter)
    iterators = [iter(DataLoader(dataset, batch_size=4, num_workers=2)) for _ in range(2)]
    assert [numbers(iterator) for iterator in iterators] == epochs[:2]


def in_fork(function):
    """What a function returns in a fork of this process, which has half a minute."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(30)
            os.write(write, pickle.dumps(function()))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        result = pickle.load(file)
    os.waitpid(pid, 0)
    return result


def begun(dataset, count=1):
    return [reader_of(dataset).begin_epoch().epoch for _ in range(count)]


def test_processes_that_hold_one_dataset_count_for_themselves_and_so_does_a_copy(options):
    dataset = StreamingDataset(**options)
    assert begun(dataset) == [0]
    for _ in range(3):
        assert in_fork(lambda: begun(dataset, 2)) == [1, 2]
        assert in_fork(lambda: in_fork(lambda: begun(dataset))) == [1]
    assert begun(pickle.loads(pickle.dumps(dataset)), 2) == [1, 2]
    assert dataset.next_epoch == 1


def test_threads_take_turns_and_a_fork_waits_for_none_of_them(options):
    dataset, is_over = StreamingDataset(**options), threading.Event()
    found = []

    def work():
        while not is_over.is_set():
            found.extend(begun(dataset))

    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            threads.submit(work)
        for _ in range(30):
            assert len(in_fork(lambda: begun(dataset, 2))) == 2
        is_over.set()
    assert sorted(found) == list(range(len(found)))


def test_a_fork_keeps_nothing_of_its_caller():
    def forked():
        kept = torch.zeros(1)
        os.waitpid(os.fork() or os._exit(0), 0)
        return weakref.ref(kept)

    assert forked()() is None
