import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.tools.simulation.link import Link, fair_rates

INF = math.inf


@pytest.mark.parametrize(
    ("num_moving", "limits", "expected"),
    [
        ([2, 1, 0], (100, INF, INF), [50, 100, 0]),
        ([2, 1], (100, 30, INF), [30, 30]),
        ([2, 1], (100, INF, 120), [40, 40]),
        ([4, 1], (40, INF, 60), [10, 20]),
        ([4, 1, 1], (40, 10, 1000), [10, 10, 10]),
        ([3], (INF, INF, INF), [INF]),
        ([3, 1], (INF, INF, 80), [20, 20]),
        ([], (1, 1, 1), []),
    ],
)
def test_the_line_is_shared_as_evenly_as_its_limits_let_it(num_moving, limits, expected):
    assert fair_rates(num_moving, *limits) == pytest.approx(expected)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    st.floats(1, 100),
    st.floats(1, 100),
    st.floats(1, 300),
)
def test_no_limit_is_exceeded_and_one_holds_for_each(num_moving, node, connection, store):
    rates = fair_rates(num_moving, node, connection, store)
    total = sum(rate * count for rate, count in zip(rates, num_moving, strict=True))
    assert total <= store * (1 + 1e-9)
    for rate, count in zip(rates, num_moving, strict=True):
        assert rate <= connection * (1 + 1e-9)
        assert rate * count <= node * (1 + 1e-9)
        if count:
            held = total >= store * (1 - 1e-9) and rate >= max(rates) * (1 - 1e-9)
            assert held or math.isclose(rate, connection) or math.isclose(rate * count, node) or total >= store - 1e-6


def test_transfers_that_come_and_go_share_what_there_is():
    link = Link()
    link.add(0.0, 7, 100)
    link.set_rate(0.0, 100)
    assert link.next_s() == 1.0
    link.add(0.5, 8, 100)
    link.set_rate(0.5, 50)
    assert link.next_s() == 1.5
    assert link.pop(1.5) == 7
    link.set_rate(1.5, 100)
    assert link.next_s() == 2.0
    assert link.pop(2.0) == 8
    assert link.next_s() == INF
    assert link.num_moving == 0


def test_a_line_of_any_bandwidth_takes_no_time():
    link = Link()
    link.set_rate(0.0, INF)
    link.add(3.0, 1, 10**12)
    link.set_rate(3.0, INF)
    assert link.next_s() == 3.0
    assert link.pop(3.0) == 1
