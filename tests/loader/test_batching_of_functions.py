"""A plain function as the factory: what its product says of its batches is in the state of a begun shard."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from written_files import left, saved_after, saved_by_two_ranks

from fkat_data import DataLoaderFactory, ShardedDataLoader, StateMismatchError


def in_order(batch_size, **options):
    def factory(shard):
        return DataLoader(range(int(shard)), batch_size, **options)

    return factory


def shuffled(shard):
    return DataLoader(range(int(shard)), 4, sampler=RandomSampler(range(int(shard))))


def in_own_batches(batch_size):
    def factory(shard):
        samples = range(int(shard))
        return DataLoader(samples, batch_sampler=BatchSampler(SequentialSampler(samples), batch_size, drop_last=False))

    return factory


def as_a_list(shard):
    return [torch.arange(index, min(index + 3, int(shard))) for index in range(0, int(shard), 3)]


def begun(factory, num_taken=6, **options):
    return saved_after(num_taken, ["100", "100"], factory, **options)


def rest(factory, state, **options):
    return [sample for microbatch in left(state, ["100", "100"], factory, **options) for sample in microbatch.tolist()]


def by_arguments(**options):
    return DataLoaderFactory(lambda shard: range(int(shard)), **options)


@pytest.mark.parametrize(
    ("saved", "present", "says"),
    [
        (in_order(4), in_order(3), ("batch_size=4, sampler=SequentialSampler", "batch_size=3")),
        (in_order(4), in_order(4, drop_last=True), ("drop_last=False", "drop_last=True")),
        (in_order(4), shuffled, ("sampler=SequentialSampler", "sampler=RandomSampler")),
        (in_own_batches(4), in_own_batches(3), ("batch_size=4", "batch_size=3")),
        (by_arguments(batch_size=4), by_arguments(batch_size=3), ("4 in order", "3 in order")),
        (
            by_arguments(batch_size=4),
            by_arguments(batch_size=4, sampler_generator=SequentialSampler),
            ("4 in order", ""),
        ),
        (by_arguments(batch_size=4), by_arguments(batch_sampler_generator=lambda rows: [[0]]), ("4 in order", "")),
    ],
)
def test_a_begun_shard_is_not_finished_in_other_batches(saved, present, says):
    state = begun(saved)
    with pytest.raises(StateMismatchError) as raised:
        rest(present, state)
    assert raised.value.field == "fingerprint.batching"
    assert says[0] in raised.value.saved
    assert says[1] in raised.value.present
    assert len(rest(saved, state)) == 200 - 6 * 4


@pytest.mark.parametrize("num_workers_per_shard", [1, 2])
def test_workers_report_and_compare_it(num_workers_per_shard, processes):
    options = {"multiprocessing": True, "num_workers_per_shard": num_workers_per_shard, "on_shard_error": "skip"}
    state = begun(in_order(4), **options)
    assert "batch_size=4" in state["fingerprint"]["batching"]
    with pytest.raises(StateMismatchError, match="batch_size=3"):
        rest(in_order(3), state, **options)
    assert len(rest(in_order(4), state, **options)) == 200 - 6 * 4


@pytest.mark.parametrize("of_size", [in_order, lambda size: by_arguments(batch_size=size)])
def test_between_two_shards_the_batches_may_change(of_size):
    assert rest(of_size(3), begun(of_size(4), num_taken=25)) == list(range(100))


def test_a_loaded_state_a_closed_loader_and_a_left_iteration_still_say_it():
    state = begun(in_order(4))
    with ShardedDataLoader(0, ["100", "100"], in_order(4), multiprocessing=False) as loader:
        loader.load_state_dict(state)
        assert loader.local_state_dict() == state
        next(iter(loader))
        loader.close()
        assert "batch_size=4" in loader.local_state_dict()["fingerprint"]["batching"]


def test_a_state_without_it_and_a_product_that_does_not_say_load_as_before():
    state = begun(in_order(4))
    state["fingerprint"]["batching"] = None
    assert rest(in_order(5), state)[:5] == [30, 31, 32, 33, 34]
    del state["fingerprint"]["batching"]
    assert rest(in_order(5), state)[:5] == [30, 31, 32, 33, 34]
    assert rest(as_a_list, begun(in_order(4)))[:3] == [18, 19, 20]
    assert begun(as_a_list)["fingerprint"]["batching"] is None


def test_other_ranks_finish_a_begun_shard_in_its_batches():
    whole, sampler = saved_by_two_ranks(3, ["100", "100"], in_order(4))
    assert sum(map(len, left(whole, sampler, in_order(4)))) == 2 * (100 - 12)
    with pytest.raises(StateMismatchError, match="batch_size=3"):
        left(whole, sampler, in_order(3))
