"""Strategies, and the batches of sources that are drawn by them."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from fkat_data.datasets import DictDataset
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.mixing import DictBatchSampler, Frequency, RoundRobin, SamplerStrategy, Weighted, token_weights

ON_EXHAUSTED = ["drop", "restart", "stop"]


def batches(count, size=2):
    return BatchSampler(SequentialSampler(range(count)), size, drop_last=False)


class EpochSampler:
    """Other batches in each epoch."""

    def __init__(self, count):
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter([[100 * self.epoch + index] for index in range(self.count)])


def rows(name, count):
    return [{"row": f"{name}{index}"} for index in range(count)]


def test_a_dataloader_over_a_dictionary_of_datasets_makes_microbatches_of_one_source_each():
    dataset = DictDataset({"a": rows("a", 3), "b": rows("b", 2)})
    sampler = DictBatchSampler(RoundRobin(["b", "a"]), {"a": batches(3), "b": batches(2)})
    assert list(DataLoader(dataset, batch_sampler=sampler)) == [
        {"row": ["b0", "b1"], "dataset": ["b", "b"]},
        {"row": ["a0", "a1"], "dataset": ["a", "a"]},
        {"row": ["a2"], "dataset": ["a"]},
    ]


def test_a_source_that_runs_out_begins_again_or_ends_the_epoch():
    samplers = {"a": batches(6), "b": batches(2)}
    restarted = DictBatchSampler(RoundRobin(["a", "b"]), samplers, on_exhausted="restart")
    assert [name for name, _ in restarted] == ["a", "b"] * 3
    stopped = DictBatchSampler(RoundRobin(["a", "b"]), samplers, on_exhausted="stop")
    assert [name for name, _ in stopped] == ["a", "b", "a"]


strategies = st.sampled_from(
    [RoundRobin(["a", "b", "c"]), Weighted({"a": 1, "b": 5, "c": 2}, 3), Frequency([["a", 2], ["c", 1], ["b", 1]])]
)
counts = st.fixed_dictionaries({name: st.integers(0, 6) for name in "abc"})


@given(strategies, counts, st.sampled_from(ON_EXHAUSTED), st.integers(0, 2))
def test_the_length_is_the_number_of_batches(strategy, counts, on_exhausted, epoch):
    samplers = {name: batches(count) for name, count in counts.items()}
    sampler = DictBatchSampler(strategy, samplers, on_exhausted=on_exhausted)
    sampler.set_epoch(epoch)
    found = list(sampler)
    assert len(sampler) == len(found)
    drawn = Counter(name for name, _ in found)
    whole = {name: len(batches(counts[name])) for name in counts}
    if on_exhausted == "drop":
        assert drawn == +Counter(whole)
    else:
        # Each is given whole at least once, or at most once; the one whose end ends the epoch just once.
        is_right = int.__ge__ if on_exhausted == "restart" else int.__le__
        assert all(is_right(drawn[name], whole[name]) for name in counts)
        assert any(drawn[name] == whole[name] for name in counts)


class Silent(SamplerStrategy):
    """Passes over every draw."""

    names = ("a",)

    def source(self, epoch, draw, among):
        return None


def test_a_strategy_that_draws_nothing_is_an_error_and_no_endless_loop():
    with pytest.raises(ConfigurationError, match="one that draws from the sources that are left: a"):
        list(DictBatchSampler(Silent(), {"a": batches(2)}))
    assert repr(Silent()) == "Silent()"  # a state says it, and a resume compares


@given(strategies, counts, st.sampled_from(ON_EXHAUSTED), st.integers(0, 2))
def test_a_resume_yields_what_follows_at_every_position(strategy, counts, on_exhausted, epoch):
    def made():
        samplers = {name: EpochSampler(count) for name, count in counts.items()}
        return DictBatchSampler(strategy, samplers, on_exhausted=on_exhausted)

    sampler = made()
    sampler.set_epoch(epoch)
    states, whole = [sampler.state_dict()], []
    for batch in sampler:
        whole.append(batch)
        states.append(sampler.state_dict())
    for position, state in enumerate(states[:-1] or states):
        resumed = made()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        resumed.set_epoch(epoch)
        rest = iter(resumed)
        assert resumed.state_dict() == state  # a checkpoint before the first batch
        assert list(rest) == whole[position:]
        assert list(resumed) == whole
    assert sampler.state_dict() == {"version": 1, "epoch": epoch, "index": 0}


def test_another_epoch_is_another_order_from_its_start():
    sampler = DictBatchSampler(Weighted({"a": 1, "b": 1}), {"a": batches(40), "b": batches(40)})
    orders = []
    for epoch in (0, 1, 0):
        sampler.load_state_dict({"version": 1, "epoch": 7, "index": 3})
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[0] == orders[2] != orders[1]
    assert all(len(order) == 40 for order in orders)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_batches_of_a_dataset_are_a_function_of_the_global_generator(shuffle):
    dataset = DictDataset({"a": rows("a", 7), "b": rows("b", 0), "c": rows("c", 4)})

    def drawn(seed):
        torch.manual_seed(seed)
        return list(DictBatchSampler.of_dataset(dataset, Weighted(dict.fromkeys("abc", 1)), 2, shuffle=shuffle))

    assert drawn(1) == drawn(1)
    assert len({str([name for name, _ in drawn(seed)]) for seed in range(5)}) > 1
    indices = {name: [index for source, batch in drawn(1) if source == name for index in batch] for name in "ac"}
    assert {name: sorted(found) for name, found in indices.items()} == {"a": list(range(7)), "c": list(range(4))}
    assert shuffle or indices["a"] == list(range(7))


def test_last_batches_that_are_smaller_are_left_out_if_asked_for():
    dataset = DictDataset({"a": rows("a", 5)})
    sampler = DictBatchSampler.of_dataset(dataset, RoundRobin(["a"]), 2, drop_last=True)
    assert len(list(sampler)) == len(sampler) == 2


@pytest.mark.parametrize("wrong", [{"samplers": {}}, {"samplers": {"a": iter([[0]])}}, {"strategy": RoundRobin(["b"])}])
def test_a_wrong_argument_is_named(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        DictBatchSampler(**{"samplers": {"a": batches(2)}, "strategy": RoundRobin(["a"]), **wrong})


def test_a_dataset_of_another_kind_is_named():
    with pytest.raises(ConfigurationError, match="a DictDataset"):
        DictBatchSampler.of_dataset([1], RoundRobin(["a"]), 2)


def test_a_state_of_something_else_is_refused_by_field():
    """As a shard sampler's is: see tests/samplers/test_base.py."""
    with pytest.raises(StateMismatchError, match="version"):
        DictBatchSampler(RoundRobin(["a"]), {"a": batches(2)}).load_state_dict({"epoch": 0, "index": 0})


NAMES = ["a", "b", "c", "d"]

names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
any_strategies = st.one_of(
    st.builds(
        Weighted,
        st.dictionaries(st.sampled_from(NAMES), st.floats(1e-3, 1e3), min_size=1),
        st.integers(-(2**70), 2**70),
    ),
    st.builds(RoundRobin, names),
    st.builds(Frequency, st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 5)), min_size=1, max_size=5)),
)


def sources(strategy, num_draws, epoch=0, among=NAMES):
    return [strategy.source(epoch, draw, frozenset(among)) for draw in range(num_draws)]


@given(any_strategies, st.lists(st.integers(0, 200), max_size=20), st.integers(0, 3))
def test_a_draws_source_needs_no_history(strategy, draws, epoch):
    in_a_row = sources(strategy, 201, epoch)
    assert [strategy.source(epoch, draw, frozenset(NAMES)) for draw in draws] == [in_a_row[draw] for draw in draws]


@given(any_strategies, st.sets(st.sampled_from(NAMES), min_size=1))
def test_only_what_is_left_is_drawn(strategy, among):
    drawn = set(sources(strategy, 100, among=among)) - {None}
    assert drawn <= among & set(strategy.names)


@given(any_strategies)
def test_iterating_gives_the_sources_of_the_first_epoch_without_end(strategy):
    assert list(islice(strategy, 50)) == sources(strategy, 50)


def test_frequency_draws_each_as_often_as_was_asked():
    strategy = Frequency([["a", 2], ["b", 1], ["a", 3], ["c", 1]])
    assert "".join(sources(strategy, 14)) == "aabaaac" * 2
    assert strategy.names == ("a", "b", "c")


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9), min_size=1), st.integers(0, 99))
def test_weighted_draws_in_proportion(weights, seed):
    num_draws = 4000
    counts = Counter(sources(Weighted(weights, seed), num_draws, among=weights))
    for name, weight in weights.items():
        share = weight / sum(weights.values())
        # Eight standard deviations.
        assert abs(counts[name] / num_draws - share) <= 8 * (share * (1 - share) / num_draws) ** 0.5


def test_seed_and_epoch_are_other_orders():
    weights = {"a": 1, "b": 1}
    orders = [tuple(sources(Weighted(weights, seed), 64, epoch)) for seed in (0, 1, 2**64, -1) for epoch in (0, 1, 2)]
    assert len(set(orders)) == len(orders)


def test_the_weighted_order_is_what_it_was():
    # States name places in this order: a change of it is a breaking one.
    strategy = Weighted({"a": 1, "b": 2, "c": 3}, seed=7)
    assert "".join(sources(strategy, 40)) == GOLDEN[0]
    assert "".join(sources(strategy, 40, epoch=1)) == GOLDEN[1]


GOLDEN = ("cccabbcacacbbbbbabccbbbcaabaabccccacccbc", "ccbcbacbcacccbbbacccbbbccaccbccbcbbcbbbc")


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Weighted({}), "weights"),
        (lambda: RoundRobin([]), "names"),
        (lambda: RoundRobin("ab"), "names"),
        (lambda: RoundRobin(["a", "a"]), "names"),
        (lambda: Frequency([]), "freq"),
        (lambda: Frequency(["a2"]), "list of pairs|pairs that begin|an integer"),
        (lambda: Frequency([["a", 1], ["b", 1.5]]), r"freq\[1\]"),
        (lambda: Frequency([[1, "a"]]), "freq"),
    ],
)
def test_a_wrong_argument_of_a_strategy_is_named(make, argument):
    with pytest.raises(ConfigurationError, match=argument):
        make()


@pytest.mark.long
def test_a_million_draws_by_token_weights_give_each_source_its_share_of_the_tokens():
    generator = np.random.default_rng(0)
    lengths = {"prose": generator.integers(1, 240, 5000), "code": [40], "tables": 12.5}
    shares = {"prose": 0.7, "code": 0.2, "tables": 0.1}
    strategy = Weighted(token_weights(shares, lengths), seed=3)
    drawn = Counter(strategy.source(0, draw, frozenset(shares)) for draw in range(10**6))
    tokens = {name: drawn[name] * np.mean(lengths[name]) for name in shares}
    for name, share in shares.items():
        assert abs(tokens[name] / sum(tokens.values()) - share) < 0.002


@pytest.mark.parametrize("lengths", [[], [[1], [2]], [0, 0], [-1, 3], None])
def test_lengths_that_are_not_known_are_refused_with_what_works(lengths):
    with pytest.raises(ConfigurationError, match="lengths"):
        token_weights({"a": 1}, {"a": lengths})
    with pytest.raises(ConfigurationError, match="of 'b'; or pack each source"):
        token_weights({"a": 1, "b": 1}, {"a": 3})
