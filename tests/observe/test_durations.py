import json
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.observe.durations import (
    LONGEST_S,
    NUM_BUCKETS,
    RELATIVE_ERROR,
    SHORTEST_S,
    Durations,
    bucket_of,
)

ANY = st.floats(SHORTEST_S, LONGEST_S * (1 - 1e-9)) | st.floats(math.log(SHORTEST_S), math.log(LONGEST_S) - 1e-9).map(
    math.exp
)


def counted(durations_s):
    counts = array("d", bytes(8 * NUM_BUCKETS))
    for duration_s in durations_s:
        if duration_s:
            counts[bucket_of(duration_s)] += 1
    return Durations.snapshot(counts, len(durations_s))


def exact(durations_s, share):
    """The shortest of the durations that so large a share of them does not exceed."""
    rank = max(1, math.ceil(share * len(durations_s) - 1e-6))
    return sorted(durations_s)[rank - 1]


@given(st.lists(ANY | st.just(0.0), min_size=1, max_size=300), st.lists(st.floats(0, 1), max_size=4))
def test_a_quantile_is_as_near_to_that_of_the_sorted_durations_as_is_said(durations_s, shares):
    shares = [0.0, 0.5, 0.95, 0.99, 1.0, *shares]
    for share, found_s in zip(shares, counted(durations_s).quantiles_s(*shares), strict=True):
        expected_s = exact(durations_s, share)
        assert abs(found_s - expected_s) <= (RELATIVE_ERROR + 1e-9) * expected_s


def test_the_error_is_what_the_documentation_says():
    assert abs(RELATIVE_ERROR - 0.0217) < 5e-5
    assert abs(SHORTEST_S - 1e-6) < 5e-8
    assert LONGEST_S == 1024


@pytest.mark.parametrize("duration_s", [-1e-12, 0.0, 1e-9, SHORTEST_S])
def test_what_is_too_short_counts_as_the_shortest(duration_s):
    assert bucket_of(duration_s) == 0


@pytest.mark.parametrize("duration_s", [LONGEST_S, 1e9, 1e300])
def test_what_is_too_long_counts_as_the_longest(duration_s):
    assert bucket_of(duration_s) == NUM_BUCKETS - 1


@given(st.lists(ANY | st.just(0.0), max_size=40), st.lists(ANY | st.just(0.0), max_size=40))
def test_durations_are_added_and_taken_away(before, after):
    earlier, now = counted(before), counted(before + after)
    assert now - earlier == counted(after)
    assert earlier + counted(after) == now
    assert now.num == len(before) + len(after)
    assert hash(now - earlier) == hash(counted(after))
    assert Durations.of(json.loads(json.dumps(now.as_dict()))) == now


def is_distinct(duration_s):
    """Whether a logarithm tells a duration from the power of two that comes next."""
    return not 1 - 2.0**-48 < math.frexp(duration_s)[0] < 1


@given(st.lists(ANY.filter(is_distinct) | st.just(0.0), max_size=40))
def test_those_up_to_a_number_of_doublings_are_counted_exactly(durations_s):
    found = counted(durations_s).num_up_to(range(1, 31))
    assert found == [sum(each < SHORTEST_S * 2**number for each in durations_s) for number in range(1, 31)]


def test_no_durations_have_no_quantiles():
    assert Durations().quantiles_s(0.5, 0.99) == [0.0, 0.0]
    assert repr(Durations()) == "Durations(num=0, p50_s=0, p95_s=0, p99_s=0)"
    assert Durations(num_zero=3).num == 3
    assert (Durations(num_zero=3).p50_s, Durations(num_zero=3).p95_s, Durations(num_zero=3).p99_s) == (0, 0, 0)
