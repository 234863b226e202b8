"""The saved form of a loader's place: what is written, what is read, and what is refused by the field that shows it."""

import copy
import json
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from walks import at_state, begun

from fkat_data import DistributedDataParallelShardSampler, ShardedDataLoader, StateMismatchError
from fkat_data.errors.arguments import STATE_VERSION

SHARDS = ["a", "b", "c"]


def a_loader(shards=SHARDS, seed=7, **options):
    def factory(shard):
        return [f"{shard}{index}" for index in range(4)]

    return ShardedDataLoader(seed, shards, factory, multiprocessing=False, **options)


def a_rank(rank, num_delivered=0, dp_size=2, seed=7):
    """A loader of one of several ranks, after so many microbatches of six shards."""
    loader = a_loader(DistributedDataParallelShardSampler(list("abcdef"), dp_size, rank), seed, dp_rank=rank)
    for _ in range(num_delivered // len(SHARDS) // 4):
        list(loader)
    list(islice(loader, num_delivered % (4 * len(SHARDS))))
    return loader


def merged(*loaders):
    return ShardedDataLoader.merge_state_dicts([loader.local_state_dict() for loader in loaders])


def test_the_documented_form_is_what_is_written():
    state = merged(a_rank(0, 19), a_rank(1, 20))
    assert [int(index) for index in state.pop("all_rank_indices")] == [0, 1]
    names = state["fingerprint"].pop("all_rank_shards")
    assert [len(name) for name in names] == [16, 16]
    assert names[0] != names[1]
    assert state == {
        "version": 2,
        "epoch": 1,
        "all_rank_microbatches": [3, 0],
        "all_rank_steps": [7, 8],
        "all_rank_epochs": [1, 1],
        "all_rank_samplers": (None, None),
        "all_rank_skipped": ((), ()),
        "all_rank_num_left_out": [0, 0],
        "all_rank_left_out": ((), ()),
        "dp_size": 2,
        "fingerprint": {
            "seed": 7,
            "all_rank_dp_ranks": [0, 1],
            "all_rank_num_shards": [3, 3],
            "all_rank_batchings": [None, None],
            "all_rank_files": (None, None),
            "dp_size": 2,
        },
        "resplits": ({"listed": 6, "begun": []},),
    }


def test_the_documented_form_of_a_resplit_is_what_is_written():
    loader = at_state(a_rank(0, dp_size=3), merged(a_rank(0, 15), a_rank(1, 18)))
    state = loader.local_state_dict()
    assert state["fingerprint"]["dp_size"] == 3
    assert state["resplits"] == [
        {"epochs": [1, 1], "indices": [-1, 0], "microbatches": [3, 2], "steps": [3, 6]},
        {"listed": 6, "begun": []},
    ]


@pytest.mark.parametrize(
    "indices",
    [[torch.tensor(1)], [torch.tensor([1])], torch.tensor([1]), [1], (1,)],
    ids=["tensors", "tensors of one", "one tensor", "numbers", "tuple"],
)
def test_a_state_with_the_seeds_key_alone_is_between_shards_of_the_first_epoch(indices):
    loader = at_state(a_loader(), {"all_rank_indices": indices})
    assert (loader.epoch, list(loader)) == (0, ["c0", "c1", "c2", "c3"])


def test_ranks_of_different_runs_do_not_merge():
    with pytest.raises(StateMismatchError, match=r"fingerprint\.seed.*saved 1, expected 2"):
        merged(a_rank(0, seed=1), a_rank(1, seed=2))
    with pytest.raises(StateMismatchError, match=r"fingerprint\.dp_size.*saved 2, expected 3"):
        merged(a_rank(0), a_rank(1, dp_size=3))
    resplit = at_state(a_rank(1), merged(*(a_rank(rank, 1, dp_size=3) for rank in range(3))))
    with pytest.raises(StateMismatchError, match="resplits"):
        merged(a_rank(0), resplit)


GOOD = merged(a_rank(0, 19), a_rank(1, 20))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"version": STATE_VERSION + 1}, "version"),
        # other numbers of ranks
        ({"dp_size": 3}, "dp_size"),
        ({"all_rank_indices": []}, "all_rank_indices"),
        ({"all_rank_indices": [torch.tensor(0)]}, "dp_size"),
        ({"all_rank_microbatches": [1]}, "all_rank_microbatches"),
        ({"all_rank_steps": [1, 2, 3]}, "all_rank_steps"),
        # no counts
        ({"epoch": -1, "all_rank_epochs": None}, "epoch"),
        ({"all_rank_indices": [-2, 0]}, "all_rank_indices"),
        ({"all_rank_indices": [torch.tensor(0.5), torch.tensor(1)]}, "all_rank_indices"),
        ({"fingerprint": {"all_rank_shards": ["a"]}}, "all_rank_shards"),
        ({"fingerprint": {"dp_size": 0}}, "fingerprint.dp_size"),
        # re-splits that are none
        ({"resplits": [{}]}, "epochs"),
        ({"resplits": [{"epochs": []}]}, "resplits"),
        ({"resplits": [{"epochs": [0], "indices": [0, 1]}]}, "indices"),
        ({"resplits": [{"epochs": [0], "indices": [-2]}]}, "all_rank_indices"),
    ],
    ids=str,
)
def test_a_state_that_is_none_is_refused_by_the_field_that_shows_it(change, field):
    with pytest.raises(StateMismatchError, match=f"'{field}'"):
        a_rank(0).load_state_dict({**GOOD, **change})


@pytest.mark.parametrize("value", [None, 5, "state", [], [GOOD], b"x", {}, {"model": torch.zeros(3)}, {"version": 1}])
def test_what_is_no_state_is_refused(value):
    is_mapping = isinstance(value, dict)
    with pytest.raises(StateMismatchError, match="not a state of a ShardedDataLoader" if is_mapping else "state_dict"):
        a_loader().load_state_dict(value)


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


def a_state(num_delivered=6):
    loader = a_loader()
    iterator = begun(loader, num_delivered)
    return loader.state_dict(), list(iterator)


huge = st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), float("nan"), float("inf")])
junk = st.one_of(hostile, huge, st.builds(torch.full, st.just((2, 2)), huge.filter(lambda value: abs(value) < 2**63)))


@st.composite
def mutated(draw):
    """A true state, at some place of which something was dropped, put or cut off."""
    state = copy.deepcopy(draw(st.sampled_from([a_state()[0], a_loader().local_state_dict()])))
    for _ in range(draw(st.integers(1, 3))):
        where = state
        if "fingerprint" in state and isinstance(state["fingerprint"], dict) and draw(st.booleans()):
            where = state["fingerprint"]
        if not where:
            continue
        key = draw(st.sampled_from(sorted(where)))
        kind = draw(st.sampled_from(["drop", "put", "put inside", "cut"]))
        if kind == "drop":
            del where[key]
        elif kind == "put inside" and isinstance(where[key], (list, tuple)):
            where[key] = [draw(junk) for _ in where[key]]
        elif kind == "cut" and isinstance(where[key], (list, tuple)):
            where[key] = where[key][:-1]
        else:
            where[key] = draw(junk)
    return state


def given_to(loader, state):
    """The refusal of a state; None if it was taken. Any other exception fails the test."""
    try:
        loader.load_state_dict(state)
    except StateMismatchError as error:
        return error
    return None


@given(state=st.one_of(mutated(), junk))
@settings(max_examples=200, deadline=None)
def test_a_loader_takes_whatever_it_is_given_or_refuses_it_by_field_and_is_what_it_was(state):
    loader = a_loader()
    before = loader.local_state_dict()
    refusal = given_to(loader, state)
    if refusal is not None:
        assert repr(refusal.field) in str(refusal)
        assert loader.local_state_dict() == before
        assert next(iter(loader)) == "a0"
    else:
        # What was taken can be saved again, and the loader goes on from there.
        json.dumps(loader.local_state_dict())
        again = at_state(a_loader(), loader.state_dict())
        assert again.local_state_dict() == loader.local_state_dict()


class Endless:
    """A user's own sampler, of which nobody knows how many shards it has; its state is whatever it likes."""

    def __iter__(self):
        return iter(SHARDS)

    def state_dict(self):
        return {"own": 1}

    def load_state_dict(self, state):
        assert isinstance(state, dict)


@given(state=mutated())
@settings(max_examples=100, deadline=None)
def test_a_loader_of_a_users_own_sampler_takes_a_state_or_refuses_it_by_field(state):
    loader = a_loader(Endless())
    refusal = given_to(loader, state)
    assert refusal.field if refusal is not None else loader.state_dict()


def test_a_state_that_was_saved_and_loaded_as_weights_only_resumes(tmp_path):
    saved, rest = a_state()
    torch.save({"loader": saved}, tmp_path / "state.pt")
    loader = at_state(a_loader(), torch.load(tmp_path / "state.pt", weights_only=True)["loader"])
    assert list(loader) == rest
