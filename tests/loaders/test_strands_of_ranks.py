"""Strands of an iterable dataset on other numbers of ranks: each goes on whole, whoever has it."""

import json
from itertools import islice

import pytest
from drop_in_examples import Rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from walks import saved

from fkat_data import ConfigurationError, DataLoader, StateMismatchError

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.long]


def loader_of(num_ranks, rank, state=None, *, num_workers=2, num_samples=23, batch_size=1, **options):
    loader = DataLoader(Rows(num_samples, **options), batch_size, collate_fn=list, num_workers=num_workers, seed=3)
    if num_ranks > 1:
        loader.deal_out(num_ranks, rank)
    if state is not None:
        loader.load_state_dict(state)
    return loader


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 2),
    st.integers(8, 30),
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=2, max_size=3),
    st.booleans(),
)
def test_every_sample_comes_once_whatever_ranks_an_epoch_has(num_workers, num_samples, trip, has_state):
    how = {"num_samples": num_samples, "has_state": has_state}
    num_strands = num_workers * len(trip[0])
    state, found = None, []
    for place, counts in enumerate(each[:num_strands] for each in trip):
        loaders = [loader_of(len(counts), rank, state, num_workers=num_workers, **how) for rank in range(len(counts))]
        again = saved(loaders)
        for loader in loaders:
            loader.close()
        loaders = [loader_of(len(counts), rank, again, num_workers=num_workers, **how) for rank in range(len(counts))]
        for loader, count in zip(loaders, counts, strict=True):
            if loader.epoch == 0:
                stop = None if place == len(trip) - 1 else count
                found += [sample for batch in islice(loader, stop) for sample in batch]
        state = saved(loaders)
        last = loaders
        for loader in loaders:
            loader.close()
    assert sorted(found) == list(range(num_samples))
    # Each strand has all of the next epoch.
    following = [sample for loader in last if loader.epoch == 1 for batch in loader for sample in batch]
    for loader in last:
        loader.close()
    assert sorted(following) == list(range(num_samples))


def test_a_rank_an_epoch_ahead_keeps_what_it_had():
    loaders = [loader_of(2, rank, num_workers=1) for rank in range(2)]
    list(islice(loaders[0], 4))
    list(loaders[1])
    ahead = [sample for batch in islice(loaders[1], 3) for sample in batch]
    loader = loader_of(1, 0, saved(loaders))
    assert (loader.epoch, loader.step) == (0, 4)
    assert sorted(sample for batch in loader for sample in batch) == list(range(8, 24, 2))[: 12 - 4]
    rest = [sample for batch in islice(loader, 5) for sample in batch]
    again = loader_of(1, 0, json.loads(json.dumps(loader.local_state_dict())))
    assert (again.epoch, again.step) == (1, 5)
    split = [loader_of(2, rank, again.local_state_dict()) for rank in range(2)]
    rest_of_two = [sample for each in split for batch in each for sample in batch]
    assert sorted([*rest, *ahead, *rest_of_two]) == list(range(23))
    rest += [sample for batch in again for sample in batch]
    assert sorted([*rest, *ahead]) == list(range(23))
    # The epoch after that has nothing of other ranks.
    assert sorted(sample for batch in again for sample in batch) == list(range(23))
    for each in (*loaders, loader, again, *split):
        each.close()


def test_what_is_not_whole_is_refused_with_the_way_out():
    loaders = [loader_of(2, rank, num_workers=1) for rank in range(2)]
    for loader in loaders:
        list(islice(loader, 2))
    state = saved(loaders)
    with pytest.raises(StateMismatchError, match=r"strand_numbers.*<1 of 2 strands>.*merge_state_dicts"):
        loader_of(1, 0, loaders[0].local_state_dict())
    with pytest.raises(StateMismatchError, match=r"strand_numbers.*merge_state_dicts"):
        loader_of(2, 1, loaders[0].local_state_dict(), num_workers=1)
    with pytest.raises(StateMismatchError, match=r"all_strands.*fewer ranks"):
        loader_of(3, 0, state)
    own = DataLoader(Rows(23, counts_all=False), 1, collate_fn=list, num_workers=1, dp_rank=0, seed=3)
    for other in (state, loaders[0].local_state_dict()):
        with pytest.raises(StateMismatchError, match=r"counts_workers_of_all_ranks"):
            own.load_state_dict(other)
    with pytest.raises(StateMismatchError, match=r"counts_workers_of_all_ranks"):
        loader_of(2, 0, own.local_state_dict(), num_workers=1)
    with pytest.raises(ConfigurationError, match="neither iterated nor loaded"):
        loaders[0].deal_out(3, 0)
    with pytest.raises(ConfigurationError, match=r"dp_rank.*counts_workers_of_all_ranks"):
        loader_of(2, 0, num_workers=0)
    for loader in loaders:
        loader.close()
