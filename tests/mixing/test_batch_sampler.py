from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from fkat_data.datasets import DictDataset
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.mixing import DictBatchSampler, Frequency, RoundRobin, SamplerStrategy, Weighted

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
        strategy = Weighted({"a": 1, "b": 1, "c": 1})
        return list(DictBatchSampler.of_dataset(dataset, strategy, batch_size=2, shuffle=shuffle))

    assert drawn(1) == drawn(1)
    assert len({str([name for name, _ in drawn(seed)]) for seed in range(5)}) > 1
    indices = {name: [index for source, batch in drawn(1) if source == name for index in batch] for name in "ac"}
    assert {name: sorted(found) for name, found in indices.items()} == {"a": list(range(7)), "c": list(range(4))}
    assert shuffle or indices["a"] == list(range(7))


def test_last_batches_that_are_smaller_are_left_out_if_asked_for():
    dataset = DictDataset({"a": rows("a", 5)})
    sampler = DictBatchSampler.of_dataset(dataset, RoundRobin(["a"]), 2, drop_last=True)
    assert len(list(sampler)) == len(sampler) == 2


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("samplers", {"samplers": {}}),
        ("samplers", {"samplers": [[0]]}),
        (r"samplers\['a'\]", {"samplers": {"a": 3}}),
        (r"samplers\['a'\]", {"samplers": {"a": iter([[0]])}}),
        ("strategy", {"strategy": ["a"]}),
        ("strategy", {"strategy": RoundRobin(["b"])}),
        ("on_exhausted", {"on_exhausted": None}),
    ],
)
def test_a_wrong_argument_is_named(argument, given):
    with pytest.raises(ConfigurationError, match=argument):
        DictBatchSampler(**{"samplers": {"a": batches(2)}, "strategy": RoundRobin(["a"]), **given})


def test_a_wrong_dataset_or_batch_size_is_named():
    with pytest.raises(ConfigurationError, match="a DictDataset"):
        DictBatchSampler.of_dataset([1], RoundRobin(["a"]), 2)
    with pytest.raises(ConfigurationError, match="batch_size"):
        DictBatchSampler.of_dataset(DictDataset({"a": rows("a", 2)}), RoundRobin(["a"]), 0)


def test_a_state_of_something_else_is_refused_by_field():
    """As a shard sampler's is: see tests/samplers/test_base.py."""
    with pytest.raises(StateMismatchError, match="version"):
        DictBatchSampler(RoundRobin(["a"]), {"a": batches(2)}).load_state_dict({"epoch": 0, "index": 0})
