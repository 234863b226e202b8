"""Mixtures of several ranks: each goes on where it was, or with what other ranks have left."""

import json
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from state_cases import in_group

from fkat_data import DataLoader, StateMismatchError
from fkat_data.mixing import DictDataLoader, Weighted

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is .*:UserWarning")

LENGTHS = st.tuples(st.integers(3, 14), st.integers(3, 14))


class Job:
    """The mixtures of all ranks, whose sources are dealt out."""

    def __init__(self, num_ranks, state=None, *, lengths=(24, 24), is_even=True, on_exhausted="drop"):
        self.mixtures = [mixture(num_ranks, rank, lengths, is_even, on_exhausted) for rank in range(num_ranks)]
        for rank, each in enumerate(self.mixtures) if state is not None else ():
            with in_group(rank, num_ranks):
                each.load_state_dict(state)
        self.flows = [without_end(each) for each in self.mixtures]

    def deliver(self, count):
        return [list(islice(flow, count)) for flow in self.flows]

    def save(self):
        states = [json.loads(json.dumps(each.local_state_dict())) for each in self.mixtures]
        return json.loads(json.dumps(self.mixtures[0].merge_state_dicts(states)))


def mixture(num_ranks, rank, lengths, is_even, on_exhausted):
    sources = {}
    for number, (name, length) in enumerate(zip("ab", lengths, strict=True)):
        samples = range(100 * number, 100 * number + length)
        sources[name] = DataLoader(samples, 1, shuffle=True, seed=number)
        sources[name].deal_out(num_ranks, rank, even_batches=is_even)
    return DictDataLoader(sources, Weighted({"a": 1, "b": 2}, seed=3), key=None, on_exhausted=on_exhausted)


def without_end(each):
    while True:
        for name, batch in each:
            yield name, int(batch)


@pytest.mark.long
@settings(max_examples=40)
@given(st.sampled_from(["drop", "restart", "stop"]), LENGTHS, st.integers(1, 3), st.integers(0, 30))
def test_each_rank_goes_on_at_its_position_where_sources_are_not_equally_long(on_exhausted, lengths, num_ranks, count):
    how = {"lengths": lengths, "is_even": False, "on_exhausted": on_exhausted}
    job = Job(num_ranks, **how)
    job.deliver(count)
    state = job.save()
    resumed = Job(num_ranks, state, **how)
    assert resumed.save() == state
    assert resumed.deliver(25) == job.deliver(25)


@pytest.mark.long
@settings(max_examples=40)
@given(LENGTHS, st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 5))
@example((9, 9), [4, 1], 5)
def test_any_number_of_ranks_at_one_position_delivers_what_others_have_left(lengths, trip, count):
    """Sources that are dealt out evenly are split again by their own states."""
    state, found = None, []
    expected = {*range(lengths[0]), *range(100, 100 + lengths[1])}
    for place, num_ranks in enumerate((*trip, 3)):
        job = Job(num_ranks, state, lengths=lengths)
        stop = None if place == len(trip) else count
        found += [int(batch) for each in job.mixtures for _, batch in islice(each, stop)]
        state = job.save()
        if set(found) == expected:  # the mixtures may not have noticed, and the next ones begin another epoch
            break
    assert set(found) == expected
    # What fills up the last round of each source, by as many ranks as there were then.
    most_ranks = max((*trip, 3)[: place + 1])
    assert len(found) < len(expected) + 2 * most_ranks


def test_ranks_at_other_positions_need_as_many_ranks_and_say_so():
    how = {"lengths": (5, 5), "is_even": False}
    job = Job(2, **how)
    job.deliver(6)
    state = job.save()
    assert state["epoch"] != 0
    with pytest.raises(
        StateMismatchError, match=r"draw.*of 2 ranks at other positions.*of 3 ranks.*the number of ranks that saved"
    ):
        Job(3, state, **how)
    with pytest.raises(StateMismatchError, match="damaged"):
        Job(2, {**state, "left": [["a"]]}, **how)


def test_ranks_between_two_epochs_need_not_be_as_many():
    how = {"lengths": (5, 7), "is_even": False}
    job = Job(2, **how)
    for each in job.mixtures:
        list(each)
    state = job.save()
    assert isinstance(state["sources"]["a"]["taken"], list)
    resumed = Job(3, state, **how)
    fresh = Job(3, **how)
    for each in fresh.mixtures:
        list(each)
    assert resumed.deliver(4) == fresh.deliver(4)


PROGRAM = Path(__file__).parent / "ranks_of_a_mixture.py"


def test_real_ranks_with_unequal_sources_each_resume_at_their_own_position(processes, prepared, tmp_path):
    for _ in range(3):
        for rank in prepared.run_ranks(2, PROGRAM, tmp_path, folder=tmp_path):
            assert rank.returncode == 0, rank.stderr
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found["in_parts"] == found["in_one"], rank
