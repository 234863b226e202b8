"""Real processes against the in-process run: one order, one state, exact from every position for every pairing."""

from functools import partial

import pytest
from loader_examples import MIXED, MapDataset, StreamDataset, bounded, epoch, following, make, plain, same_state
from torch.utils.data import DataLoader
from walks import at_state, recorded

from fkat_data import ShuffledShardSampler

pytestmark = pytest.mark.usefixtures("processes")

NUM_EPOCHS = 2
#: Shards ahead, microbatches ahead, zero copy: each value of each with some of the others.
DEPTHS = [(0, -1, True), (0, 2, True), (1, 1, True), (1, -1, True), (2, 0, False)]


def sampler():
    return ShuffledShardSampler(MIXED, 3)


@pytest.fixture(scope="module")
def in_process():
    """The microbatches of a run in process that nothing stops, and the state before each."""
    return recorded(make(sampler()), plain, NUM_EPOCHS)


@pytest.mark.parametrize(("num_shards_ahead", "num_microbatches_ahead", "zero_copy"), DEPTHS)
def test_both_modes_yield_the_same_and_resume_each_other_from_every_position(
    in_process, num_shards_ahead, num_microbatches_ahead, zero_copy
):
    microbatches, states = in_process
    options = {
        "multiprocessing": True,
        "num_shard_prefetches": num_shards_ahead,
        "num_microbatch_prefetches": num_microbatches_ahead,
        "zero_copy": zero_copy,
    }
    with make(sampler(), **options) as loader:
        # The states are the same, whichever mode saved them: that is two of the four pairings at every position.
        found, saved = recorded(loader, plain, NUM_EPOCHS)
        assert found == microbatches
        assert all(same_state(ours, theirs) for ours, theirs in zip(saved, states, strict=True))
        # The other two: resumed in process is test_resume's; here in the very workers that were in the middle of it, and
        # that are left again after one to six.
        for position, state in enumerate(states):
            loader.load_state_dict(state)
            expected = microbatches[position : position + 1 + position % 6]
            assert bounded(lambda: following(loader, len(expected)), loader) == expected  # noqa: B023


def test_a_fresh_process_loader_resumes_to_the_end(in_process):
    microbatches, states = in_process
    with at_state(make(sampler(), multiprocessing=True, num_shard_prefetches=2), states[7]) as loader:
        assert following(loader, len(microbatches) - 7) == microbatches[7:]


def test_a_nested_data_loader_with_workers_draws_and_resumes_exactly():
    shards = ["nested-a-9", "map-b-3", "nested-c-4"]
    with make(shards, multiprocessing=True, num_microbatch_prefetches=2) as loader:
        whole, states = recorded(loader, plain)
        again = epoch(loader)
        rows = [row for microbatch in whole for row in microbatch]
        assert len(rows) == len({tuple(row) for row in rows}) == 16
        assert len({draw for row in rows for draw in row[2:]}) == 48
        assert again != whole
        for position, state in enumerate(states[:-1]):
            loader.load_state_dict(state)
            assert following(loader, 2) == (whole + again)[position : position + 2]


def nested(dataset, num_workers, shard):
    return DataLoader(dataset(shard), batch_size=2, shuffle=dataset is MapDataset, num_workers=num_workers)


@pytest.mark.parametrize(("dataset", "num_workers"), [(MapDataset, 2), (StreamDataset, 1)], ids=["map", "stream"])
def test_a_nested_data_loader_resumes_in_the_other_mode(dataset, num_workers):
    shards, factory = ["nested-a-7", "nested-b-4"], partial(nested, dataset, num_workers)
    with make(shards, factory, multiprocessing=True) as remote, make(shards, factory) as here:
        whole, states = recorded(here, plain)
        assert epoch(remote) == whole
        # Without workers of its own it gives the same: who makes a microbatch is no part of it.
        if dataset is MapDataset:
            assert epoch(make(shards, partial(nested, dataset, 0))) == whole
        for position in (1, 3, 5):
            remote.load_state_dict(states[position])
            assert following(remote, 6 - position) == whole[position:]
            here.load_state_dict(remote.state_dict())
            assert here.epoch == 1
