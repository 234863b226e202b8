from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError
from fkat_data.mixing import RoundRobin, SamplerStrategy, Weighted
from fkat_data.mixing.draw_schedule import ON_EXHAUSTED, Schedule


class Silent(SamplerStrategy):
    """Passes over every draw."""

    names = ("a",)

    def source(self, epoch, draw, among):
        return None


def walk(schedule, counts):
    """Draw an epoch; yield each draw's source and the schedule's state and what is left after it."""
    left, taken = dict(counts), dict.fromkeys(counts, 0)
    while (name := schedule.source()) is not None:
        if left[name]:
            left[name] -= 1
            taken[name] += 1
            schedule.drawn()
            yield name, schedule.state_dict()
        elif schedule.ran_out(name, is_empty=not taken[name]):
            left[name], taken[name] = counts[name], 0


counts = st.fixed_dictionaries({name: st.integers(0, 5) for name in "abc"})


@given(counts, st.integers(0, 9))
def test_dropping_gives_every_source_whole(counts, seed):
    schedule = Schedule(Weighted({"a": 1, "b": 2, "c": 9}, seed), "abc", "drop")
    assert Counter(name for name, _ in walk(schedule, counts)) == +Counter(counts)


@given(counts, st.integers(0, 9))
def test_restarting_gives_every_source_at_least_once_whole_and_one_of_them_just_once(counts, seed):
    schedule = Schedule(Weighted({"a": 1, "b": 2, "c": 9}, seed), "abc", "restart")
    drawn = Counter(name for name, _ in walk(schedule, counts))
    assert all(drawn[name] >= counts[name] for name in counts)
    # The one whose end ended the epoch, unless it was an empty one, had run out for the first time.
    assert any(drawn[name] == counts[name] for name in counts)


@given(counts, st.integers(0, 9))
def test_stopping_ends_with_the_first_that_runs_out(counts, seed):
    schedule = Schedule(Weighted({"a": 1, "b": 2, "c": 9}, seed), "abc", "stop")
    drawn = Counter(name for name, _ in walk(schedule, counts))
    assert all(drawn[name] <= counts[name] for name in counts)
    assert any(drawn[name] == counts[name] for name in counts)


@pytest.mark.parametrize("on_exhausted", ON_EXHAUSTED)
def test_its_state_is_plain_and_loads_into_another(on_exhausted):
    schedule = Schedule(RoundRobin(["a", "b", "c"]), "abc", on_exhausted)
    for _, state in walk(schedule, {"a": 3, "b": 1, "c": 2}):
        other = Schedule(RoundRobin(["a", "b", "c"]), "abc", on_exhausted)
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert other.source() == schedule.source()


def test_a_strategy_that_draws_nothing_is_an_error_and_no_endless_loop():
    with pytest.raises(ConfigurationError, match="one that draws from the sources that are left: a"):
        Schedule(Silent(), "a", "drop").source()
