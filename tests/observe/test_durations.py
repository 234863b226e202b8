import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.observe import Durations

#: From a microsecond to a quarter of an hour, on a logarithmic scale.
ANY = st.floats(math.log(2.0**-20), math.log(2.0**10) - 1e-9).map(math.exp) | st.just(0.0)


def counted(durations_s):
    """Sixteen buckets for each doubling, from 2 ** -20 s on."""
    buckets = {"0 s": durations_s.count(0.0)}
    for duration_s in filter(None, durations_s):
        bucket = str(max(0, int(16 * math.log2(duration_s) + 320)))
        buckets[bucket] = buckets.get(bucket, 0) + 1
    return Durations.of(buckets)


@given(st.lists(ANY, min_size=1, max_size=300), st.lists(st.floats(0, 1), max_size=4))
def test_a_quantile_is_within_2_2_percent_of_that_of_the_sorted_durations(durations_s, shares):
    shares = [0.0, 0.5, 0.95, 0.99, 1.0, *shares]
    for share, found_s in zip(shares, counted(durations_s).quantiles_s(*shares), strict=True):
        expected_s = sorted(durations_s)[max(1, math.ceil(share * len(durations_s) - 1e-6)) - 1]
        assert found_s == pytest.approx(expected_s, rel=0.0218)


@given(st.lists(ANY, max_size=40), st.lists(ANY, max_size=40))
def test_durations_are_added_and_taken_away(before, after):
    earlier, now = counted(before), counted(before + after)
    assert now - earlier == counted(after)
    assert earlier + counted(after) == now
    assert now.num == len(before) + len(after)
    assert hash(now - earlier) == hash(counted(after))
    assert Durations.of(json.loads(json.dumps(now.as_dict()))) == now


def test_no_durations_have_no_quantiles():
    assert Durations().quantiles_s(0.5, 0.99) == [0.0, 0.0]
    assert repr(Durations()) == "Durations(num=0, p50_s=0, p95_s=0, p99_s=0)"
    nothing = Durations(num_zero=3)
    assert (nothing.num, nothing.p50_s, nothing.p95_s, nothing.p99_s) == (3, 0, 0, 0)
