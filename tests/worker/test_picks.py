"""The table from which workers pick microbatches: each is picked once, whoever dies at which instant."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.worker.messages import NUM_TASKS
from fkat_data.worker.picks import Pick, Picks, Refusal


@pytest.fixture
def tables():
    opened = []

    def make(num_workers):
        trainer, descriptor = Picks.create(num_workers)
        opened.append(descriptor)
        return trainer, [Picks(descriptor, num_workers, place) for place in range(num_workers)]

    yield make
    for descriptor in opened:
        os.close(descriptor)


@given(
    num_workers=st.integers(1, 4),
    turns=st.lists(st.integers(0, 3), max_size=40),
    first=st.integers(0, 5),
    allowance=st.integers(0, 30),
    end=st.integers(0, 30),
)
def test_workers_in_any_order_pick_each_microbatch_once_and_in_order(num_workers, turns, first, allowance, end):
    trainer, descriptor = Picks.create(num_workers)
    workers = [Picks(descriptor, num_workers, place) for place in range(num_workers)]
    picked = []
    for turn in turns:
        worker = workers[turn % num_workers]
        found = worker.pick(7, first, allowance)
        if isinstance(found, int):
            assert trainer.of(turn % num_workers) == Pick(7, found)
            if found >= end:
                worker.end(7, found)
            else:
                picked.append(found)
        else:
            is_over = trainer.next_index(7) > max(end, first)
            assert found is (Refusal.OVER if is_over else Refusal.NOT_ALLOWED)
    assert picked == list(range(first, first + len(picked)))
    os.close(descriptor)


def test_a_later_task_in_the_same_row_ends_the_one_before(tables):
    _, (one, other) = tables(2)
    assert one.pick(5, 0, 10) == 0
    assert other.pick(5 + NUM_TASKS, 3, 10) == 3
    assert one.pick(5, 0, 10) is Refusal.OVER
    assert not one.own(5, 0)
    one.end(5, 0)
    assert one.pick(5 + NUM_TASKS, 3, 10) == 4
