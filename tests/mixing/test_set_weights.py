"""Weights that are set in the middle of a run.

Models are plain lists: the samples of each source that are left, and the weights by the step from which on they count.
"""

import copy
import json
import logging
import math
from itertools import count, islice

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fkat_data import ConfigurationError, DataLoader, StateMismatchError
from fkat_data.mixing import DictDataLoader, Frequency, RoundRobin, Weighted

NAMES = "abc"
WEIGHTS = st.fixed_dictionaries({name: st.sampled_from([0.1, 1, 5]) for name in NAMES})
# What happens at a step besides a change of the weights.
EVENTS = st.dictionaries(
    st.integers(0, 24), st.sets(st.sampled_from(["cut before", "cut after", "lost", "cut at lost"]))
)
GIVEN = {"a": 1.0, "b": 1.0, "c": 1.0}


def mixture(lengths, on_exhausted="drop", num_ranks=1, rank=0, weights=None):
    sources = {}
    for place, (name, length) in enumerate(zip(NAMES, lengths, strict=True)):
        sources[name] = DataLoader(range(100 * place, 100 * place + length), 1, seed=1)
        sources[name].deal_out(num_ranks, rank)
    return DictDataLoader(sources, Weighted(weights or GIVEN, seed=3), key=None, on_exhausted=on_exhausted)


def saved(loader):
    return json.loads(json.dumps(loader.local_state_dict()))


def weighted(weights):
    """Return the strategy of these weights, whose order is that of the sources."""
    return Weighted({name: weights[name] for name in NAMES}, seed=3)


def plain(lengths, changes):
    """What a mixture of plain lists gives, whose weights change at some of its steps."""
    step, weights = 0, GIVEN
    for epoch in count():
        lists = {name: [100 * place + each for each in range(lengths[place])] for place, name in enumerate(NAMES)}
        among, draw = {*NAMES}, 0
        while any(lists.values()):
            weights = changes.get(step, weights)
            name = weighted(weights).source(epoch, draw, among)
            if lists[name]:
                yield name, lists[name].pop(0)
                step, draw = step + 1, draw + 1
            else:
                among.discard(name)


def without_end(loader):
    while True:
        for name, batch in loader:
            yield name, int(batch)


def resumed(loader, made):
    state, other = saved(loader), made()
    other.load_state_dict(state)
    assert saved(other) == state
    return other, without_end(other)


def run(made, changes, events=None):
    """What comes in 25 steps where weights change, checkpoints are loaded, and microbatches are lost."""
    found, loader = [], made()
    microbatches = without_end(loader)
    for step in range(25):
        here = (events or {}).get(step, ())
        if "cut before" in here:
            loader, microbatches = resumed(loader, made)
        if step in changes:
            loader.set_weights(changes[step])
        if "cut after" in here:
            loader, microbatches = resumed(loader, made)
        if "lost" in here and loader.take_back():
            if "cut at lost" in here:
                loader, microbatches = resumed(loader, made)
            assert next(microbatches) == found[-1]
        found.append(next(microbatches))
    return found


@settings(deadline=None)
@given(st.tuples(*[st.integers(1, 7)] * 3), st.dictionaries(st.integers(0, 24), WEIGHTS, max_size=6), EVENTS)
def test_weights_count_from_the_next_draw_on_across_resumes_and_epochs(lengths, changes, events):
    found = run(lambda: mixture(lengths), changes, events)
    assert found == [*islice(plain(lengths, changes), 25)]


@pytest.mark.parametrize("on_exhausted", ["restart", "stop"])
@settings(deadline=None, max_examples=30)
@given(st.tuples(*[st.integers(1, 7)] * 3), st.dictionaries(st.integers(0, 24), WEIGHTS, max_size=6), EVENTS)
def test_a_resume_changes_nothing_where_sources_begin_again_or_end_the_epoch(on_exhausted, lengths, changes, events):
    def made():
        return mixture(lengths, on_exhausted)

    assert run(made, changes, events) == run(made, changes)


class Ranks:
    """The mixtures of all ranks, and the plain lists that they share."""

    def __init__(self):
        self.left = {name: [*range(100 * place, 100 * place + 96)] for place, name in enumerate(NAMES)}
        self.weights, self.step, self.state, self.flows = GIVEN, 0, None, []

    def begin(self, num_ranks):
        self.mixtures = [mixture([96] * 3, "drop", num_ranks, rank) for rank in range(num_ranks)]
        for each in self.mixtures if self.state is not None else ():
            each.load_state_dict(self.state)
        self.flows = [without_end(each) for each in self.mixtures]

    def deliver(self):
        name = weighted(self.weights).source(0, self.step, {*NAMES})
        expected = [(name, self.left[name].pop(0)) for _ in self.mixtures]
        assert [next(flow) for flow in self.flows] == expected
        self.step += 1

    def save(self):
        self.state = json.loads(json.dumps(self.mixtures[0].merge_state_dicts([saved(each) for each in self.mixtures])))


LEGS = st.tuples(st.integers(1, 4), st.lists(st.one_of(st.none(), WEIGHTS), max_size=6))


@settings(deadline=None, max_examples=50)
@given(st.lists(LEGS, min_size=1, max_size=4))
@example([(2, [None, {"a": 5, "b": 0.1, "c": 0.1}]), (3, [None] * 3), (1, [{"a": 0.1, "b": 5, "c": 1}, None])])
def test_any_number_of_ranks_goes_on_with_the_weights_that_were_set(trip):
    ranks = Ranks()
    for num_ranks, steps in trip:
        ranks.begin(num_ranks)
        for weights in steps:
            if weights is not None:
                ranks.weights = weights
                for each in ranks.mixtures:
                    each.set_weights(weights)
            ranks.deliver()
        ranks.save()


def test_a_state_without_changed_weights_says_what_it_said():
    loader = mixture((3, 3, 3))
    assert saved(loader)["strategy"] == "Weighted({'a': 1.0, 'b': 1.0, 'c': 1.0}, seed=3)" == repr(loader.strategy)
    for number in range(1, 13):
        loader.set_weights({"a": number, "b": 1, "c": 1})
        assert loader.strategy.weights == [number, 1, 1]
        next(iter(loader))
    assert len(saved(loader)["strategy"]) == 1 + 8  # the newest ones


def test_a_strategy_that_is_given_after_the_weights_were_set_counts(caplog):
    loader = mixture((9, 9, 9))
    loader.set_weights({"a": 9, "b": 1, "c": 1})
    other = mixture((9, 9, 9), weights={"a": 1, "b": 9, "c": 1})
    with caplog.at_level(logging.WARNING):
        other.load_state_dict(saved(loader))
    assert other.strategy.weights == [1, 9, 1]
    assert "goes on as Weighted({'a': 1.0, 'b': 9.0, 'c': 1.0}, seed=3)" in caplog.text
    caplog.clear()
    resumed(loader, lambda: mixture((9, 9, 9)))
    assert not caplog.text


@pytest.mark.parametrize("strategy", [RoundRobin(["a"]), Frequency([["a", 1]])])
def test_a_strategy_without_weights_is_named(strategy):
    loader = DictDataLoader({"a": [1, 2]}, strategy)
    with pytest.raises(ConfigurationError, match=r"strategy.*Weighted"):
        loader.set_weights({"a": 1})


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        *[({**GIVEN, "c": bad}, r"weights\['c'\]") for bad in (0, -1, math.nan, math.inf, True, "1", None)],
        ({**GIVEN, "d": 1}, "'d'.*each of these sources: a, b, c"),
        ({"a": 1, "b": 1}, "each of these sources: a, b, c"),
        (dict.fromkeys(NAMES, 0), r"weights\['a'\]"),
        ({}, "weights"),
        ([1, 1, 1], "weights"),
    ],
)
def test_weights_that_cannot_be_are_named_and_change_nothing(weights, named):
    loader = mixture((3, 3, 3))
    state = saved(loader)
    with pytest.raises(ConfigurationError, match=named):
        loader.set_weights(weights)
    assert saved(loader) == state


def test_an_earlier_state_gets_the_weights_that_a_mixture_within_a_mixture_has():
    def made():
        inner = mixture((9, 9, 9))
        return inner, DictDataLoader({"inner": inner, "list": [1, 2]}, RoundRobin(["inner", "list"]), key=None)

    inner, loader = made()
    microbatches = iter(loader)
    next(microbatches)
    state = saved(loader)
    ahead = [*islice(microbatches, 4)]
    inner.set_weights({"a": 1, "b": 1, "c": 99})
    _, other = made()
    other.load_state_dict(loader.with_present_weights(state))
    assert [*other] == [*ahead, *microbatches]


def test_states_of_ranks_that_have_set_other_weights_are_not_merged():
    ranks = [mixture((8, 8, 8), num_ranks=2, rank=rank) for rank in range(2)]
    ranks[0].set_weights({"a": 2, "b": 1, "c": 1})
    with pytest.raises(StateMismatchError, match=r"strategy.*the same on all ranks.*set_weights"):
        ranks[0].merge_state_dicts([saved(each) for each in ranks])
    ranks[1].set_weights({"a": 2, "b": 1, "c": 1})
    ranks[0].merge_state_dicts([ranks[0].local_state_dict(), saved(ranks[1])])


@pytest.mark.parametrize(
    "change",
    [{}, {"from": [0]}, {"from": 1}, {"from": ["a", 0]}, {"weights": {"a": 1}}, {"weights": None}],
)
def test_a_damaged_state_is_named(change):
    loader = mixture((3, 3, 3))
    loader.set_weights({"a": 2, "b": 1, "c": 1})
    state = saved(loader)
    state["strategy"][1] = {**state["strategy"][1], **change} if change else "a"
    with pytest.raises(StateMismatchError, match=r"strategy.*damaged"):
        mixture((3, 3, 3)).load_state_dict(state)


def test_a_copy_has_the_weights():
    for num_before in (0, 2):
        loader = mixture((9, 9, 9))
        before = [*islice(without_end(loader), num_before)]
        loader.set_weights({"a": 5, "b": 1, "c": 1})
        copied = copy.copy(loader)
        assert copied.strategy.weights == [5, 1, 1]
        loader.set_weights({"a": 1, "b": 5, "c": 1})
        assert copied.strategy.weights == [5, 1, 1]
        whole = plain((9, 9, 9), {num_before: {"a": 5, "b": 1, "c": 1}})
        assert [*before, *islice(without_end(copied), 9)] == [*islice(whole, num_before + 9)]
