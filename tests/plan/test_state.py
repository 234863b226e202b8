import copy
import io
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.errors import StateMismatchError
from fkat_data.plan.state import VERSION, RankState, merge, read, read_rank, verify
from fkat_data.position import Position

counts = st.integers(0, 2**31 - 2)
positions = st.builds(Position, counts, counts, counts, counts)
names = st.one_of(st.none(), st.text("0123456789abcdef", min_size=16, max_size=16))
samplers = st.one_of(st.none(), st.dictionaries(st.text(max_size=5), st.integers(), max_size=3))


def rank_states(seed):
    small = st.one_of(st.none(), st.integers(0, 1000))
    return st.builds(RankState, positions, st.just(seed), small, small, names, samplers)


several = st.integers(-(2**70), 2**70).flatmap(lambda seed: st.lists(rank_states(seed), min_size=1, max_size=9))


@given(ranks=several)
def test_what_is_merged_is_read_back(ranks):
    assert read(merge(ranks)) == ranks


@given(ranks=several)
def test_a_rank_state_survives_json(ranks):
    for rank in ranks:
        assert read_rank(json.loads(json.dumps(rank.as_dict()))) == rank
        assert read(rank.as_dict()) == [rank]


@given(ranks=several)
@settings(max_examples=30)
def test_a_state_survives_torch_save_and_loads_as_weights_only(ranks):
    file = io.BytesIO()
    torch.save(merge(ranks), file)
    file.seek(0)
    assert read(torch.load(file, weights_only=True)) == ranks


# As text, with plain numbers: torch.save adds 1.3 kB of zip framing to anything, and 0.3 kB to a tensor.
def test_the_state_of_eight_ranks_takes_less_than_2_kb():
    ranks = [
        RankState(Position(3, 1000 + rank, 17, 54321), 12345, rank, 2048, f"0123456789abcde{rank}") for rank in range(8)
    ]
    assert len(json.dumps(merge(ranks), default=int)) < 1024


def test_the_documented_form_is_what_is_written():
    ranks = [
        RankState(Position(2, 1, 3, 13), 7, 0, 4, "9f3c"),
        RankState(Position(2, 2, 0, 16), 7, 1, 4, "11ab"),
    ]
    state = merge(ranks)
    assert [int(index) for index in state.pop("all_rank_indices")] == [0, 1]
    assert state == {
        "version": 1,
        "epoch": 2,
        "all_rank_microbatches": [3, 0],
        "all_rank_steps": [13, 16],
        "all_rank_epochs": [2, 2],
        "dp_size": 2,
        "fingerprint": {
            "seed": 7,
            "all_rank_dp_ranks": [0, 1],
            "all_rank_num_shards": [4, 4],
            "all_rank_shards": ["9f3c", "11ab"],
        },
    }


@given(ranks=several)
def test_the_epoch_is_the_lowest_of_all_ranks(ranks):
    assert merge(ranks)["epoch"] == min(rank.position.epoch for rank in ranks)


@pytest.mark.parametrize(
    "indices",
    [
        [torch.tensor(0), torch.tensor(3)],
        [torch.tensor([0]), torch.tensor([3])],
        torch.tensor([0, 3]),
        [0, 3],
        (0, 3),
    ],
    ids=["tensors", "tensors of one", "one tensor", "numbers", "tuple"],
)
def test_a_state_with_the_seeds_key_alone_is_between_shards_of_the_first_epoch(indices):
    assert [rank.position for rank in read({"all_rank_indices": indices})] == [
        Position(0, 1, 0, 0),
        Position(0, 4, 0, 0),
    ]


def test_ranks_of_different_seeds_do_not_merge():
    with pytest.raises(StateMismatchError, match=r"fingerprint\.seed.*saved 1, present 2"):
        merge([RankState(Position(0, 0, 0, 0), 1), RankState(Position(0, 0, 0, 0), 2)])


GOOD = merge([RankState(Position(1, 2, 3, 4), 7, 0, 5, "abcd"), RankState(Position(1, 1, 0, 9), 7, 1, 5, "ef01")])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        # another version, or none that is known
        ({"version": VERSION + 1}, "version"),
        ({"version": None}, "version"),
        # other numbers of ranks
        ({"dp_size": 3}, "dp_size"),
        ({"all_rank_indices": []}, "all_rank_indices"),
        ({"all_rank_indices": [torch.tensor(0)]}, "dp_size"),
        ({"all_rank_microbatches": [1]}, "all_rank_microbatches"),
        ({"all_rank_steps": [1, 2, 3]}, "all_rank_steps"),
        ({"all_rank_epochs": []}, "all_rank_epochs"),
        # no counts
        ({"epoch": -1, "all_rank_epochs": None}, "epoch"),
        ({"epoch": "1"}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"epoch": 1.0}, "epoch"),
        ({"all_rank_indices": [-2, 0]}, "all_rank_indices"),
        ({"all_rank_indices": [torch.tensor(0.5), torch.tensor(1)]}, "all_rank_indices"),
        ({"all_rank_indices": [torch.tensor([1, 2]), torch.tensor(1)]}, "all_rank_indices"),
        ({"all_rank_indices": "01"}, "all_rank_indices"),
        ({"all_rank_indices": 5}, "all_rank_indices"),
        ({"all_rank_indices": None}, "all_rank_indices"),
        ({"all_rank_microbatches": [0, -1]}, "all_rank_microbatches"),
        ({"all_rank_microbatches": [0, None]}, "all_rank_microbatches"),
        ({"all_rank_steps": ["a", "b"]}, "all_rank_steps"),
        ({"fingerprint": 5}, "fingerprint"),
        ({"fingerprint": {"all_rank_shards": ["a"]}}, "all_rank_shards"),
    ],
    ids=str,
)
def test_a_state_that_is_none_is_refused_by_the_field_that_shows_it(change, field):
    with pytest.raises(StateMismatchError, match=f"'{field}'"):
        read({**GOOD, **change})


@pytest.mark.parametrize("value", [None, 5, "state", [], [GOOD], b"x"])
def test_what_is_no_mapping_is_no_state(value):
    with pytest.raises(StateMismatchError, match="state_dict"):
        read(value)


@pytest.mark.parametrize("missing", ["version", "epoch", "index"])
def test_a_truncated_rank_state_is_refused(missing):
    state = RankState(Position(1, 2, 3, 4), 7).as_dict()
    del state[missing]
    with pytest.raises(StateMismatchError):
        read(state)


def test_a_state_of_something_else_is_refused():
    for foreign in ({}, {"model": torch.zeros(3)}, {"_snapshot": {}, "version": 1}):
        with pytest.raises(StateMismatchError, match="no state of a ShardedDataLoader"):
            read(foreign)


hostile = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.builds(
            torch.tensor, st.one_of(st.integers(-5, 5), st.floats(-1, 1), st.lists(st.integers(0, 3), max_size=3))
        ),
        st.builds(np.array, st.lists(st.integers(0, 3), max_size=3)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["seed", "all_rank_shards", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(
    field=st.sampled_from([*GOOD, "all_rank_samplers"]),
    value=hostile,
    drop=st.lists(st.sampled_from(list(GOOD)), max_size=2),
)
@settings(max_examples=500, deadline=None)
def test_whatever_stands_in_a_field_it_is_read_or_refused_and_nothing_else(field, value, drop):
    state = copy.copy(GOOD)
    for name in drop:
        state.pop(name, None)
    state[field] = value
    try:
        ranks = read(state)
    except StateMismatchError:
        return
    for rank in ranks:
        assert all(type(count) is int and count >= 0 for count in rank.position)


PRESENT = RankState(Position(1, 0, 0, 0), 7, 0, 5, "abcd")


@pytest.mark.parametrize(
    ("saved", "field"),
    [
        (PRESENT._replace(seed=8), "fingerprint.seed"),
        (PRESENT._replace(dp_rank=1), "fingerprint.dp_rank"),
        (PRESENT._replace(num_shards=6), "fingerprint.num_shards"),
        (PRESENT._replace(shards="ffff"), "fingerprint.shards"),
        (RankState(Position(1, 6, 0, 0)), "all_rank_indices"),
    ],
)
def test_a_state_of_another_plan_is_refused_by_field_with_both_values(saved, field):
    with pytest.raises(StateMismatchError) as caught:
        verify(saved, PRESENT)
    assert caught.value.field == field
    assert "saved" in str(caught.value)
    assert "present" in str(caught.value)


def test_what_one_side_does_not_say_is_no_contradiction():
    verify(RankState(Position(1, 5, 0, 0)), PRESENT)
    verify(PRESENT, RankState(Position(0, 0, 0, 0)))
    verify(PRESENT, PRESENT)
