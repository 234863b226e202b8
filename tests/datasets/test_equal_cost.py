"""Sequences and batches that are dealt to ranks by what they cost."""

import json
import pickle
from itertools import islice

import numpy as np
import pytest
from dataset_examples import Documents
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.datasets import PackedDataset, TokenBudgetBatchSampler, attention_cost, equal_cost, plan_report
from fkat_data.errors import ConfigurationError, StateMismatchError

COST = attention_cost(4)
LENGTHS = st.lists(st.integers(1, 40), min_size=6, max_size=120)
OPTIONS = st.fixed_dictionaries(
    {
        "sequence_length": st.integers(8, 40),
        "window_size": st.integers(6, 30),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 2**40),
        "accumulate": st.integers(1, 3),
    }
)


@pytest.fixture(scope="module", autouse=True)
def short_horizons():
    """Have horizons of a few sequences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal_cost, "_ROUNDS_OF_A_HORIZON", 3)
        patch.setattr(equal_cost, "WINDOWS_OF_A_HORIZON", 1)
        yield


def packed(lengths, options, num_ranks, rank=0, cost=COST):
    more = {"cost": cost, **options} if cost else {name: options[name] for name in options if name != "accumulate"}
    return PackedDataset(Documents(lengths), **more, too_long="split", rank=rank, world_size=num_ranks)


def cost_of(fragments):
    return sum(96 * 4 * each.length + 8 * each.length**2 for each in fragments)


def skewed(count, longest, seed=0):
    return np.clip(np.random.default_rng(seed).lognormal(np.log(1000), 1.5, count).astype(np.int64), 1, longest)


def test_the_cost_is_that_of_a_layer():
    lengths = np.array([1, 10, 1000])
    assert attention_cost(64)(lengths).tolist() == [24 * 64**2 * n + 2 * 64 * n**2 for n in (1, 10, 1000)]
    near = attention_cost(64, window=10)(lengths)
    # Each token after the tenth sees ten.
    assert near.tolist()[:2] == attention_cost(64)(lengths).tolist()[:2]
    assert near[2] == 24 * 64**2 * 1000 + 4 * 64 * (10 * 1000 - 50)


@given(LENGTHS, OPTIONS, st.integers(1, 6))
@settings(max_examples=80)
def test_ranks_get_the_sequences_of_the_plan_in_rounds_of_neighbours(lengths, options, num_ranks):
    ranks = [packed(lengths, options, num_ranks, rank) for rank in range(num_ranks)]
    plain = list(packed(lengths, options, num_ranks, cost=None).rounds())
    rounds = list(ranks[0].rounds())
    assert [[each.fragments(index) for each in ranks] for index in range(len(ranks[0]))] == rounds
    assert {len(each) for each in ranks} == {len(plain)}
    in_turn, dealt = ([sequence for each in found for sequence in each] for found in (plain, rounds))
    assert sorted(dealt) == sorted(in_turn)
    # By horizons, against a plain sort; the order is that of the first members.
    per_window = -(-len(packed(lengths, options, 1)) // max(1, len(lengths) // options["window_size"]))
    size = max(3, -(-per_window // num_ranks)) * num_ranks
    starts = [number * size for number in range(max(1, len(in_turn) // size))]
    for start, stop in zip(starts, [*starts[1:], len(in_turn)], strict=True):
        run = in_turn[start:stop]
        costs = sorted(map(cost_of, run))
        expected = [costs[index : index + num_ranks] for index in range(0, len(costs), num_ranks)]
        found = rounds[start // num_ranks : stop // num_ranks]
        assert sorted(sorted(map(cost_of, each)) for each in found) == expected
        in_step = list(packed(lengths, options | {"accumulate": 1}, num_ranks).rounds())
        assert [sorted(each) for each in in_step] == [sorted(each) for each in rounds]
        firsts = [min(map(run.index, each)) for each in found]
        assert firsts == sorted(firsts)


@given(LENGTHS, OPTIONS, st.data())
@settings(max_examples=150)
def test_any_ranks_go_on_with_what_others_have_left(lengths, options, data):
    had, earlier = [], []
    every = sorted(fragment for each in packed(lengths, options, 1).rounds() for fragment in each[0])
    batch_size = data.draw(st.integers(1, 3))
    is_in_step = data.draw(st.booleans())
    for _ in range(data.draw(st.integers(1, 3))):
        num_ranks = data.draw(st.integers(1, 6))
        ranks = [packed(lengths, options, num_ranks, rank) for rank in range(num_ranks)]
        items = [each.rest(earlier) if earlier else range(len(each)) for each in ranks]
        assert len({*map(len, items)}) == 1
        most = -(-len(items[0]) // batch_size)
        counts = [data.draw(st.integers(0, most)) for _ in range(1 if is_in_step else num_ranks)]
        counts *= num_ranks if is_in_step else 1
        for each, own, count in zip(ranks, items, counts, strict=True):
            had += [fragment for index in own[: count * batch_size] for fragment in each.fragments(index)]
        earlier.append((counts, batch_size))
    last = [packed(lengths, options, 2, rank) for rank in range(2)]
    for each in last:
        had += [fragment for index in each.rest(earlier) for fragment in each.fragments(index)]
    assert len(set(had)) == len(had)
    assert len(every) - len(set(had) & set(every)) <= 1
    assert set(had) <= set(every)


def test_an_order_of_rounds_that_a_loader_draws_is_gone_on_with():
    lengths, options = skewed(300, 4000), {"sequence_length": 4000, "window_size": 40, "seed": 1, "accumulate": 2}
    ranks = [packed(lengths, options, 4, rank) for rank in range(4)]
    order = np.random.default_rng(1).permutation(len(ranks[0])).tolist()
    had = [each.fragments(index) for each in ranks for index in order[:9]]
    for rank in range(3):
        other = packed(lengths, options, 3, rank)
        had += [other.fragments(index) for index in other.rest([([9] * 4, 1)], order=order)]
    assert sorted(fragment.document for each in had for fragment in each) == [*range(300)]


def test_what_nobody_has_begun_is_planned_where_it_is_asked_for(monkeypatch):
    lengths, options = skewed(3000, 4000), {"sequence_length": 4000, "window_size": 40, "seed": 1, "accumulate": 1}
    planned = []
    plan = PackedDataset._plan
    monkeypatch.setattr(
        PackedDataset, "_plan", lambda self, window, of: planned.append(window) or plan(self, window, of)
    )
    first = packed(lengths, options, 4)
    len(first)  # counts them all, without a plan where there are many windows
    planned.clear()
    first.fragments(0)
    assert 0 < len(planned) < 12
    other = first.for_rank(3, 0)
    planned.clear()
    rest = other.rest([([20] * 4, 1)])
    assert 0 < len(planned) < 36
    assert [len(other.fragments(index)) > 0 for index in rest] == [True] * len(rest)


@pytest.mark.parametrize(("sequence_length", "most", "least_before"), [(32768, 1.02, 1.2), (131072, 1.06, 1.4)])
def test_the_slowest_rank_is_near_the_mean_and_no_epoch_drifts(sequence_length, most, least_before, monkeypatch):
    monkeypatch.setattr(equal_cost, "_ROUNDS_OF_A_HORIZON", 32)
    monkeypatch.setattr(equal_cost, "WINDOWS_OF_A_HORIZON", 4)
    cost = attention_cost(4096)
    lengths = skewed(128 * 8 * sequence_length // 2800, sequence_length)
    options = {"sequence_length": sequence_length, "window_size": 1024, "seed": 1, "accumulate": 1}
    assert plan_report(packed(lengths, options, 8, cost=None), cost=cost).slowest > least_before
    dataset = packed(lengths, options, 8, cost=cost)
    assert plan_report(dataset).slowest < most
    means = [sum(map(cost_of, sequences)) for sequences in dataset.rounds()]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.3


def test_rounds_of_a_step_are_balanced_in_sum():
    lengths, options = skewed(4000, 32768), {"sequence_length": 32768, "window_size": 400, "seed": 1}
    one = packed(lengths, options | {"accumulate": 1}, 8)
    four = packed(lengths, options | {"accumulate": 4}, 8)
    of_one, of_four = (plan_report(each, accumulate=4) for each in (one, four))
    assert of_four.slowest - 1 < (of_one.slowest - 1) / 2
    assert of_four.num_steps == -(-len(four) // 4)
    # Steps are of several lengths, as without.
    means = np.array([np.mean([cost_of(each) for each in sequences]) for sequences in islice(four.rounds(), 40)])
    assert np.all(np.ptp(means.reshape(-1, 4), axis=1) > 0)


def test_batches_are_balanced_by_what_their_padded_lengths_cost():
    lengths = skewed(20000, 32768)
    options = {"seed": 1, "world_size": 8, "pad_to_multiple_of": 64}
    cost = attention_cost(256)
    plain = TokenBudgetBatchSampler(lengths, 65536, **options)
    equal = TokenBudgetBatchSampler(lengths, 65536, **options, cost=cost)
    assert plan_report(equal).slowest < 1.02 < plan_report(plain, cost=cost).slowest
    assert sorted(index for each in equal.rounds(0) for batch in each for index in batch) == [*range(20000)]
    padded = [max(-(-int(lengths[index]) // 64) * 64 for index in batch) for batch in next(equal.rounds(0))]
    loads = next(equal.rank_loads())
    sizes = [len(batch) for batch in next(equal.rounds(0))]
    assert [load.lengths for load in loads] == [[width] * size for width, size in zip(padded, sizes, strict=True)]
    tokens = [int(lengths[batch].sum()) for batch in next(equal.rounds(0))]
    assert [(load.tokens, load.computed) for load in loads] == [
        (own, width * size) for own, width, size in zip(tokens, padded, sizes, strict=True)
    ]


def test_a_report_is_what_a_plain_count_gives():
    lengths = [30, 5, 5, 20, 10, 2, 40, 1]
    dataset = PackedDataset(Documents(lengths), 40, world_size=2, seed=1)
    report = plan_report(dataset)
    rounds = list(dataset.rounds())
    sums = [[sum(each.length for each in sequence) for sequence in sequences] for sequences in rounds]
    ratios = [max(each) / (sum(each) / 2) for each in sums]
    tokens, room = sum(map(sum, sums)), 40 * 2 * len(rounds)
    assert report == (2, len(rounds), tokens / room, 1 - tokens / room, "tokens", np.mean(ratios), max(ratios))
    assert f"{len(rounds)} steps on 2 ranks" in str(report)
    assert plan_report(dataset, cost=lambda lengths: lengths).slowest == report.slowest
    assert plan_report(dataset, accumulate=len(rounds)).num_steps == 1
    with pytest.raises(ConfigurationError, match=r"^cost = 3"):
        plan_report(dataset, cost=3)


KINDS = {
    "packed": lambda **options: PackedDataset(Documents([3, 4, 5, 6, 7, 8]), 8, 4, seed=1, **options),
    "by tokens": lambda **options: TokenBudgetBatchSampler([3, 4, 5, 6, 7, 8], 8, 4, seed=1, **options),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (3, "a function from an array"),
        (lambda lengths: 1.0, r"not the shape \[\]"),
        (lambda lengths: lengths[1:], r"8 lengths, not the shape \[7\]"),
        (lambda lengths: lengths - 2.5, "not -1.5 for the length 1"),
        (lambda lengths: np.where(lengths == 7, np.nan, 1), "not nan for the length 7"),
        (lambda lengths: ["much"] * len(lengths), "a function that returns numbers"),
    ],
)
def test_what_is_no_cost_is_refused_by_name(kind, cost, words):
    with pytest.raises(ConfigurationError, match=f"^cost = .*{words}"):
        KINDS[kind](cost=cost)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_loads_where_the_costs_are_the_same(kind):
    def local(lengths):
        return COST(lengths)

    make = KINDS[kind]
    state = json.loads(json.dumps(make(cost=COST).state_dict()))
    make(cost=local).load_state_dict(state)
    # A function that cannot be pickled is no part of the dataset.
    copied = pickle.loads(pickle.dumps(make(cost=local)))
    assert json.loads(json.dumps(copied.state_dict())) == state
    plain = make().state_dict()
    assert not {"cost", "accumulate"} & set(plain)
    for other, saved, field in (
        ({"cost": attention_cost(5)}, state, "cost"),
        ({}, state, "cost"),
        ({"cost": COST}, plain, "cost"),
        ({"cost": COST, "accumulate": 2}, state, "accumulate"),
    ):
        with pytest.raises(StateMismatchError, match=f"'{field}': .*dealt to ranks by it"):
            make(**other).load_state_dict(saved)
    with pytest.raises(StateMismatchError, match=r"'state_dict'"):
        make(cost=COST).load_state_dict(3)
    with pytest.raises(ConfigurationError, match=r"^accumulate = 2: .*1 without cost="):
        make(accumulate=2)
    with pytest.raises(ConfigurationError, match=r"^accumulate = 0"):
        make(cost=COST, accumulate=0)
    with pytest.raises(ConfigurationError, match=r"^hidden_size = 0"):
        attention_cost(0)
