import copy
import io
import json
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import checkpoint

from fkat_data import ShardedDataLoader
from fkat_data.arguments import STATE_VERSION
from fkat_data.errors import StateMismatchError
from fkat_data.plan.place import Place, Position, without_idle
from fkat_data.plan.state import merge, read, read_rank, saved_place, verify

counts = st.integers(0, 2**31 - 2)
positions = st.builds(Position, counts, counts, counts, counts, ended=st.just(()))
names = st.one_of(st.none(), st.text("0123456789abcdef", min_size=16, max_size=16))
samplers = st.one_of(st.none(), st.dictionaries(st.text(max_size=5), st.integers(), max_size=3))


past = st.lists(st.lists(positions, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple)
splits = st.one_of(st.just((None, ())), st.tuples(st.integers(1, 4), past))


def rank_states(seed, split):
    small = st.one_of(st.none(), st.integers(0, 1000))
    dp_size, layers = map(st.just, split)
    skipped = st.lists(counts, max_size=3).map(tuple)
    files = st.one_of(st.none(), st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple))
    return st.builds(
        Place,
        positions,
        dp_rank=small,
        layers=layers,
        sampler=samplers,
        skipped=skipped,
        files=files,
        seed=st.just(seed),
        dp_size=dp_size,
        num_shards=small,
        shards=names,
    )


several = st.tuples(st.integers(-(2**70), 2**70), splits).flatmap(
    lambda common: st.lists(rank_states(*common), min_size=1, max_size=9)
)


@given(ranks=several)
def test_what_is_merged_is_read_back(ranks):
    read_back = read(merge(ranks))
    if {rank.dp_rank for rank in ranks} == set(range(ranks[0].dp_size or 0)):
        epoch = min(rank.position.epoch for rank in ranks)
        ranks = [rank._replace(layers=without_idle(rank.layers, epoch)) for rank in ranks]
    assert read_back == ranks


@given(ranks=several)
def test_a_rank_state_survives_json(ranks):
    for rank in ranks:
        assert read_rank(json.loads(json.dumps(saved_place(rank)))) == rank
        assert read(saved_place(rank)) == [rank]


@given(ranks=several)
@settings(max_examples=30)
def test_a_state_survives_torch_save_and_loads_as_weights_only(ranks):
    file = io.BytesIO()
    torch.save(merge(ranks), file)
    file.seek(0)
    assert read(torch.load(file, weights_only=True)) == read(merge(ranks))


def eight_ranks():
    return merge(
        [
            Place(
                Position(3, 1000 + rank, 17, 54321),
                seed=12345,
                dp_rank=rank,
                num_shards=2048,
                shards=f"0123456789abcde{rank}",
            )
            for rank in range(8)
        ]
    )


def test_the_state_of_eight_ranks_takes_less_than_2_kb():
    assert len(json.dumps(eight_ranks(), default=int)) < 1024


def test_the_state_of_eight_ranks_adds_less_than_2_kb_to_a_checkpoint():
    sizes_bytes = []
    for content in ({}, eight_ranks()):
        file = io.BytesIO()
        torch.save(content, file)  # frames anything in 1.3 kB
        sizes_bytes.append(len(file.getvalue()))
    assert sizes_bytes[1] - sizes_bytes[0] < 2000


def test_the_documented_form_is_what_is_written():
    ranks = [
        Place(Position(2, 1, 3, 13), seed=7, dp_rank=0, num_shards=4, shards="9f3c", batching="32 in order"),
        Place(Position(2, 2, 0, 16), seed=7, dp_rank=1, num_shards=4, shards="11ab", batching="32 in order"),
    ]
    state = merge(ranks)
    assert [int(index) for index in state.pop("all_rank_indices")] == [0, 1]
    assert state == {
        "version": 2,
        "epoch": 2,
        "all_rank_microbatches": [3, 0],
        "all_rank_steps": [13, 16],
        "all_rank_epochs": [2, 2],
        "all_rank_samplers": (None, None),
        "all_rank_skipped": ((), ()),
        "dp_size": 2,
        "fingerprint": {
            "seed": 7,
            "all_rank_dp_ranks": [0, 1],
            "all_rank_num_shards": [4, 4],
            "all_rank_shards": ["9f3c", "11ab"],
            "all_rank_batchings": ["32 in order"] * 2,
            "all_rank_files": (None, None),
            "dp_size": None,
        },
        "resplits": (),
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
    with pytest.raises(StateMismatchError, match=r"fingerprint\.seed.*saved 1, expected 2"):
        merge([Place(Position(0, 0, 0, 0), seed=1), Place(Position(0, 0, 0, 0), seed=2)])


def test_ranks_of_different_pasts_do_not_merge():
    place = Position(0, 0, 0, 0)
    with pytest.raises(StateMismatchError, match=r"fingerprint\.dp_size.*saved 1, expected 2"):
        merge([Place(place, dp_size=1), Place(place, dp_size=2)])
    with pytest.raises(StateMismatchError, match="resplits"):
        merge([Place(place, dp_size=2), Place(place, dp_size=2, layers=((place,),))])


def test_the_documented_form_of_a_resplit_is_what_is_written():
    layer = (Position(2, 0, 3, 3), Position(3, 1, 0, 2))
    state = saved_place(Place(Position(2, 0, 0, 3), dp_rank=0, dp_size=3, layers=(layer,)))
    assert state["fingerprint"]["dp_size"] == 3
    assert state["resplits"] == [{"epochs": [2, 3], "indices": [-1, 0], "microbatches": [3, 0], "steps": [3, 2]}]


GOOD = merge(
    [
        Place(Position(1, 2, 3, 4), seed=7, dp_rank=0, num_shards=5, shards="abcd"),
        Place(Position(1, 1, 0, 9), seed=7, dp_rank=1, num_shards=5, shards="ef01"),
    ]
)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        # another version, or none that is known
        ({"version": STATE_VERSION + 1}, "version"),
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
        ({"fingerprint": {"dp_size": 0}}, "fingerprint.dp_size"),
        # re-splits that are none
        ({"resplits": 5}, "resplits"),
        ({"resplits": [5]}, "resplits"),
        ({"resplits": [{}]}, "epochs"),
        ({"resplits": [{"epochs": []}]}, "resplits"),
        ({"resplits": [{"epochs": [0], "indices": [0, 1]}]}, "indices"),
        ({"resplits": [{"epochs": [0], "indices": [-2]}]}, "all_rank_indices"),
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
    state = saved_place(Place(Position(1, 2, 3, 4), seed=7))
    del state[missing]
    with pytest.raises(StateMismatchError):
        read(state)


def test_a_state_of_something_else_is_refused():
    for foreign in ({}, {"model": torch.zeros(3)}, {"_snapshot": {}, "version": 1}):
        with pytest.raises(StateMismatchError, match="not a state of a ShardedDataLoader"):
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
    field=st.sampled_from(list(GOOD)),
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
        assert all(type(count) is int and count >= 0 for count in rank.position[:4])


PRESENT = Place(Position(1, 0, 0, 0), seed=7, dp_rank=0, num_shards=5, shards="abcd")


@pytest.mark.parametrize(
    ("saved", "field"),
    [
        (PRESENT._replace(seed=8), "fingerprint.seed"),
        (PRESENT._replace(dp_rank=1), "fingerprint.dp_rank"),
        (PRESENT._replace(num_shards=6), "fingerprint.num_shards"),
        (PRESENT._replace(shards="ffff"), "fingerprint.shards"),
        (Place(Position(1, 6, 0, 0)), "all_rank_indices"),
    ],
)
def test_a_state_of_another_plan_is_refused_by_field_with_both_values(saved, field):
    with pytest.raises(StateMismatchError) as caught:
        verify(saved, PRESENT)
    assert caught.value.field == field
    assert "saved" in str(caught.value)
    assert "expected" in str(caught.value)


def test_what_one_side_does_not_say_is_no_contradiction():
    verify(Place(Position(1, 5, 0, 0)), PRESENT)
    verify(PRESENT, Place(Position(0, 0, 0, 0)))
    verify(PRESENT, PRESENT)


# --- states that a loader is given -------------------------------------------------------------------------------

SHARDS = ["a", "b", "c"]


def a_loader(shards=SHARDS):
    return ShardedDataLoader(7, shards, lambda shard: [f"{shard}{index}" for index in range(4)], multiprocessing=False)


def a_state(num_delivered=6):
    loader = a_loader()
    iterator = iter(loader)
    for _ in range(num_delivered):
        next(iterator)
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
        again = a_loader()
        again.load_state_dict(loader.state_dict())
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


def test_a_state_round_trips_through_a_distributed_checkpoint_and_resumes(tmp_path):
    saved, rest = a_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that torch.distributed is not initialised: that is meant
        checkpoint.save({"loader": saved}, checkpoint_id=tmp_path)
        loader = a_loader()
        target = {"loader": loader.state_dict()}
        checkpoint.load(target, checkpoint_id=tmp_path)
    loader.load_state_dict(target["loader"])
    assert list(loader) == rest


def test_a_loader_is_itself_a_part_of_a_distributed_checkpoint(tmp_path):
    _, rest = a_state()
    running = a_loader()
    iterator = iter(running)
    for _ in range(6):
        next(iterator)
    resumed = a_loader()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save({"loader": running}, checkpoint_id=tmp_path)
        checkpoint.load({"loader": resumed}, checkpoint_id=tmp_path)
    assert list(resumed) == rest == list(iterator)


def test_a_state_that_was_saved_and_loaded_as_weights_only_resumes(tmp_path):
    saved, rest = a_state()
    torch.save({"loader": saved}, tmp_path / "state.pt")
    loader = a_loader()
    loader.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True)["loader"])
    assert list(loader) == rest
