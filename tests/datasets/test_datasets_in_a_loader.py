"""Each dataset and sampler inside a ShardedDataLoader: stop anywhere, resume, and nothing differs."""

import io

import dataset_examples
import pytest
import torch
from loader_examples import following, plain

from fkat_data import ShardedDataLoader, ShuffledShardSampler

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
