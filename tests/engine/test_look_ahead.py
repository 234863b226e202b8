"""The look-ahead as a policy: its properties, and what it hides in simulated runs, beside one without a limit."""

from bisect import bisect_right
from itertools import cycle, islice
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.engine.look_ahead import LookAhead

IMAGES, TOKENS, TINY = 18 << 20, 256 << 10, 512


class Run(NamedTuple):
    waited: float
    largest: int
    """The most microbatches that were made and not delivered."""
    windows: list[int]


def simulated(making, using, policy=None, size_bytes=IMAGES):
    """Play one worker and one trainer: how long each microbatch takes to make, and how long the trainer uses it."""
    allowed_at, made_at, windows = [], [], []
    now = waited = 0.0
    largest = learn_at = 0

    def allow(until):
        while len(made_at) < min(until, len(making)):
            allowed_at.append(now)
            begun = max(now, made_at[-1] if made_at else 0.0)
            made_at.append(begun + making[len(made_at)])

    allow(policy.size if policy else len(making))
    for index, use in enumerate(using):
        num_ready = bisect_right(made_at, now) - index
        if num_ready > 0:
            largest = max(largest, num_ready)
            if policy and index >= learn_at:
                learn_at = index + policy.stride
                policy.deliver(num_ready, size_bytes)
        else:
            if policy:
                policy.wait()
                learn_at = index + 1
                allow(index + max(1, policy.size))
            waited += made_at[index] - now
            now = made_at[index]
        windows.append(policy.size if policy else 0)
        allow(index + 1 + (policy.size if policy else len(making)))
        now += use
    return Run(waited, largest, windows)


def times(pattern, count):
    return list(islice(cycle(pattern), count))


COUNT = 20_000
TRACES = {
    "every 20th is 20 times as slow": (times([1.0] * 19 + [20.0], COUNT), times([2.0], COUNT)),
    "a bursty producer": (times([0.1] * 63 + [60.0], COUNT), times([1.2], COUNT)),
    "a bursty consumer": (times([1.0], COUNT), times([0.01] * 39 + [60.0], COUNT)),
    "one slow step in 2,000": (times([1.0] * 1999 + [40.0], COUNT), times([1.1], COUNT)),
}


@pytest.mark.parametrize("name", TRACES)
def test_what_a_look_ahead_without_a_limit_hides_is_hidden(name):
    making, using = TRACES[name]
    unlimited, run = simulated(making, using), simulated(making, using, LookAhead())
    lost = run.waited - unlimited.waited
    assert lost < 0.02 * sum(using), (lost, unlimited.waited, max(run.windows))
    assert run.largest <= 256


@pytest.mark.parametrize("jitter", [(1.0,), (0.5, 1.5), (1.0, 1.0, 1.0, 3.0)])
def test_a_window_that_cannot_help_does_not_grow(jitter):
    """The worker is the limit: the trainer waits for most microbatches, whatever the window."""
    run = simulated(times(jitter, COUNT), times([0.1], COUNT), LookAhead())
    assert max(run.windows) <= 8
    assert run.waited <= simulated(times(jitter, COUNT), times([0.1], COUNT)).waited + 5.0


def test_a_window_shrinks_again_when_what_it_was_for_is_over():
    making = times([1.0] * 19 + [40.0], 4000) + times([1.0], 40_000)
    run = simulated(making, times([3.1], 44_000), LookAhead())
    assert max(run.windows) >= 8
    assert run.windows[-1] == 4


@pytest.mark.parametrize(("size_bytes", "least"), [(IMAGES, 4), (TOKENS, 16), (TINY, 1024), (0, 1024)])
def test_the_window_of_small_microbatches_is_a_few_mebibytes(size_bytes, least):
    run = simulated(times([1.0], 3000), times([2.0], 3000), LookAhead(), size_bytes)
    assert run.windows[-1] == least


events = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(1, 3000), st.sampled_from([0, TINY, TOKENS, IMAGES])),
        st.tuples(st.just("wait"), st.booleans(), st.none()),
    ),
    max_size=400,
)


@given(events, st.integers(1, 16))
@settings(max_examples=100)
def test_the_window_stays_within_its_bounds_and_grows_at_waits_alone(events, num_workers):
    policy = LookAhead(num_workers)
    for kind, number, size_bytes in events:
        before = policy.size
        if kind == "deliver":
            policy.deliver(number, size_bytes)
            assert policy.size <= max(before, 2 * num_workers, 1024)
        else:
            policy.wait(is_idle_ahead=number)
            assert before // 2 <= policy.size <= 2 * before
        assert max(4, 2 * num_workers) <= policy.size <= 1 << 16
