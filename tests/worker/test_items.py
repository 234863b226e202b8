"""Items that threads make are those made in turn; what threads could change is found out."""

import contextvars
import random
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from meeting import Meeting
from walks import wait_until

import fkat_data
from fkat_data import ConfigurationError
from fkat_data.observe.stages import StageClock, new_page, reading
from fkat_data.seeding import enter_place, leave_place, preserved_generators, seed_global_generators
from fkat_data.worker.items import ItemThreads, items_in_turn


@pytest.fixture(autouse=True)
def _generators_as_they_were():
    with preserved_generators():
        yield


@pytest.fixture
def threads():
    made = ItemThreads(4)
    yield made
    made.close()


class Items:
    """Items by a function of the index."""

    def __init__(self, function):
        self.function = function

    def __getitem__(self, index):
        return self.function(index)


def draws():
    made = fkat_data.item_generators()
    return made.python.random(), float(made.numpy.random()), float(torch.rand((), generator=made.torch))


@given(num_items=st.integers(0, 20), num_threads=st.integers(1, 8), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=50, deadline=None)
def test_items_come_in_their_order_with_draws_of_their_places(num_items, num_threads, seed):
    dataset = Items(lambda index: (index, draws(), draws()))
    enter_place(seed)
    in_turn = items_in_turn(dataset, range(num_items))
    threads = ItemThreads(num_threads)
    assert threads.items(dataset, range(num_items)) == in_turn
    assert threads.items(dataset, range(num_items)) == in_turn
    threads.close()
    assert [index for index, _, _ in in_turn] == list(range(num_items))
    assert len({made[1] for made in in_turn}) == num_items
    assert all(first != second for _, first, second in in_turn)


def test_an_items_draws_are_these():
    """They decide on every augmentation of a run with threads: a change of them changes what a saved run goes on with."""
    enter_place(7)
    assert items_in_turn(Items(lambda index: draws()), range(2)) == GOLDEN[:2]
    assert draws() == GOLDEN[2]


def test_outside_of_production_draws_follow_from_torchs_generator():
    leave_place()
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        found.append((draws(), draws()))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_items_are_made_at_once(threads):
    meeting = Meeting(4)
    threads.items(Items(lambda index: meeting.wait()), range(8))


@pytest.mark.parametrize("kind", [ValueError, SystemExit, StopIteration])
def test_the_first_items_error_is_raised_and_no_item_is_in_work_then(threads, kind):
    begun, ended = [], []

    def make(index):
        begun.append(index)
        time.sleep(0.02 if index % 2 else 0.05)
        ended.append(index)
        if index in (2, 3, 9):
            raise kind(index)

    with pytest.raises(kind) as caught:
        threads.items(Items(make), range(30))
    assert caught.value.args == (2,)
    assert sorted(begun) == sorted(ended)
    assert len(begun) < 12
    assert threads.items(Items(str), range(9)) == [str(index) for index in range(9)]


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (random.random, "python's"),
        (lambda: random.gauss(0, 1), "python's"),
        (np.random.random_sample, "numpy's"),
        (np.random.standard_normal, "numpy's"),
        (lambda: torch.rand(()), "torch's"),
        (lambda: torch.randperm(3), "torch's"),
        (lambda: torch.manual_seed(0), "torch's"),
    ],
)
def test_a_dataset_that_draws_from_a_shared_generator_is_refused(threads, draw, name):
    seed_global_generators(4)  # as before each microbatch
    with pytest.raises(ConfigurationError, match=f"num_threads_per_worker = 4: expected 1 for Items, .*{name}"):
        threads.items(Items(lambda index: draw() if index == 7 else None), range(8))
    assert items_in_turn(Items(lambda index: draw()), range(2))


@pytest.mark.parametrize("end", ["close", "drop"])
def test_threads_end_with_their_owner(end):
    before = set(threading.enumerate())
    threads = ItemThreads(3)
    assert not set(threading.enumerate()) - before
    threads.items(Items(str), range(9))
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    if end == "close":
        threads.close()
        threads.close()
    del threads
    wait_until(lambda: not any(thread.is_alive() for thread in started))


def test_items_see_the_variables_of_the_workers_thread(threads):
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    with torch.no_grad():
        found = threads.items(Items(lambda index: (variable.get(), torch.is_grad_enabled())), range(4))
    assert found == [("set", False)] * 4
    assert threads.items(Items(lambda index: torch.is_grad_enabled()), range(2)) == [True, True]


def test_time_that_threads_wait_for_a_store_counts_by_its_share(threads):
    clock = StageClock(new_page())

    def make(index):
        if index % 2:
            time.sleep(0.05)
        else:
            with reading(), reading():
                time.sleep(0.05)

    with clock.installed():
        clock.mark("produce", 0)
        threads.items(Items(make), range(16))
        clock.mark("")
    store_s, produce_s = clock.times().of("store"), clock.times().of("produce")
    assert 0.3 < store_s / (store_s + produce_s) < 0.7
    assert store_s + produce_s > 0.19


GOLDEN = [
    (0.0434478966059727, 0.907096513479091, 0.1399349570274353),
    (0.01777720748852396, 0.1669404207648466, 0.9154772758483887),
    (0.32383276483316237, 0.625095466604667, 0.5349225401878357),
]
