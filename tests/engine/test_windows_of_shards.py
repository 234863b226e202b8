"""Rows that a factory's window function makes of a shard's windows: the same in every mode, and exact at every cut."""

import random
from functools import partial
from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from fkat_data import (
    ConfigurationError,
    DataLoaderFactory,
    DistributedDataParallelShardSampler,
    ShardedDataLoader,
    StateMismatchError,
)
from fkat_data.datasets import Filter, Pack, collate_packed

SIZES = {"a": 0, "b": 13, "c": 40, "d": 1, "e": 22}


class Numbers:
    """The samples of a shard, each with a draw."""

    def __init__(self, shard):
        self.shard = shard

    def __len__(self):
        return SIZES[self.shard]

    def __getitem__(self, index):
        return self.shard, index, random.random()


class Stream(IterableDataset):
    def __init__(self, shard):
        self.shard = shard

    def __iter__(self):
        return ((self.shard, index, float(np.random.random())) for index in range(SIZES[self.shard]))


def expanded(samples):
    """Rows with a draw: of each sample none, one or two."""
    return [(*sample, float(torch.rand(()))) for sample in samples for _ in range(sample[1] % 3)]


def shuffled(dataset):
    return RandomSampler(dataset) if len(dataset) else ()


def make(dataset=Numbers, *, size=4, window_size=6, sampler=shuffled, function=expanded, shards="abcde", **options):
    listed = partial(DataLoader, collate_fn=list, drop_last=options.pop("drop_last", False))
    own = {"sampler_generator": sampler if dataset is Numbers else None, "batch_size": size}
    factory = DataLoaderFactory(
        dataset, dataloader_generator=listed, window_fn=function, window_size=window_size, **own
    )
    options = {"multiprocessing": False, **options}
    return ShardedDataLoader(3, [*shards] if isinstance(shards, str) else shards, factory, **options)


shapes = st.fixed_dictionaries(
    {
        "dataset": st.sampled_from([Numbers, Stream]),
        "size": st.sampled_from([1, 4, 9]),
        "window_size": st.sampled_from([1, 6, 50]),
        "sampler": st.sampled_from([None, shuffled]),
        "shards": st.lists(st.sampled_from([*SIZES]), min_size=1, max_size=4),
    }
)


@given(shapes, st.booleans())
def test_each_shard_gives_the_rows_of_its_windows_in_full_batches_but_for_its_last(shape, drop_last):
    batches = list(make(**shape, drop_last=drop_last))
    by_shard = [expanded([(shard, index) for index in range(SIZES[shard])]) for shard in shape["shards"]]
    size = shape["size"]
    kept = [len(rows) // size * size if drop_last else len(rows) for rows in by_shard]
    assert [len(batch) for batch in batches] == [
        len(rows[first : first + size][: count - first])
        for rows, count in zip(by_shard, kept, strict=True)
        for first in range(0, count, size)
    ]
    if not drop_last:
        found = sorted(row[:2] for row in chain.from_iterable(batches))
        assert found == sorted(row[:2] for row in chain.from_iterable(by_shard))


@given(shapes, st.data())
def test_a_state_goes_on_with_the_next_row_and_the_same_draws_at_every_cut(shape, data):
    whole = list(make(**shape))
    cut = data.draw(st.integers(0, len(whole)))
    loader, resumed = make(**shape), make(**shape)
    list(islice(loader, cut))
    resumed.load_state_dict(loader.state_dict())
    if resumed.epoch == 0:
        assert list(resumed) == whole[cut:] or (cut == len(whole) and resumed.epoch == 2)


@pytest.mark.parametrize("dataset", [Numbers, Stream])
def test_worker_processes_make_the_same_rows(dataset, processes):
    with make(dataset, multiprocessing=True, num_shard_prefetches=2) as loader:
        assert list(loader) == list(make(dataset))


@pytest.mark.parametrize("sizes", [(2, 1), (2, 3)])
def test_other_ranks_finish_the_shards_that_were_begun(sizes):
    def ranks_of(count):
        samplers = [
            DistributedDataParallelShardSampler([*SIZES], count, rank, drop_last=False) for rank in range(count)
        ]
        return [make(shards=sampler, dp_rank=rank) for rank, sampler in enumerate(samplers)]

    whole = sorted(row[:2] for row in chain.from_iterable(make()))
    before, after = (ranks_of(count) for count in sizes)
    had = [row[:2] for loader in before for row in chain.from_iterable(islice(loader, 3))]
    state = ShardedDataLoader.merge_state_dicts([loader.local_state_dict() for loader in before])
    for loader in after:
        loader.load_state_dict(state)
        had += [row[:2] for row in chain.from_iterable(loader)]
    assert sorted(had) == whole


def test_documents_of_a_shard_are_filtered_and_packed():
    factory = DataLoaderFactory(
        lambda shard: [torch.arange(length) for length in range(1, 30)],
        batch_size=2,
        dataloader_generator=partial(DataLoader, collate_fn=collate_packed),
        window_fn=[Filter(lambda document: len(document) % 2 == 0), Pack(30)],
    )
    loader = ShardedDataLoader(0, ["a"], factory, multiprocessing=False)
    lengths = [length for batch in loader for length in torch.diff(batch["cu_seqlens"]).tolist()]
    assert sorted(length for length in lengths if length % 2 == 0)[-14:] == list(range(2, 30, 2))


def test_an_epoch_whose_shards_have_no_row_ends_and_says_so(caplog):
    assert not list(make(function=lambda samples: []))
    assert "epoch 0 has no microbatch" in caplog.text


def test_a_begun_shard_is_finished_with_the_function_that_began_it():
    loader = make()
    list(islice(loader, 2))
    other = make(function=list)
    with pytest.raises(StateMismatchError, match="batching"):
        other.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"window_fn": 3}, "window_fn"),
        (
            {"window_fn": list, "batch_sampler_generator": partial(BatchSampler, batch_size=2, drop_last=False)},
            "batches are",
        ),
        ({"window_fn": list, "dataloader_generator": partial(DataLoader, num_workers=1)}, "dataloader_generator"),
        ({"window_fn": list, "dataloader_generator": list}, "dataloader_generator"),
    ],
)
def test_what_does_not_go_with_a_window_function_is_refused_by_name(arguments, match):
    with pytest.raises(ConfigurationError, match=match):
        DataLoaderFactory(Numbers, **arguments)


def test_a_function_that_fails_says_which_samples_it_had():
    def failing(samples):
        raise ValueError("no rows")

    with pytest.raises(ValueError, match="no rows") as caught:
        list(make(function=failing, shards=["b"], sampler=None))
    assert any("window 0 (samples 0, 1, 2" in note for note in caught.value.__notes__)
