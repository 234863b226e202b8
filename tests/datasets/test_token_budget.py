import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from walks import begun

from fkat_data.datasets import TokenBudgetBatchSampler, attention_cost, dealt_order, equal_cost
from fkat_data.errors import StaleIteratorError, StateMismatchError

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
        "cost": st.sampled_from([None, attention_cost(4)]),
        "accumulate": st.sampled_from([1, 1, 2, 3]),
    }
).filter(lambda drawn: drawn["cost"] is not None or drawn["accumulate"] == 1)


@pytest.fixture(scope="module", autouse=True)
def short_horizons():
    """Have horizons of a few batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal_cost, "_ROUNDS_OF_A_HORIZON", 2)
        patch.setattr(dealt_order, "WINDOWS_OF_A_HORIZON", 2)
        yield


def ranks(lengths, options, epoch=0):
    samplers = [TokenBudgetBatchSampler(lengths, **options, rank=rank) for rank in range(options["world_size"])]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers


def small(**options):
    return TokenBudgetBatchSampler([3] * 40, 12, 20, seed=1, **options)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden['seed']}-{golden['epoch']}")
def test_the_batches_are_those_of_every_release(golden):
    names = ("max_tokens", "window_size", "shuffle", "seed")
    options = {name: golden[name] for name in names} | {"world_size": len(golden["ranks"])}
    assert [list(sampler) for sampler in ranks(golden["lengths"], options, golden["epoch"])] == golden["ranks"]


@given(lengths=LENGTHS, options=SETTINGS, epoch=st.integers(0, 3))
def test_batches_keep_to_the_budget_and_all_ranks_together_have_each_sample_once_but_for_a_few(lengths, options, epoch):
    samplers, world_size = ranks(lengths, options, epoch), options["world_size"]
    num_batches = [len(sampler) for sampler in samplers]
    dealt = [list(sampler) for sampler in samplers]
    assert [len(batches) for batches in dealt] == num_batches == num_batches[:1] * world_size
    batches = [tuple(batch) for own in dealt for batch in own]
    multiple = options["pad_to_multiple_of"]
    for batch in batches:
        assert 0 < len(batch) <= (options["max_batch_size"] or len(batch))
        longest = -(-max(lengths[index] for index in batch) // multiple) * multiple
        assert len(batch) * longest <= options["max_tokens"]
    # No sample stands twice, and only single ones that do not come out even are left out.
    served = [index for batch in batches for index in batch]
    assert len(set(served)) == len(served)
    most = options["max_batch_size"] or len(lengths)
    assert len(lengths) - len(served) <= (world_size - 1) * most
    # The number of ranks shapes no batch but those that are halved at the end.
    plan = {tuple(batch) for batch in ranks(lengths, options | {"world_size": 1}, epoch)[0]}
    parts = [batch for batch in batches if batch not in plan]
    assert all(any(set(part) < set(batch) for batch in plan) for part in parts)
    assert len(parts) <= 2 * (world_size - 1)


@given(lengths=LENGTHS, options=SETTINGS, epoch=st.integers(0, 3))
def test_a_sampler_for_another_rank_is_what_its_constructor_makes(lengths, options, epoch):
    first = ranks(lengths, options, epoch)[0]
    for rank, other in enumerate(ranks(lengths, options, epoch)):
        made = first.for_rank(options["world_size"], rank)
        assert (made.dp_size, made.dp_rank) == (options["world_size"], rank)
        assert made.state_dict() == other.state_dict()
        assert list(made) == list(other)
    rounds = list(first.rounds(epoch))
    assert [each[0] for each in rounds] == list(first)


@given(lengths=LENGTHS, options=SETTINGS, data=st.data())
def test_any_number_of_ranks_goes_on_where_others_stopped_again_and_again(lengths, options, data):
    state, served, layouts = None, [], []
    for _ in range(data.draw(st.integers(2, 4))):
        samplers = ranks(lengths, options | {"world_size": data.draw(st.integers(1, 6))})
        if state is not None:
            for sampler in samplers:
                sampler.load_state_dict(json.loads(json.dumps(state)))
        if samplers[0].state_dict()["epoch"]:
            break
        index = samplers[0].state_dict()["index"]
        assert len({len(sampler) for sampler in samplers}) == 1
        stop = data.draw(st.integers(index, len(samplers[0])))
        # Each rank asks as many times, as trainers that are in step do.
        rest = [list(islice(sampler, stop - index)) for sampler in samplers]
        # As many ranks as before go on in their own rounds.
        before = layouts.pop()[0] if layouts and len(layouts[-1]) == len(samplers) else 0
        rounds = list(islice(samplers[0].rounds(0, layouts), before, before + stop - index))
        assert rest == [[each[rank] for each in rounds] for rank in range(len(samplers))]
        layouts.append([before + stop - index] * len(samplers))
        served += [batch for batches in rest for batch in batches]
        state = samplers[0].state_dict()
        assert all(sampler.state_dict() == state for sampler in samplers)
    last = ranks(lengths, options | {"world_size": data.draw(st.integers(1, 6))})
    for sampler in last:
        sampler.load_state_dict(state)
    served_by_last = not last[0].state_dict()["epoch"]
    if served_by_last:
        assert len({len(sampler) for sampler in last}) == 1
        served += [batch for sampler in last for batch in sampler]
    found = [index for batch in served for index in batch]
    assert len(set(found)) == len(found)
    most = options["max_batch_size"] or len(lengths)
    # Those that come to the end may leave some out.
    num_ended = len(layouts[-1]) if state["epoch"] else len(last)
    assert len(lengths) - len(found) <= (num_ended - 1) * most


def test_ranks_that_stopped_out_of_step_leave_what_each_had_not():
    lengths = np.random.default_rng(1).integers(1, 60, 400)
    sampler = TokenBudgetBatchSampler(lengths, 200, 100, seed=1, rank=0, world_size=3)
    had = list(sampler.rounds(0))
    counts = [4, 9, None]
    rest = sampler.for_rank(2, 0).rounds(0, [counts])
    found = [batch for each in rest for batch in each]
    found += [each[rank] for rank, count in enumerate(counts) for each in had[:count]]
    assert sorted(index for batch in found for index in batch) == list(range(400))


def test_every_sample_stands_once_where_batches_have_several():
    lengths = np.random.default_rng(0).integers(1, 60, 5000)
    dealt = [list(sampler) for sampler in ranks(lengths, {"max_tokens": 600, "world_size": 7, "seed": 1})]
    assert sorted(index for batches in dealt for batch in batches for index in batch) == list(range(5000))
    padded = sum(len(batch) * lengths[batch].max() for batches in dealt for batch in batches)
    assert lengths.sum() / padded > 0.95
    # At each step the ranks have about the same to do.
    steps = list(zip(*dealt, strict=True))
    longest = np.array([[lengths[batch].max() for batch in step] for step in steps])
    assert np.median(longest.max(1) - longest.min(1)) <= 2
    padded_of_step = longest * [[len(batch) for batch in step] for step in steps]
    assert padded_of_step.max(1).sum() / padded_of_step.mean(1).sum() < 1.1


@given(lengths=LENGTHS, options=SETTINGS, data=st.data())
@settings(max_examples=40)
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
    sampler = small()
    iterator = begun(sampler, 1)
    assert len(sampler) == 10
    epoch_one = list(sampler)
    fresh = small()
    fresh.set_epoch(1)
    assert epoch_one == list(fresh)
    with pytest.raises(StaleIteratorError):
        next(iterator)


def test_set_epoch_keeps_a_position_that_was_just_loaded():
    sampler = small()
    whole = list(sampler)
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 0, "index": 4})
    sampler.set_epoch(0)
    assert list(sampler) == whole[4:]


def test_lengths_come_as_lists_arrays_and_tensors():
    found = [list(TokenBudgetBatchSampler(kind([4, 2, 8, 6]), 8, seed=0)) for kind in (list, np.array, torch.tensor)]
    assert found[0] == found[1] == found[2]


def test_samples_that_are_too_long_are_skipped_where_asked():
    sampler = TokenBudgetBatchSampler([3, 99, 4, 11], 10, seed=0, too_long="skip")
    assert sampler.num_skipped == 2
    assert sorted(index for batch in sampler for index in batch) == [0, 2]


def test_an_index_past_the_end_is_refused_whatever_the_number_of_ranks():
    sampler = small()
    with pytest.raises(StateMismatchError, match=r"^state field 'index'.*at most 5"):
        sampler.load_state_dict(sampler.state_dict() | {"index": 6, "world_size": 2})
