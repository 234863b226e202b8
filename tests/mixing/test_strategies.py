from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError
from fkat_data.mixing import Frequency, RoundRobin, Weighted, token_weights

NAMES = ["a", "b", "c", "d"]

names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
strategies = st.one_of(
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


@given(strategies, st.lists(st.integers(0, 200), max_size=20), st.integers(0, 3))
def test_a_draws_source_needs_no_history(strategy, draws, epoch):
    in_a_row = sources(strategy, 201, epoch)
    assert [strategy.source(epoch, draw, frozenset(NAMES)) for draw in draws] == [in_a_row[draw] for draw in draws]


@given(strategies, st.sets(st.sampled_from(NAMES), min_size=1))
def test_only_what_is_left_is_drawn(strategy, among):
    drawn = set(sources(strategy, 100, among=among)) - {None}
    assert drawn <= among & set(strategy.names)


@given(strategies)
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
        (lambda: Weighted([0.5, 0.5]), "weights"),
        (lambda: Weighted({1: 1.0}), "weights"),
        (lambda: Weighted({"a": 0}), r"weights\['a'\]"),
        (lambda: Weighted({"a": 1}, seed=0.5), "seed"),
        (lambda: RoundRobin([]), "names"),
        (lambda: RoundRobin("ab"), "names"),
        (lambda: RoundRobin(["a", "a"]), "names"),
        (lambda: RoundRobin(["a", 1]), "names"),
        (lambda: Frequency([]), "freq"),
        (lambda: Frequency(["a2"]), "list of pairs|pairs that begin|an integer"),
        (lambda: Frequency([["a", 1, 2]]), "freq"),
        (lambda: Frequency([["a", 0]]), r"freq\[0\]"),
        (lambda: Frequency([["a", 1], ["b", 1.5]]), r"freq\[1\]"),
        (lambda: Frequency([[1, "a"]]), "freq"),
    ],
)
def test_a_wrong_argument_is_named(make, argument):
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


@pytest.mark.parametrize(
    ("shares", "lengths", "match"),
    [
        ({"a": 1, "b": 1}, {"a": 3}, "of 'b'; or pack each source"),
        ({"a": 1}, {"a": []}, "lengths"),
        ({"a": 1}, {"a": "long"}, "lengths"),
        ({"a": 1}, {"a": [[1], [2]]}, "lengths"),
        ({"a": 1}, {"a": [0, 0]}, "lengths"),
        ({"a": 1}, {"a": [-1, 3]}, "lengths"),
        ({"a": 0}, {"a": 3}, "shares"),
    ],
)
def test_lengths_that_are_not_known_are_refused_with_what_works(shares, lengths, match):
    with pytest.raises(ConfigurationError, match=match):
        token_weights(shares, lengths)
