"""Each dataset and sampler inside a ShardedDataLoader: stop anywhere, resume, and nothing differs."""

import io
from collections import Counter
from itertools import islice

import dataset_examples
import pytest
import torch
from loader_examples import following, plain

from fkat_data import DataLoader, ShardedDataLoader, ShuffledShardSampler
from fkat_data.datasets import PackedDataset, attention_cost, collate_packed

SHARDS = ["1-10", "2-7", "3-12"]
NUM_EPOCHS = 2
FACTORIES = ["bucketed", "budgeted", "packed", "viewed", "distributed"]


def make(name, **options):
    sampler = ShuffledShardSampler(SHARDS, 5)
    factory = getattr(dataset_examples, name)
    return ShardedDataLoader(7, sampler, factory, **{"multiprocessing": False, **options})


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.fixture(scope="module", params=FACTORIES)
def uninterrupted(request):
    """What a run that nothing stops yields, epoch by epoch, and the state before each microbatch."""
    loader = make(request.param)
    states, epochs = [saved(loader.state_dict())], []
    for _ in range(NUM_EPOCHS):
        epochs.append([])
        for microbatch in loader:
            epochs[-1].append(plain(microbatch))
            states.append(saved(loader.state_dict()))
    return request.param, epochs, states


def tokens(microbatches):
    """Every token or sample of the microbatches, without padding and draws."""
    for microbatch in microbatches:
        rows = microbatch["tokens"] if isinstance(microbatch, dict) else microbatch
        ids = microbatch["document_ids"] if isinstance(microbatch, dict) else [[0] * len(row) for row in rows]
        for row, kept in zip(rows, ids, strict=True):
            if isinstance(row[0], float):
                yield int(row[0])
            else:
                yield from (token for token, number in zip(row, kept, strict=True) if token >= 0 and number >= 0)


def test_each_epoch_has_the_same_tokens_in_an_order_of_its_own(uninterrupted):
    name, (first, second), _ = uninterrupted
    assert sorted(tokens(first)) == sorted(tokens(second))
    assert len(set(tokens(first))) == len(list(tokens(first)))
    assert first != second
    if name in {"bucketed", "budgeted", "packed"}:
        documents = [dataset_examples.documents_of(shard) for shard in SHARDS]
        assert sorted(tokens(first)) == sorted(int(token) for each in documents for item in each for token in item)
        by_shard = [
            sorted(str(each) for each in epoch if min(tokens([each])) >= 3_000_000) for epoch in (first, second)
        ]
        assert by_shard[0] != by_shard[1]  # where no seed is given, a shard's order differs from epoch to epoch


def test_a_run_in_process_resumes_exactly_from_every_position(uninterrupted):
    name, epochs, states = uninterrupted
    whole = [microbatch for epoch in epochs for microbatch in epoch]
    for position, state in enumerate(states):
        loader = make(name)
        loader.load_state_dict(state)
        assert following(loader, len(whole) - position) == whole[position:]


@pytest.mark.parametrize("uninterrupted", ["packed", "distributed"], indirect=True)
def test_a_run_with_workers_resumes_exactly(processes, uninterrupted, nothing_left_behind):
    name, epochs, states = uninterrupted
    whole = [microbatch for epoch in epochs for microbatch in epoch]
    with make(name, multiprocessing=True, num_shard_prefetches=1) as loader:
        assert following(loader, len(whole)) == whole
        for position in (2, len(epochs[0]) - 1, len(epochs[0]) + 3):
            loader.load_state_dict(states[position])
            assert following(loader, len(whole) - position) == whole[position:]


COST = attention_cost(8)


def ranks_by_cost(num_ranks, state=None, **workers):
    """Return the loaders of ranks that compute equally much."""
    documents = dataset_examples.Documents([1 + index * 37 % 61 for index in range(400)])
    loaders = []
    for rank in range(num_ranks):
        packed = PackedDataset(documents, 64, 100, seed=3, rank=rank, world_size=num_ranks, cost=COST)
        loader = DataLoader(packed, batch_size=2, collate_fn=collate_packed, seed=3, **workers)
        if state is not None:
            loader.load_state_dict(state)
        loaders.append(loader)
    return loaders


def rows(microbatches):
    return [microbatch["tokens"].tolist() for microbatch in microbatches]


def test_ranks_by_cost_with_workers_go_on_as_others(processes, nothing_left_behind):
    found = []
    for workers in ({}, {"num_workers": 2}):
        two = ranks_by_cost(2, **workers)
        had = [rows(islice(loader, 5)) for loader in two]
        state = DataLoader.merge_state_dicts([loader.local_state_dict() for loader in two])
        three = ranks_by_cost(3, state, **workers)
        found.append((had, [rows(loader) for loader in three]))
        for loader in two + three:
            loader.close()
    assert found[0] == found[1]
    delivered = Counter(tuple(row) for ranks in found[1] for rank in ranks for microbatch in rank for row in microbatch)
    (whole,) = ranks_by_cost(1)
    tokens = Counter(token for microbatch in rows(whole) for row in microbatch for token in row if token)
    assert Counter(token for row in delivered.elements() for token in row if token) == tokens
