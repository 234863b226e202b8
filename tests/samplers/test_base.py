import copy
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_examples import following
from omegaconf import OmegaConf
from walks import at_state, begun

from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError
from fkat_data.samplers import ShardSampler, ShuffledShardSampler, check_shards
from fkat_data.types import Stateful


class Growing(ShardSampler):
    """A user's sampler: each epoch has one shard more; it never calls super().__init__()."""

    def __init__(self, first):
        self.first = first

    def shards(self, epoch):
        return [f"{epoch}-{index}" for index in range(self.first + epoch)]


def test_a_loop_is_an_epoch_and_the_epoch_can_be_chosen():
    sampler = Growing(2)
    next(iter(sampler))
    assert list(sampler) == Growing(2).shards(1), "one that was left early is not taken up again"
    for epoch in (3, 1):
        sampler.set_epoch(epoch)
        assert list(sampler) == Growing(2).shards(epoch)
    next(iter(sampler))
    sampler.set_epoch(2)
    assert list(sampler) == Growing(2).shards(2), "choosing it begins it again"
    sampler.load_state_dict({"version": 1, "epoch": 1, "index": 2})
    sampler.set_epoch(1)
    assert list(sampler) == ["1-2"], "but for a place that was loaded"


@pytest.mark.parametrize(
    "replace",
    [
        iter,
        lambda sampler: sampler.set_epoch(1),
        lambda sampler: sampler.load_state_dict({"version": 1, "epoch": 0, "index": 2}),
    ],
)
def test_an_iterator_that_was_replaced_says_so_and_moves_nothing(replace):
    sampler = Growing(3)
    old = begun(sampler, 1)
    replace(sampler)
    state = sampler.state_dict()
    with pytest.raises(StaleIteratorError, match="after 1 shards"):
        next(old)
    assert sampler.state_dict() == state


def test_a_sampler_is_stateful_and_its_state_is_plain():
    sampler = Growing(3)
    assert isinstance(sampler, Stateful)
    assert sampler.state_dict() == {"version": 1, "epoch": 0, "index": 0}
    next(iter(sampler))
    assert sampler.state_dict() == {"version": 1, "epoch": 0, "index": 1}


def test_a_state_at_an_end_of_an_epoch_is_loaded_in_its_canonical_form():
    sampler = at_state(Growing(2), {"version": 1, "epoch": 0, "index": 2})
    assert sampler.state_dict() == {"version": 1, "epoch": 1, "index": 0}


@given(first=st.integers(1, 4), stops=st.lists(st.integers(0, 12), min_size=1, max_size=3))
def test_resuming_anywhere_again_and_again_equals_no_stop(first, stops):
    sampler, taken = Growing(first), []
    for count in stops:
        taken += following(sampler, count)
        state = sampler.state_dict()
        sampler = at_state(Growing(first), state)
        assert sampler.state_dict() == state
    taken += following(sampler, 5)
    assert taken == [shard for epoch in range(12) for shard in Growing(first).shards(epoch)][: len(taken)]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
def test_a_copy_has_the_same_position(duplicate):
    sampler = ShuffledShardSampler(["a", "b", "c"], seed=1)
    next(iter(sampler))
    twin = duplicate(sampler)
    assert twin.state_dict() == sampler.state_dict()
    assert list(twin) == list(sampler)


@pytest.mark.parametrize(
    ("state", "field"),
    [
        ([1, 0, 0], "state_dict"),
        ({"epoch": 0, "index": 0}, "version"),
        ({"version": 1, "index": 0}, "epoch"),
        ({"version": 1, "epoch": 0}, "index"),
        ({"version": 2, "epoch": 0, "index": 0}, "version"),
        ({"version": 1, "epoch": -1, "index": 0}, "epoch"),
        ({"version": 1, "epoch": 0, "index": -1}, "index"),
        ({"version": 1, "epoch": 0, "index": 4}, "index"),  # three shards: another plan
    ],
)
def test_a_bad_state_is_refused_by_its_field_and_changes_nothing(state, field):
    sampler = Growing(3)
    next(iter(sampler))
    before = sampler.state_dict()
    with pytest.raises(StateMismatchError) as raised:
        sampler.load_state_dict(state)
    assert raised.value.field == field
    assert sampler.state_dict() == before


def test_a_sampler_without_shards_says_what_to_implement():
    class Forgotten(ShardSampler):
        pass

    with pytest.raises(NotImplementedError, match=r"Forgotten must implement shards\(epoch\)"):
        list(Forgotten())


@pytest.mark.parametrize(
    ("shards", "plain"),
    [
        (("a", ["b", "c"]), ["a", ["b", "c"]]),
        ([("a", "b")], [("a", "b")]),
        ([Path("/x/a"), [Path("/x/b"), "c"]], ["/x/a", ["/x/b", "c"]]),
        (OmegaConf.create(["a", ["b", "c"]]), ["a", ["b", "c"]]),
        (np.array(["a", "b"]), ["a", "b"]),
        (OrderedDict(a=1, b=2).keys(), ["a", "b"]),
    ],
)
def test_shards_become_plain_strings_and_lists(shards, plain):
    checked = check_shards("shards", shards)
    assert checked == plain
    assert all(type(shard) in (str, list, tuple) for shard in checked)


class Part(NamedTuple):
    path: str
    begin: int


@pytest.mark.parametrize(
    ("shard", "plain"),
    [
        (("train.bin", 0, 16), ("train.bin", 0, 16)),
        ((Path("train.bin"), np.int64(3), np.float32(0.5), None, ""), ("train.bin", 3, 0.5, None, "")),
        (
            {"path": Path("a"), "rows": np.arange(2).tolist(), 3: (True, b"x")},
            {"path": "a", "rows": [0, 1], 3: (True, b"x")},
        ),
        (OmegaConf.create({"path": "a", "rows": [0, 16]}), {"path": "a", "rows": [0, 16]}),
        (0, 0),
        (b"x", b"x"),
        (["a", 1, []], ["a", 1, []]),
    ],
)
def test_a_shard_may_be_any_plain_value(shard, plain):
    [checked] = check_shards("shards", [shard])
    assert repr(checked) == repr(plain)


@pytest.mark.parametrize(
    ("shards", "where"),
    [
        ("s3://bucket/one", "shards = "),
        (ShardSampler, "shards = "),  # the class, not a sampler
        ({"a": 1}, "shards = "),
        ({"a", "b"}, "shards = "),  # another order on each rank
        ([], "shards = "),
        (["a", ""], "shards[1] = "),
        (["a", {"b"}], "shards[1] = "),
        (["a", ("b", {1})], "shards[1][1] = "),
        (["a", {"b": [1, object()]}], "shards[1]['b'][1] = "),
        (["a", Part("b", 1)], "shards[1] = "),
        (["a", np.zeros(2)], "shards[1] = "),
    ],
)
def test_what_are_no_shards_is_refused_by_its_position(shards, where):
    with pytest.raises(ConfigurationError) as raised:
        check_shards("shards", shards)
    assert str(raised.value).startswith(where)
