"""The table from which workers claim microbatches: each is claimed once, whoever dies at which instant."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.worker.messages import NUM_TASKS
from fkat_data.worker.process.claim_table import Claim, ClaimTable, Refusal


@pytest.fixture
def tables():
    opened = []

    def make(num_workers):
        trainer, descriptor = ClaimTable.create(num_workers)
        opened.append(descriptor)
        return trainer, [ClaimTable(descriptor, num_workers, place) for place in range(num_workers)]

    yield make
    for descriptor in opened:
        os.close(descriptor)


@given(
    num_workers=st.integers(1, 4),
    turns=st.lists(st.integers(0, 3), max_size=40),
    first=st.integers(0, 5),
    limit=st.integers(0, 30),
    end=st.integers(0, 30),
)
def test_workers_in_any_order_pick_each_microbatch_once_and_in_order(num_workers, turns, first, limit, end):
    trainer, descriptor = ClaimTable.create(num_workers)
    workers = [ClaimTable(descriptor, num_workers, place) for place in range(num_workers)]
    claimed = []
    for turn in turns:
        worker = workers[turn % num_workers]
        found = worker.claim(7, first, limit)
        if isinstance(found, int):
            assert trainer.claim_of(turn % num_workers) == Claim(7, found)
            if found >= end:
                worker.end(7, found)
            else:
                claimed.append(found)
        else:
            is_over = trainer.next_index(7) > max(end, first)
            assert found is (Refusal.OVER if is_over else Refusal.NOT_ALLOWED)
    assert claimed == list(range(first, first + len(claimed)))
    os.close(descriptor)


def test_a_later_task_in_the_same_row_ends_the_one_before(tables):
    _, (one, other) = tables(2)
    assert one.claim(5, 0, 10) == 0
    assert other.claim(5 + NUM_TASKS, 3, 10) == 3
    assert one.claim(5, 0, 10) is Refusal.OVER
    assert not one.claim_all(5, 0)
    one.end(5, 0)
    assert one.claim(5 + NUM_TASKS, 3, 10) == 4


@given(
    num_workers=st.integers(1, 4),
    turns=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["claim", "reserve", "die"])), max_size=60),
    limit=st.integers(0, 40),
    end=st.integers(0, 40),
)
def test_what_a_worker_reserves_it_claims_later_or_its_successor_and_no_other(num_workers, turns, limit, end):
    trainer, descriptor = ClaimTable.create(num_workers)
    workers = [ClaimTable(descriptor, num_workers, place) for place in range(num_workers)]
    workers[0].claim(7, 0, 1)  # begins the task
    claimed, reserved, last = [0], [set() for _ in workers], [-1] * num_workers
    for turn, action in turns:
        place = turn % num_workers
        if action == "die":
            workers[place] = ClaimTable(descriptor, num_workers, place)
        elif action == "reserve":
            found = workers[place].reserve(7)
            if found is not None:
                assert trainer.reserved_by(7, found) == place
                reserved[place].add(found)
        else:
            expected = workers[place].next_claim(7)
            found = workers[place].claim(7, 0, limit)
            if isinstance(found, int):
                assert expected == found > last[place]
                last[place] = found
                claimed.append(found)
                assert trainer.claim_of(place) == Claim(7, found)
                assert reserved[place] <= {found} or found in reserved[place]
                reserved[place].discard(found)
                if found >= end:
                    workers[place].end(7, found)
        assert workers[place].num_reserved(7) == len(reserved[place])
    assert len(claimed) == len(set(claimed))
    assert set(claimed).union(*reserved) == set(range(trainer.next_index(7)))
    os.close(descriptor)


def test_a_claim_of_another_task_is_forgotten_and_none_is_made_of_what_one_worker_makes_alone(tables):
    trainer, (one, other) = tables(2)
    assert one.claim(5, 0, 10) == 0
    assert [one.reserve(5) for _ in range(5)] == [1, 2, 3, 4, None]
    assert other.claim(5, 0, 10) == 5
    assert one.claim(6, 4, 10) == 4
    assert [one.reserve(6) for _ in range(5)] == [5, 6, 7, 8, None]
    assert other.claim_all(7, 0)
    assert other.reserve(7) is None
    assert one.reserve(7) is None
    assert trainer.reserved_by(7, 0) is None


def test_a_worker_that_dies_when_it_has_picked_a_claim_leaves_it_picked_once(tables):
    trainer, (one, other) = tables(2)
    assert one.claim(5, 0, 10) == 0
    assert (one.reserve(5), one.reserve(5)) == (1, 2)
    one.write_claim(5, 1)  # and it dies
    assert trainer.claim_of(0) == Claim(5, 1)
    assert one.claim(5, 0, 10) == 2
    assert other.claim(5, 0, 10) == 3
