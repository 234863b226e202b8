import copy
import json
import pickle
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_examples import Documents, generators
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from fkat_data.datasets import PaddingCollate, TokenBudgetBatchSampler
from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError

# See test_buffer_sorted.py: this file may not change.
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "dataset_orders.json").read_text())["token_budget"]

LENGTHS = st.lists(st.integers(0, 30), min_size=6, max_size=70)
SETTINGS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(32, 120),
        "window_size": st.integers(6, 40),
        "world_size": st.integers(1, 6),
        "shuffle": st.booleans(),
        "seed": st.integers(-(2**70), 2**70),
        "pad_to_multiple_of": st.sampled_from([1, 4, 8]),
        "max_batch_size": st.none() | st.integers(1, 5),
    }
)


def ranks(lengths, options):
    return [TokenBudgetBatchSampler(lengths, **options, rank=rank) for rank in range(options["world_size"])]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden['seed']}-{golden['epoch']}")
def test_the_batches_are_those_of_every_release(golden):
    names = ("max_tokens", "window_size", "shuffle", "seed")
    options = {name: golden[name] for name in names} | {"world_size": len(golden["ranks"])}
    samplers = ranks(golden["lengths"], options)
    for sampler in samplers:
        sampler.set_epoch(golden["epoch"])
    assert [list(sampler) for sampler in samplers] == golden["ranks"]


@given(lengths=LENGTHS, options=SETTINGS, epoch=st.integers(0, 3))
@settings(deadline=None)
def test_no_batch_exceeds_the_budget_and_every_rank_has_as_many(lengths, options, epoch):
    samplers = ranks(lengths, options)
    for sampler in samplers:
        sampler.set_epoch(epoch)
    lengths_of_epoch = [len(sampler) for sampler in samplers]
    dealt = [list(sampler) for sampler in samplers]
    assert [len(batches) for batches in dealt] == lengths_of_epoch
    assert len(set(lengths_of_epoch)) == 1
    multiple = options["pad_to_multiple_of"]
    for batch in (batch for batches in dealt for batch in batches):
        assert 0 < len(batch) <= (options["max_batch_size"] or len(batch))
        longest = -(-max(lengths[index] for index in batch) // multiple) * multiple
        assert len(batch) * longest <= options["max_tokens"]


@given(lengths=LENGTHS, options=SETTINGS, epoch=st.integers(0, 3))
@settings(deadline=None)
def test_no_sample_stands_twice_and_only_single_ones_that_do_not_come_out_even_are_left_out(lengths, options, epoch):
    samplers = ranks(lengths, options)
    for sampler in samplers:
        sampler.set_epoch(epoch)
    dealt = [batch for sampler in samplers for batch in sampler]
    served = [index for batch in dealt for index in batch]
    assert len(set(served)) == len(served)
    num_windows = max(1, len(lengths) // options["window_size"])
    if options["world_size"] == 1:
        assert sorted(served) == list(range(len(lengths)))
    if len(served) < len(lengths):
        most = options["max_batch_size"] or len(lengths)
        assert len(lengths) - len(served) <= num_windows * (options["world_size"] - 1) * most


def test_every_sample_stands_once_where_batches_have_several():
    lengths = np.random.default_rng(0).integers(1, 60, 5000)
    dealt = [list(sampler) for sampler in ranks(lengths, {"max_tokens": 600, "world_size": 7, "seed": 1})]
    assert sorted(index for batches in dealt for batch in batches for index in batch) == list(range(5000))
    padded = sum(len(batch) * lengths[batch].max() for batches in dealt for batch in batches)
    assert lengths.sum() / padded > 0.95
    # At each step the ranks have about the same to do.
    spread = [
        max(lengths[batch].max() for batch in step) - min(lengths[batch].max() for batch in step)
        for step in zip(*dealt, strict=True)
    ]
    assert np.median(spread) <= 2


def test_epochs_differ_and_can_be_had_again():
    sampler = TokenBudgetBatchSampler([3] * 40, 12, 20, seed=1)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sampler.state_dict()["epoch"] == 2
    sampler.set_epoch(0)
    assert list(sampler) == first
    other = TokenBudgetBatchSampler([3] * 40, 12, 20, seed=1)
    other.set_epoch(1)
    assert list(pickle.loads(pickle.dumps(other))) == second


@given(lengths=LENGTHS, options=SETTINGS, data=st.data())
@settings(deadline=None, max_examples=40)
def test_resuming_at_every_position_equals_no_stop(lengths, options, data):
    rank = data.draw(st.integers(0, options["world_size"] - 1))
    sampler = TokenBudgetBatchSampler(lengths, **options, rank=rank)
    states, whole = [sampler.state_dict()], []
    for _ in range(2):
        for batch in sampler:
            whole.append(batch)
            states.append(sampler.state_dict())
    for position, state in enumerate(states):
        resumed = TokenBudgetBatchSampler(lengths, **options, rank=rank)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.state_dict() == state
        rest = [*resumed, *resumed]
        assert (rest if position <= len(whole) else [])[: len(whole) - position] == whole[position:]
        # The state is the same on every rank: one is enough for all.
        assert all(other.state_dict() | state == state for other in ranks(lengths, options))


def test_a_loop_that_is_left_is_given_up_and_its_iterator_is_stale():
    sampler = TokenBudgetBatchSampler([3] * 40, 12, 20, seed=1)
    iterator = iter(sampler)
    next(iterator)
    assert len(sampler) == 10
    epoch_one = list(sampler)
    fresh = TokenBudgetBatchSampler([3] * 40, 12, 20, seed=1)
    fresh.set_epoch(1)
    assert epoch_one == list(fresh)
    with pytest.raises(StaleIteratorError):
        next(iterator)


def test_set_epoch_keeps_a_place_that_was_just_loaded():
    sampler = TokenBudgetBatchSampler([3] * 40, 12, 20, seed=1)
    whole = list(sampler)
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 0, "index": 4})
    sampler.set_epoch(0)
    assert list(sampler) == whole[4:]


def test_it_drives_a_dataloader_over_a_dataset_that_knows_its_lengths():
    documents = Documents([5, 1, 9, 2, 2, 7])
    sampler = TokenBudgetBatchSampler(documents, 10, seed=0)
    found = list(DataLoader(documents, batch_sampler=sampler, collate_fn=PaddingCollate(-1)))
    assert all(batch.numel() <= 10 for batch in found)
    assert sorted(token for batch in found for token in batch.flatten().tolist() if token >= 0) == sorted(
        token for item in range(6) for token in documents[item].tolist()
    )


def test_lengths_come_as_lists_arrays_and_tensors():
    found = [list(TokenBudgetBatchSampler(kind([4, 2, 8, 6]), 8, seed=0)) for kind in (list, np.array, torch.tensor)]
    assert found[0] == found[1] == found[2]


def test_samples_that_are_too_long_are_skipped_where_asked():
    sampler = TokenBudgetBatchSampler([3, 99, 4, 11], 10, seed=0, too_long="skip")
    assert sampler.num_skipped == 2
    assert sorted(index for batch in sampler for index in batch) == [0, 2]
    with pytest.raises(ConfigurationError, match=r"^lengths\[1\] = 99"):
        TokenBudgetBatchSampler([3, 99, 4, 11], 10)


def test_a_seed_that_is_not_given_is_drawn_and_kept_in_the_state():
    first, second = (TokenBudgetBatchSampler([1] * 50, 1) for _ in range(2))
    state = first.state_dict()
    order = list(first)
    assert order != list(second)
    second.load_state_dict(state)
    assert list(second) == order


def test_no_global_generator_is_moved_where_a_seed_is_given():
    before = generators()
    list(TokenBudgetBatchSampler([1] * 50, 4, seed=1))
    assert generators() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("version", 2), ("epoch", -1), ("index", 11), ("index", None), ("seed", 2), ("max_tokens", 13)],
        *[("window_size", 21), ("world_size", 2), ("shuffle", False), ("num_samples", 41), ("max_batch_size", 1)],
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(field, value):
    sampler = TokenBudgetBatchSampler([3] * 40, 12, 20, seed=1)
    whole = list(copy.deepcopy(sampler))
    with pytest.raises(StateMismatchError, match=f"^state field '{field}'"):
        sampler.load_state_dict(sampler.state_dict() | {field: value})
    assert list(sampler) == whole


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("max_tokens", {"max_tokens": 0}),
        ("pad_to_multiple_of", {"pad_to_multiple_of": 0}),
        ("max_batch_size", {"max_batch_size": 0}),
        ("too_long", {"too_long": "drop"}),
        ("rank", {"rank": 1}),
        ("lengths", {"lengths": "abc"}),
        ("lengths", {"lengths": [1.5]}),
        ("lengths", {"lengths": [[1]]}),
        (r"lengths\[1\]", {"lengths": [1, -1]}),
        (r"lengths\[0\]", {"lengths": [10], "max_tokens": 11, "pad_to_multiple_of": 4}),
        ("lengths", {"lengths": 5}),
    ],
)
def test_arguments_that_cannot_work_are_named(argument, options):
    with pytest.raises(ConfigurationError, match=f"^{argument} = "):
        TokenBudgetBatchSampler(**{"lengths": [1, 2], "max_tokens": 10, "seed": 0, **options})


def test_a_resume_batch_by_batch_needs_no_data():
    sampler = TokenBudgetBatchSampler([3] * 40, 12, 20, seed=1)
    state = [sampler.state_dict() for _ in islice(sampler, 7)][-1]
    assert state["index"] == 7
