"""The table from which workers pick microbatches: each is picked once, whoever dies at which instant."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.worker.claim_table import ClaimTable, Pick, Refusal
from fkat_data.worker.messages import NUM_TASKS


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
    allowance=st.integers(0, 30),
    end=st.integers(0, 30),
)
def test_workers_in_any_order_pick_each_microbatch_once_and_in_order(num_workers, turns, first, allowance, end):
    trainer, descriptor = ClaimTable.create(num_workers)
    workers = [ClaimTable(descriptor, num_workers, place) for place in range(num_workers)]
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


@given(
    num_workers=st.integers(1, 4),
    turns=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["pick", "claim", "die"])), max_size=60),
    allowance=st.integers(0, 40),
    end=st.integers(0, 40),
)
def test_what_a_worker_claims_it_picks_later_or_its_successor_and_no_other(num_workers, turns, allowance, end):
    trainer, descriptor = ClaimTable.create(num_workers)
    workers = [ClaimTable(descriptor, num_workers, place) for place in range(num_workers)]
    workers[0].pick(7, 0, 1)  # begins the task
    picked, claimed, last = [0], [set() for _ in workers], [-1] * num_workers
    for turn, action in turns:
        place = turn % num_workers
        if action == "die":
            workers[place] = ClaimTable(descriptor, num_workers, place)
        elif action == "claim":
            found = workers[place].claim(7)
            if found is not None:
                assert trainer.claimant(7, found) == place
                claimed[place].add(found)
        else:
            expected = workers[place].next_own(7)
            found = workers[place].pick(7, 0, allowance)
            if isinstance(found, int):
                assert expected == found > last[place]
                last[place] = found
                picked.append(found)
                assert trainer.of(place) == Pick(7, found)
                assert claimed[place] <= {found} or found in claimed[place]
                claimed[place].discard(found)
                if found >= end:
                    workers[place].end(7, found)
        assert workers[place].num_claims(7) == len(claimed[place])
    assert len(picked) == len(set(picked))
    assert set(picked).union(*claimed) == set(range(trainer.next_index(7)))
    os.close(descriptor)


def test_a_claim_of_another_task_is_forgotten_and_none_is_made_of_what_one_worker_makes_alone(tables):
    trainer, (one, other) = tables(2)
    assert one.pick(5, 0, 10) == 0
    assert [one.claim(5) for _ in range(5)] == [1, 2, 3, 4, None]
    assert other.pick(5, 0, 10) == 5
    assert one.pick(6, 4, 10) == 4
    assert [one.claim(6) for _ in range(5)] == [5, 6, 7, 8, None]
    assert other.own(7, 0)
    assert other.claim(7) is None
    assert one.claim(7) is None
    assert trainer.claimant(7, 0) is None


def test_a_worker_that_dies_when_it_has_picked_a_claim_leaves_it_picked_once(tables):
    trainer, (one, other) = tables(2)
    assert one.pick(5, 0, 10) == 0
    assert (one.claim(5), one.claim(5)) == (1, 2)
    one.note(5, 1)  # and it dies
    assert trainer.of(0) == Pick(5, 1)
    assert one.pick(5, 0, 10) == 2
    assert other.pick(5, 0, 10) == 3
