import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.datasets.windows import Windows
from fkat_data.errors import ConfigurationError


def windows(count, window_size, world_size=1, shuffle=True, seed=3):
    return Windows(np.arange(count), window_size, rank=0, world_size=world_size, shuffle=shuffle, seed=seed)


@given(count=st.integers(1, 200), window_size=st.integers(1, 60), shuffle=st.booleans(), epoch=st.integers(0, 3))
@settings(deadline=None)
def test_windows_hold_every_item_once_and_are_about_equally_large(count, window_size, shuffle, epoch):
    cut = windows(count, window_size, 1, shuffle)
    found = [cut.items(epoch, window).tolist() for window in range(cut.num_windows)]
    items = [item for window in found for item in window]
    assert sorted(items) == list(range(count))
    assert shuffle or items == list(range(count))
    sizes = list(map(len, found))
    assert min(sizes) >= min(window_size, count)
    assert max(sizes) < max(2 * window_size, count + 1)
    assert max(sizes) - min(sizes) <= 1


def test_each_window_can_be_asked_for_alone_in_any_epoch_and_copy():
    first, second = windows(50, 7), pickle.loads(pickle.dumps(windows(50, 7)))
    asked = [(epoch, window) for epoch in (2, 0, 1) for window in (4, 0, 6)]
    assert [first.items(*each).tolist() for each in asked] == [second.items(*each).tolist() for each in asked]


@pytest.mark.parametrize(
    ("argument", "count", "options"),
    [
        ("window_size", 9, {"window_size": 0}),
        ("window_size", 9, {"window_size": 2, "world_size": 3}),  # a window has a sample for each rank
        ("world_size", 9, {"window_size": 9, "world_size": 0}),
        ("world_size", 2, {"window_size": 9, "world_size": 3}),
        ("world_size", 0, {"window_size": 9}),
        ("shuffle", 9, {"window_size": 9, "shuffle": 1}),
        ("seed", 9, {"window_size": 9, "seed": "1"}),
        ("seed", 9, {"window_size": 9, "world_size": 2, "seed": None}),  # each rank would draw its own
    ],
)
def test_arguments_that_cannot_work_are_named(argument, count, options):
    with pytest.raises(ConfigurationError, match=f"^{argument} = "):
        windows(count, **options)


def test_ranks_without_a_shuffle_need_no_seed():
    assert windows(4, 2, 2, shuffle=False, seed=None).items(0, 0).tolist() == [0, 1]
