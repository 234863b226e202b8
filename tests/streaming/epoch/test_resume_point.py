import multiprocessing
import os
import pickle
import random
import threading

import pytest

from fkat_data.errors import ConfigurationError, StaleIteratorError
from fkat_data.machine import started_at
from fkat_data.streaming.epoch.resume_point import ResumePoint, SharedResumePoint
from fkat_data.streaming.epoch.torch_iteration import TorchIteration, trainer_here


def test_an_iteration_is_the_next_epoch_and_keeps_what_is_settled():
    shared = SharedResumePoint()
    assert shared.current() is None
    assert shared.next() == ResumePoint()
    shared.go_to(ResumePoint(3, 40, 2, 7, 4))
    assert shared.begin() == ResumePoint(3, 40, 2, 7, 4) == shared.current()
    assert shared.begin() == ResumePoint(4, 0, 2, 7, 4)
    assert shared.next() == ResumePoint(5, 0, 2, 7, 4)


def in_fork(function):
    """What a function returns in a fork of this process."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, pickle.dumps(function()))
        except ConfigurationError as error:
            os.write(write, pickle.dumps(error))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        result = pickle.load(file)
    os.waitpid(pid, 0)
    if isinstance(result, ConfigurationError):
        raise result
    return result


class Worker:
    """A worker of this process: it has its own count of what it began, and the shared rows."""

    def __init__(self, shared, key, number=0):
        self._shared, self._iteration, self._counts = shared, TorchIteration(key, number), (0, 0)

    def begin(self, **options):
        shared = self._shared
        before = shared._begun_key, shared._num_begun
        shared._begun_key, shared._num_begun = self._counts
        try:
            return shared.begin(self._iteration, **options)
        finally:
            self._counts = shared._begun_key, shared._num_begun
            shared._begun_key, shared._num_begun = before


def test_workers_of_one_iterator_begin_together_whatever_their_turns():
    generator = random.Random(5)
    for _ in range(50):
        shared = SharedResumePoint()
        workers = [Worker(shared, key) for key in (11, 12, 13) for _ in range(3)]
        epochs = [[] for _ in workers]
        turns = [index for index in range(len(workers)) for _ in range(4)]
        generator.shuffle(turns)
        for turn in turns:
            epochs[turn].append(workers[turn].begin().epoch)
        for first in (0, 3, 6):
            assert epochs[first] == epochs[first + 1] == epochs[first + 2]
        assert sorted(epochs[0] + epochs[3] + epochs[6]) == list(range(12))


def test_a_state_that_is_loaded_is_for_the_iteration_that_follows():
    shared = SharedResumePoint()
    first, second = Worker(shared, 13), Worker(shared, 13)
    assert first.begin().epoch == 0
    shared.go_to(ResumePoint(1, 8))
    assert second.begin().epoch == 0
    assert first.begin() == second.begin() == ResumePoint(1, 8)
    assert shared.begin().epoch == 2


def test_what_is_forgotten_or_overtaken_is_refused_where_it_matters():
    shared = SharedResumePoint()
    slow = Worker(shared, 1)
    slow.begin()
    Worker(shared, 2, number=40).begin(is_order_needed=True)
    assert Worker(shared, 3, number=30).begin().epoch == 2
    with pytest.raises(StaleIteratorError, match="StreamingDataset of its own"):
        Worker(shared, 4, number=30).begin(is_order_needed=True)
    kept = Worker(shared, 6, number=50)
    kept.begin(is_order_needed=True)
    Worker(shared, 7, number=60).begin(is_order_needed=True)
    assert kept.begin(is_order_needed=True).epoch == 5
    quick = Worker(shared, 5)
    for _ in range(600):
        quick.begin()
    with pytest.raises(StaleIteratorError, match="512"):
        slow.begin()


def test_threads_of_a_process_wait_for_each_other():
    shared = SharedResumePoint()
    epochs = []
    thread = threading.Thread(target=lambda: epochs.append(shared.begin().epoch))
    with shared._locked():
        thread.start()
        thread.join(0.1)
        assert (epochs, shared.begin().epoch) == ([], 0)  # the thread that has its turn may come again
    thread.join()
    assert epochs == [1]


@pytest.mark.usefixtures("processes")
def test_a_fork_while_another_thread_has_its_turn_does_not_wait_for_it():
    shared = SharedResumePoint()
    has_turn, is_over = threading.Event(), threading.Event()

    def hold():
        with shared._locked():
            has_turn.set()
            is_over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    has_turn.wait()
    # The page's lock belongs to this process, so that the fork asks about a page of its own.
    assert in_fork(lambda: SharedResumePoint().begin().epoch) == 0
    is_over.set()
    thread.join()


def test_a_copy_has_its_own_resume_point():
    shared = SharedResumePoint()
    shared.begin()
    copy = pickle.loads(pickle.dumps(shared))
    assert copy.begin().epoch == 1
    assert shared.next().epoch == 1
    assert copy.current() == ResumePoint(1)


@pytest.mark.usefixtures("processes")
def test_processes_that_share_a_dataset_count_for_themselves():
    shared = SharedResumePoint()
    shared.begin()
    for _ in range(3):
        assert in_fork(lambda: [shared.current().epoch, shared.begin().epoch, shared.begin().epoch]) == [0, 1, 2]
    assert shared.next().epoch == 1


@pytest.mark.usefixtures("processes")
def test_the_rows_of_ended_processes_are_used_again():
    shared = SharedResumePoint()
    assert in_fork(lambda: shared.begin().epoch) == 0
    here = trainer_here()
    shared._trainers["process"][2:] = (here[0], here[1] + 1)  # one that had this number before
    assert in_fork(lambda: shared.begin().epoch) == 0
    shared._trainers["process"][1:] = (os.getppid(), started_at(os.getppid()))
    with pytest.raises(ConfigurationError, match="a dataset for each process"):
        in_fork(lambda: shared.begin().epoch)
    assert shared.begin().epoch == 0


def test_a_process_iterates_for_itself_unless_a_dataloader_started_it():
    assert trainer_here()[0] == os.getpid()
    assert trainer_here() == trainer_here()
    assert multiprocessing.parent_process() is None


@pytest.mark.usefixtures("nothing_left_behind")
def test_nothing_is_left_of_it():
    for _ in range(3):
        SharedResumePoint().begin()
