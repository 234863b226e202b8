"""A sample of a shard that raises is left out where the factory says so: microbatches stay full, and no place moves."""

import json
import os
import random
import signal
from functools import partial
from itertools import chain, islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_workers import worker_pids
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from walks import at_state

from fkat_data import (
    ConfigurationError,
    DataLoaderFactory,
    DistributedDataParallelShardSampler,
    ShardedDataLoader,
    SkippedSamplesError,
    StateMismatchError,
    item_generators,
)

SIZES = {"a": 9, "b": 1, "c": 25, "d": 0, "e": 14}
NUMBERS = [(shard, index) for shard, size in SIZES.items() for index in range(size)]


class Broken:
    """A shard's samples, each with a draw; some cannot be read."""

    def __init__(self, bad, shard):
        self.bad = bad
        self.shard = shard

    def __len__(self):
        return SIZES[self.shard]

    def __getitem__(self, index):
        drawn = random.random() + item_generators().python.random()
        if (self.shard, index) in self.bad:
            raise OSError(f"no {index}")
        return self.shard, index, drawn


class BrokenTogether(Broken):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def shuffled(dataset):
    return RandomSampler(dataset) if len(dataset) else ()


def doubled(samples):
    return [(*sample, row) for sample in samples for row in (0, 1)]


def make(bad=(), *, kind=Broken, size=4, shards=tuple(SIZES), **options):
    listed = partial(DataLoader, collate_fn=list if size else None)
    names = ("window_fn", "sampler_generator", "max_skipped_samples", "on_sample_error", "window_size")
    own = {name: options.pop(name) for name in names if name in options}
    own = {"on_sample_error": "skip", "window_size": 6, **own}
    factory = DataLoaderFactory(
        partial(kind, frozenset(bad)),
        dataloader_generator=listed,
        batch_size=size,
        **{**own, "window_fn": own.get("window_fn")},
    )
    return ShardedDataLoader(3, shards, factory, **{"multiprocessing": False, **options})


def ranks_of(count, bad, **options):
    samplers = [DistributedDataParallelShardSampler([*SIZES], count, rank, drop_last=False) for rank in range(count)]
    return [make(bad, shards=sampler, dp_rank=rank, **options) for rank, sampler in enumerate(samplers)]


def rows_of(batches):
    return [*chain.from_iterable(batches)]


bads = st.sets(st.sampled_from(NUMBERS), max_size=20)
shapes = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([Broken, BrokenTogether]),
        "size": st.sampled_from([1, 4, 9]),
        "window_size": st.sampled_from([1, 6, 50]),
        "sampler_generator": st.sampled_from([None, shuffled]),
        "window_fn": st.sampled_from([None, doubled]),
    }
)


@given(shapes, bads)
def test_the_others_come_in_the_same_order_in_full_microbatches(shape, bad):
    loader = make(bad, **shape)
    batches = list(loader)
    order = [row[:2] for row in rows_of(make(**shape))]
    assert [row[:2] for row in rows_of(batches)] == [place for place in order if place not in bad]
    sizes = [(batch[0][0], len(batch)) for batch in batches]
    assert all(size == shape["size"] for (shard, size), (after, _) in pairwise(sizes) if shard == after)
    assert loader.statistics().skipped_samples == len(bad)


@given(shapes, bads, st.lists(st.integers(0, 20), max_size=3))
def test_a_state_at_any_cut_has_each_sample_that_was_left_out_once(shape, bad, cuts):
    whole = list(make(bad, **shape))
    loader, had, num_before = make(bad, **shape), [], 0
    for cut in cuts:
        had += islice(loader, cut)
        if loader.epoch:
            break
        state = json.loads(json.dumps(loader.local_state_dict()))
        num_before = state.get("num_left_out", 0)
        loader = at_state(make(bad, **shape), state)
        assert loader.local_state_dict() == state
    if not loader.epoch:
        rest = list(loader)
        if loader.epoch == 1:
            had += rest
            assert num_before + loader.statistics().skipped_samples == len(bad)
    assert had == whole


@given(shapes, bads, st.lists(st.integers(0, 9), min_size=2, max_size=2), st.integers(1, 3))
def test_a_sample_that_can_be_read_again_moves_no_row_whatever_the_number_of_ranks(shape, bad, cuts, num_ranks):
    before = ranks_of(2, bad, **shape)
    had = [batch for loader, cut in zip(before, cuts, strict=True) for batch in islice(loader, cut)]
    if {loader.epoch for loader in before} != {0}:
        return
    state = ShardedDataLoader.merge_state_dicts([loader.local_state_dict() for loader in before])
    num_left_out = sum(state["all_rank_num_left_out"])
    after = ranks_of(num_ranks, (), **shape)
    rest = []
    for loader in after:
        loader.load_state_dict(state)
    assert sum(loader.local_state_dict().get("num_left_out", 0) for loader in after) == num_left_out
    for loader in after:
        iterator = iter(loader)
        rest += [] if loader.epoch else list(iterator)
    times = 1 if shape["window_fn"] is None else 2
    rows = rows_of([*had, *rest])
    found = [row[:2] for row in rows]
    missing = set(NUMBERS) - set(found)
    assert len(found) == times * len(set(found))
    assert missing <= bad
    assert len(missing) == num_left_out


def test_a_sample_that_was_delivered_and_cannot_be_read_again_is_an_error_not_a_row_less():
    loader = make([("c", 1)], shards=["c"], window_size=10)
    list(islice(loader, 2))
    other = at_state(make([("c", 1), ("c", 5)], shards=["c"], window_size=10), loader.state_dict())
    with pytest.raises(OSError, match=r"no 5(.|\n)*before the resume"):
        list(other)


def test_a_shard_goes_on_without_the_sample_that_stopped_the_run():
    bad = [("c", 13)]
    loader, had = make(bad, on_sample_error="raise"), []
    with pytest.raises(OSError, match="no 13"):
        had += loader
    rest = list(at_state(make(bad), loader.state_dict()))
    assert [row[:2] for row in rows_of([*had, *rest])] == [place for place in NUMBERS if place not in bad]


def test_a_shard_whose_samples_were_left_out_is_not_finished_by_a_factory_that_raises():
    loader = make([("c", 1)], shards=["c"])
    list(islice(loader, 2))
    other = at_state(make(shards=["c"], on_sample_error="raise"), loader.state_dict())
    with pytest.raises(StateMismatchError, match=r"left_out.*on_sample_error='skip'"):
        list(other)


@pytest.mark.parametrize("multiprocessing", [False, True])
def test_one_too_many_is_an_error_that_stays_and_names_the_sample(processes, multiprocessing, caplog):
    bad = [("a", 7), ("c", 0), ("c", 20)]
    with make(bad, max_skipped_samples=2, multiprocessing=multiprocessing) as loader:
        had, iterator = [], iter(loader)
        for _ in range(2):
            with pytest.raises(
                SkippedSamplesError, match=r"^3 samples of epoch 0 .*sample 20 of shard 'c': OSError: no 20"
            ):
                had += iterator
        assert [row[:2] for row in rows_of(had)] == [place for place in NUMBERS if place not in bad][
            : len(rows_of(had))
        ]
        assert len(had) >= 6
    assert sum("is left out" in record.getMessage() for record in caplog.records) == 3


@pytest.mark.parametrize(
    "options", [{}, {"num_workers_per_shard": 2}, {"num_shard_prefetches": 2, "window_fn": doubled}]
)
def test_killed_workers_leave_out_the_same(processes, options):
    bad = {place for place in NUMBERS if place[1] % 4 == 1}
    whole = list(make(bad, size=2, window_size=3, window_fn=options.get("window_fn")))
    options = {"multiprocessing": True, "max_worker_restarts": 9, "num_microbatch_prefetches": 2, **options}
    with make(bad, size=2, window_size=3, **options) as loader:
        found = []
        for number, batch in enumerate(loader):
            found.append(batch)
            # All while most is still to be made; later the newest, which may have nothing left to do.
            killed = {1: slice(None), 6: slice(-1, None), 7: slice(-1, None), 11: slice(-1, None)}.get(number)
            for pid in worker_pids()[killed] if killed is not None else ():
                os.kill(pid, signal.SIGKILL)
        assert found == whole
        assert loader.statistics().skipped_samples == len(bad)
        assert loader.statistics().worker_restarts >= 1


def test_each_epoch_may_leave_out_its_own():
    loader = make([("a", 1), ("c", 3)], max_skipped_samples=2)
    assert [len(rows_of(loader)) for _ in range(2)] == [len(NUMBERS) - 2] * 2


def test_items_that_are_microbatches_are_left_out_alone():
    batches = list(make([("a", 1)], size=None, shards=["a"], sampler_generator=SequentialSampler))
    assert [batch[1] for batch in batches] == [0, *range(2, 9)]


class Stream(IterableDataset):
    def __init__(self, bad, shard):
        pass

    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"on_sample_error": "ignore"}, "on_sample_error"),
        ({"kind": Stream}, "^on_sample_error .*iterable"),
    ],
)
def test_what_cannot_be_left_out_is_refused_by_name(options, match):
    with pytest.raises(ConfigurationError, match=match):
        list(make(**options))


def test_batch_samplers_are_refused_where_batches_are_cut_from_what_is_left():
    sampler = partial(BatchSampler, batch_size=2, drop_last=False)
    with pytest.raises(ConfigurationError, match=r"batch_sampler_generator .*on_sample_error='skip'"):
        DataLoaderFactory(partial(Broken, ()), batch_sampler_generator=sampler, on_sample_error="skip")
