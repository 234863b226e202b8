import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.datasets.packed import best_fit


def plain_best_fit(sizes, capacity):
    """The rule in so many words."""
    bins = []
    touched = []
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        rooms = [
            (capacity - sum(sizes[member] for member in members), -touched[index], index)
            for index, members in enumerate(bins)
        ]
        fitting = [room for room in rooms if room[0] >= sizes[place]]
        clock = len([member for members in bins for member in members])
        if fitting:
            index = min(fitting)[2]
            bins[index].append(place)
            touched[index] = clock
        else:
            bins.append([place])
            touched.append(clock)
    return bins


@given(capacity=st.integers(1, 40), data=st.data())
@settings(deadline=None)
def test_fragments_go_where_they_leave_the_least_room(capacity, data):
    sizes = data.draw(st.lists(st.integers(1, capacity), max_size=30))
    bins = best_fit(sizes, capacity)
    assert bins == plain_best_fit(sizes, capacity)
    assert sorted(place for members in bins for place in members) == list(range(len(sizes)))
    assert all(0 < sum(sizes[place] for place in members) <= capacity for members in bins)


@pytest.mark.parametrize("capacity", [64, 2048, 10_000])
def test_bins_are_nearly_full(capacity):
    sizes = [min(capacity, int(random.Random(index).expovariate(8 / capacity)) + 1) for index in range(4000)]
    assert sum(sizes) / (capacity * len(best_fit(sizes, capacity))) > 0.99
