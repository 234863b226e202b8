import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.tools.report.traced_run import (
    Sample,
    Span,
    TracedRun,
    Track,
    columns,
    distribution,
    durations_s,
    excerpt,
    shares,
)


def run_of(spans):
    return TracedRun(
        [Track("trainer", True, spans)], [], [], [], [], max((span.ended_s for span in spans), default=0.0)
    )


def test_shares_are_what_was_spent_in_each_piece_of_time():
    samples = [Sample(0.0, {"waited_s": 0.0}), Sample(2.0, {"waited_s": 1.0}), Sample(4.0, {"waited_s": 1.0})]
    assert shares(samples, ["waited_s", "idle_s"], [0.0, 1.0, 2.0, 3.0, 4.0]) == {
        "waited_s": [0.5, 0.5, 0.0, 0.0],
        "idle_s": [0.0] * 4,
    }
    assert shares([], ["waited_s"], [0.0, 1.0]) == {"waited_s": [0.0]}


@given(st.lists(st.floats(0, 100), min_size=2, max_size=30))
def test_shares_add_up_to_all_that_was_spent(spent):
    samples = [Sample(float(at_s), {"x": sum(spent[: at_s + 1])}) for at_s in range(len(spent))]
    edges_s = [index * (len(spent) - 1) / 7 for index in range(8)]
    found = shares(samples, ["x"], edges_s)["x"]
    width_s = edges_s[1]
    assert sum(found) * width_s == pytest.approx(sum(spent) - spent[0], abs=1e-6)


@given(st.lists(st.floats(1e-9, 1e4), min_size=1, max_size=50))
def test_every_duration_is_in_one_bar(values_s):
    found = distribution(values_s)
    assert sum(found.counts) == len(values_s)
    assert found.edges_s == sorted(found.edges_s)
    assert found.quantiles_s[3] == pytest.approx(max(*values_s, 1e-07))
    assert list(found.quantiles_s) == sorted(found.quantiles_s)


def test_no_durations_have_no_distribution():
    assert distribution([]) is None


def test_durations_are_looked_up_by_name():
    track = Track("worker 0", False, [Span("produce", 0.0, 1.0, ""), Span("encode", 1.0, 0.5, "")])
    assert durations_s([track], "encode") == [0.5]


def test_a_column_has_the_name_of_what_took_most_of_it():
    spans = [Span("produce", 0.0, 4.0, ""), Span("encode", 4.0, 1.4, ""), Span("produce", 5.4, 2.6, "")]
    assert columns(spans, 10.0, 10) == [("produce", 0, 4), ("encode", 4, 1), ("produce", 5, 3), ("", 8, 2)]
    assert columns([], 10.0, 10) == []
    assert columns([Span("produce", -3.0, 4.0, "")], 10.0, 10) == [("produce", 0, 1), ("", 1, 9)]


def test_of_spans_within_spans_the_inner_ones_count():
    spans = [Span("next", 0.0, 10.0, ""), Span("wait", 0.0, 8.0, "")]
    assert columns(spans, 10.0, 10) == [("wait", 0, 8), ("next", 8, 2)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 9.9), st.floats(0, 0.1)), max_size=30),
    st.integers(1, 40),
)
def test_columns_cover_the_time_once(spans, num_columns):
    found = columns([Span(name, began_s, duration_s, "") for name, began_s, duration_s in spans], 10.0, num_columns)
    assert [first for _, first, _ in found] == [
        sum(count for *_, count in found[:index]) for index in range(len(found))
    ]
    assert sum(count for *_, count in found) == (num_columns if spans else 0)


def test_an_excerpt_is_from_the_middle():
    spans = [Span("next", float(index), 0.5, "") for index in range(100)]
    assert excerpt(run_of(spans), 10) == (45.5, 55.5)
    assert excerpt(run_of(spans[:5]), 10) == (0.5, 4.5)
    assert excerpt(run_of(spans[:1]), 10) == (0.0, 0.5)
