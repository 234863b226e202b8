import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.datasets.dealing import PlannedBatch, halved, rounds


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=20), spare=st.integers(0, 60))
def test_the_largest_groups_are_halved_until_there_are_enough_parts(sizes, spare):
    count = len(sizes) + spare
    found = halved(sizes, count)
    if sum(sizes) < count:
        assert found is None
        return
    assert found is not None
    assert len(found) == count
    members = [(group, member) for group, start, stop in found for member in range(start, stop)]
    assert members == [(group, member) for group, size in enumerate(sizes) for member in range(size)]
    of_size = [stop - start for _, start, stop in found]
    assert min(of_size) >= 1
    # None that was halved was smaller than one that is left.
    parents = [sizes[group] for group, start, stop in found if stop - start < sizes[group]]
    assert not parents or max(of_size) <= max(parents)


@st.composite
def plans(draw):
    """Windows of batches, by width, whose members are numbered."""
    windows, number = [], 0
    for window in range(draw(st.integers(1, 4))):
        widths = sorted(draw(st.lists(st.integers(1, 9), min_size=1, max_size=12)))
        places = draw(st.permutations(range(len(widths))))
        batches = []
        for place, width in zip(places, widths, strict=True):
            size = draw(st.integers(1, 5))
            batches.append(PlannedBatch((window << 32) + place, list(range(number, number + size)), width))
            number += size
        windows.append(batches)
    return windows


def dealt(windows, num_ranks, earlier=()):
    return list(rounds(len(windows), windows.__getitem__, num_ranks, earlier))


def delivered(windows, layouts):
    """What the ranks of some layouts got, by batches."""
    found = []
    for index, counts in enumerate(layouts):
        of_layout = dealt(windows, len(counts), layouts[:index])
        for rank, count in enumerate(counts):
            found += [each[rank] for each in of_layout[:count]]
    return found


@st.composite
def layouts_of(draw, windows):
    layouts = []
    for _ in range(draw(st.integers(0, 3))):
        num_ranks = draw(st.integers(1, 5))
        most = len(dealt(windows, num_ranks, layouts))
        first = draw(st.integers(0, most))
        # Ranks that are out of step too; one that has had all is past the epoch.
        counts = [draw(st.integers(first, min(most, first + 2))) for _ in range(num_ranks)]
        layouts.append([None if count == most and draw(st.booleans()) else count for count in counts])
    return layouts


@given(windows=plans())
def test_one_rank_gets_the_plan_as_it_is(windows):
    in_order = sorted(itertools.chain.from_iterable(windows))
    assert [batch for (batch,) in dealt(windows, 1)] == [batch.members for batch in in_order]


@given(windows=plans(), num_ranks=st.integers(1, 7), data=st.data())
@settings(deadline=None)
def test_whatever_numbers_of_ranks_came_before_each_sample_is_dealt_once(windows, num_ranks, data):
    layouts = data.draw(layouts_of(windows))
    rest = dealt(windows, num_ranks, layouts)
    assert all(len(each) == num_ranks and all(each) for each in rest)
    got = [member for batch in delivered(windows, layouts) for member in batch]
    got += [member for each in rest for batch in each for member in batch]
    assert len(set(got)) == len(got)
    everything = {member for window in windows for batch in window for member in batch.members}
    if set(got) == everything:
        return
    # What is left out is less than a round of batches, where there were not even so many samples.
    missing = everything - set(got)
    assert sum(bool(missing & set(batch.members)) for window in windows for batch in window) < num_ranks


@given(windows=plans(), num_ranks=st.integers(1, 7))
@settings(deadline=None)
def test_all_but_the_last_window_is_dealt_in_whole_batches_of_the_plan(windows, num_ranks):
    of_plan = [batch.members for window in windows for batch in window]
    found = [batch for each in dealt(windows, num_ranks) for batch in each]
    num_halves = sum(batch not in of_plan for batch in found)
    assert num_halves <= 2 * (num_ranks - 1)


@given(windows=plans(), num_ranks=st.integers(1, 7), other=st.integers(1, 7), data=st.data())
@settings(deadline=None)
def test_a_number_of_ranks_that_had_nothing_leaves_no_trace(windows, num_ranks, other, data):
    layouts = data.draw(layouts_of(windows))
    assert dealt(windows, num_ranks, [*layouts, [0] * other]) == dealt(windows, num_ranks, layouts)


@given(windows=plans(), num_ranks=st.integers(2, 7))
@settings(deadline=None)
def test_the_ranks_of_a_round_have_batches_of_neighbouring_widths(windows, num_ranks):
    widths = {member: batch.width for window in windows for batch in window for member in batch.members}
    found = dealt([sorted(itertools.chain.from_iterable(windows), key=lambda batch: batch.width)], num_ranks)
    ranges = sorted(
        (min(widths[batch[0]] for batch in each), max(widths[batch[0]] for batch in each)) for each in found
    )
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
