import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_examples import following
from torch.utils.data import DataLoader
from walks import at_state

from fkat_data.datasets import ResumableSequentialSampler
from fkat_data.errors import ConfigurationError, StaleIteratorError


@given(length=st.integers(1, 12), start=st.integers(0, 12))
def test_the_first_loop_begins_at_the_start_and_the_next_one_is_whole(length, start):
    start = min(start, length)
    sampler = ResumableSequentialSampler(range(length), start)
    assert len(sampler) == length - start % length
    assert list(sampler) == list(range(start % length, length))
    assert len(sampler) == length
    assert list(sampler) == list(range(length))
    assert len(sampler) == length


@given(length=st.integers(1, 9), start=st.integers(0, 8), stops=st.lists(st.integers(1, 12), max_size=5))
def test_stopping_anywhere_and_going_on_in_this_or_another_sampler_changes_nothing(length, start, stops):
    start = min(start, length - 1)
    whole = [index % length for index in range(start, start + 80)]
    left, resumed = (ResumableSequentialSampler(range(length), start) for _ in range(2))
    done = 0
    for stop in stops:
        assert following(left, stop) == whole[done : done + stop]
        assert following(resumed, stop) == whole[done : done + stop]
        done += stop
        state = json.loads(json.dumps(resumed.state_dict()))
        resumed = at_state(ResumableSequentialSampler(range(length)), state)
    assert following(resumed, 9) == whole[done : done + 9]


def test_the_length_is_that_of_the_loop_under_way_or_of_the_next_one():
    sampler = ResumableSequentialSampler(range(10), start_index=1)
    assert next(iter(sampler)) == 1
    assert len(sampler) == 9
    loop = iter(sampler)
    assert [len(sampler) for _ in loop] == [8] * 8
    assert len(sampler) == 10
    loop = iter(sampler)
    assert [next(loop), len(sampler)] == [0, 10]
    resumed = at_state(ResumableSequentialSampler(range(10)), sampler.state_dict())
    assert len(resumed) == 9
    assert len(DataLoader(range(10), batch_size=2, sampler=resumed)) == 5


def test_only_the_newest_iterator_lives():
    sampler = ResumableSequentialSampler(range(5))
    first = iter(sampler)
    assert next(first) == 0
    assert next(iter(sampler)) == 1
    with pytest.raises(StaleIteratorError):
        next(first)


@given(length=st.integers(1, 9), start=st.integers(0, 9), stop=st.integers(0, 10))
def test_the_index_is_the_one_that_llm_pytorchs_sampler_says(length, start, stop):
    start = min(start, length)
    sampler = ResumableSequentialSampler(range(length), start_index=start)
    assert (sampler.start_index, sampler.data_length, sampler.index) == (start, length, start % length)
    loop = iter(sampler)
    for number in range(start % length, min(length, start % length + stop)):
        assert next(loop) == sampler.index == number
    if start % length + stop > length:
        assert next(loop, None) is None
        assert sampler.index == length
    assert (sampler.start_index, sampler.data_length) == (start, length)
    # As there: a sampler that begins at the saved index gives that one again.
    again = ResumableSequentialSampler(range(length), start_index=sampler.index)
    assert next(iter(again)) == sampler.index % length


def test_a_loop_begins_at_an_index_that_is_set():
    sampler = ResumableSequentialSampler(range(6), start_index=2)
    loop = iter(sampler)
    assert [next(loop), next(loop)] == [2, 3]
    sampler.index = 1
    assert sampler.index == 1
    assert len(sampler) == 5
    with pytest.raises(StaleIteratorError):
        next(loop)
    assert sampler.state_dict()["index"] == 1
    assert list(sampler) == [1, 2, 3, 4, 5]
    assert list(sampler) == [0, 1, 2, 3, 4, 5]
    for wrong in (-1, 7, 1.5, None):
        with pytest.raises(ConfigurationError, match="index"):
            sampler.index = wrong
    loaded = at_state(ResumableSequentialSampler(range(6)), {"version": 1, "length": 6, "index": 4})
    assert (loaded.index, loaded.start_index) == (4, 0)
