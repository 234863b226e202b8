"""A window function over a stream: each row comes once, and a node reads the shards of its own canonical nodes."""

import logging
import os
import signal
from itertools import chain, islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_datasets import Iterated
from own_workers import worker_pids
from streaming_examples import write
from walks import at_state, delivered, saved

from fkat_data import ConfigurationError, DataLoader, StateMismatchError
from fkat_data.streaming import Stream, StreamingDataLoader, StreamingDataset, World

NUM_SAMPLES = 61
FACES = [DataLoader, StreamingDataLoader]


class Rows:
    """Makes so many rows of each sample: (number, row)."""

    def __init__(self, counts):
        self.counts = counts

    def __call__(self, samples):
        numbers = [int(sample["number"]) for sample in samples]
        return [(number, row) for number in numbers for row in range(self.counts[number % len(self.counts)])]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("stream"), NUM_SAMPLES, columns=("number",), per_shard=7)


def make(data, counts=(1,), *, size=3, window_size=5, world=None, face=StreamingDataLoader, more=None, **options):
    given = {"local": data, "shuffle": True, "shuffle_seed": 4, "num_canonical_nodes": 2, "world": world or World()}
    options = {"collate_fn": list, **options}
    dataset = StreamingDataset(**given | (more or {}))
    return face(dataset, size, window_fn=Rows(list(counts)), window_size=window_size, **options)


def rows_of(counts, numbers=range(NUM_SAMPLES)):
    return Rows(list(counts))([{"number": number} for number in numbers])


shapes = st.fixed_dictionaries(
    {
        "counts": st.lists(st.integers(0, 4), min_size=1, max_size=4),
        "size": st.sampled_from([1, 2, 5, 9]),
        "window_size": st.integers(1, 20),
        "more": st.fixed_dictionaries(
            {
                "shuffle": st.booleans(),
                "shuffle_algo": st.sampled_from(["py1e", "py1s", "py2s", "naive", "block"]),
                "num_canonical_nodes": st.integers(1, 6),
                "shuffle_block_size": st.sampled_from([20, 100]),
            }
        ),
    }
)


@settings(max_examples=60)
@given(shapes, st.sampled_from(FACES))
def test_each_row_comes_once_in_an_epoch_and_batches_are_full_but_for_the_last(data, shape, face):
    loader = make(data, face=face, **shape)
    for _ in range(2):
        batches = list(loader)
        assert sorted(chain.from_iterable(batches)) == rows_of(shape["counts"])
        assert all(len(batch) == shape["size"] for batch in batches[:-1])


def test_a_stream_that_is_not_shuffled_is_read_across_its_canonical_nodes_in_turn(data):
    numbers = [number for batch in make(data, more={"shuffle": False}, window_size=8) for number, _ in batch]
    first, second = (list(range(*bounds)) for bounds in ((0, 30), (30, 61)))
    windows = [[part[start : start + 8] for part in (first, second)] for start in range(0, 31, 8)]
    assert numbers == [*chain.from_iterable(chain.from_iterable(windows))]


@settings(max_examples=60)
@given(shapes, st.data())
def test_a_state_goes_on_with_the_next_row_at_every_cut_whatever_seed_the_dataset_is_given(data, shape, draws):
    whole = list(make(data, **shape))
    loader, had = make(data, **shape), []
    for cut in sorted(draws.draw(st.lists(st.integers(0, len(whole)), max_size=3))):
        had += islice(loader, max(0, cut - len(had)))
        state = saved([loader])
        more = shape["more"] | {"shuffle_seed": draws.draw(st.integers(0, 9)), "num_canonical_nodes": None}
        loader = at_state(make(data, **shape | {"more": more}), state)
        assert (loader.epoch, loader.step) == (state["place"][0]["epoch"], state["place"][0]["step"])
    rest = [] if loader.epoch else list(loader)
    is_next = loader.epoch > 1  # where only windows without a row are left, the next epoch may begin at once
    assert had + ([] if is_next else rest) == whole


WORLDS = st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])


@settings(max_examples=60)
@given(
    shapes,
    st.lists(st.tuples(WORLDS, st.lists(st.integers(0, 4), min_size=4, max_size=4)), min_size=1, max_size=3),
    WORLDS,
)
def test_each_row_comes_once_though_nodes_and_ranks_change_again_and_again(data, shape, trip, last):
    shape = shape | {"window_size": min(shape["window_size"], 9)}
    state, rows = None, []
    for (num_nodes, per_node), counts in [*trip, (last, [None] * 4)]:
        worlds = [World(num_nodes, per_node, 1, rank) for rank in range(num_nodes * per_node)]
        loaders = [make(data, world=world, **shape) for world in worlds]
        for loader, count in zip(loaders, counts, strict=False):
            if state is not None:
                loader.load_state_dict(state)
            rows += chain.from_iterable(delivered(loader, count))
        if all(loader.epoch for loader in loaders):
            break
        if any(loader.epoch for loader in loaders):
            return  # ranks that are an epoch apart keep their number
        state = saved(loaders)
    assert sorted(rows) == rows_of(shape["counts"])


@pytest.mark.parametrize("algorithm", ["py1e", "py1s", "block", None])
def test_each_node_reads_its_own_canonical_nodes_but_for_the_last_windows(data, algorithm):
    more = {"num_canonical_nodes": 4, "shuffle": algorithm is not None, "shuffle_algo": algorithm or "py1e"}
    more["shuffle_block_size"] = 20
    read = {}
    for rank in range(4):
        loader = make(data, world=World(2, 2, 1, rank), size=1, window_size=2, more=more)
        read.setdefault(rank // 2, set()).update(number for batch in loader for number, _ in batch)
    assert sorted(chain.from_iterable(read.values())) == list(range(NUM_SAMPLES))
    own = {}
    for node in range(2):  # what the nodes of the stream's own order read
        numbers = set()
        for rank in (2 * node, 2 * node + 1):
            given = {"shuffle_seed": 4, "batch_size": 1, "world": World(2, 2, 1, rank), **more}
            numbers |= {int(sample["number"]) for sample in StreamingDataset(local=data, **given)}
        own[node] = numbers
    assert all(len(read[node] - own[node]) <= 4 for node in range(2))


def test_any_number_of_workers_reads_a_store_and_goes_on_with_the_others_state(processes, data, tmp_path):
    def opened(name, num_workers):
        more = {"remote": data, "local": str(tmp_path / name), "cache_limit": "1mb"}
        return make(data, [3, 0, 1], num_workers=num_workers, more=more, max_worker_restarts=2)

    whole = list(make(data, [3, 0, 1]))
    for num_workers in (0, 1, 2):
        with opened(f"a{num_workers}", num_workers) as loader:
            had = list(islice(loader, 7))
            state = saved([loader])
        with at_state(opened(f"b{num_workers}", 2 - num_workers), state) as loader:
            assert had + list(loader) == whole
    with opened("killed", 2) as loader:
        found = []
        for number, batch in enumerate(loader):
            found.append(batch)
            if number in (2, 9):
                os.kill(worker_pids()[0], signal.SIGKILL)
    assert found == whole


def test_draws_of_a_transform_are_the_windows_own_on_any_rank(data):
    def drawn(sample):
        return {"number": sample["number"], "drawn": float(torch.rand(()))}

    def rows(samples):
        return [(int(sample["number"]), sample["drawn"]) for sample in samples]

    def epoch(*world):
        dataset = StreamingDataset(
            local=data, shuffle=True, num_canonical_nodes=2, transform=drawn, world=World(*world)
        )
        with StreamingDataLoader(dataset, 4, window_fn=rows, window_size=6, collate_fn=list) as loader:
            return {tuple(row) for batch in loader for row in batch}

    torch.manual_seed(3)
    alone = epoch(1, 1, 1, 0)
    assert len({draw for _, draw in alone}) == NUM_SAMPLES
    assert epoch(1, 2, 1, 0) | epoch(1, 2, 1, 1) == alone


def test_weights_that_change_within_an_epoch_are_those_of_the_order(tmp_path):
    paths = [write(tmp_path / name, 40, first=first, columns=("number",)) for name, first in (("a", 0), ("b", 100))]
    schedule = [{"from_sample": 0, "weights": [1, 0]}, {"from_sample": 20, "weights": [0, 1]}]
    dataset = StreamingDataset(
        streams=[Stream(local=path) for path in paths],
        epoch_size=40,
        weight_schedule=schedule,
        shuffle=True,
        world=World(),
    )
    loader = StreamingDataLoader(dataset, 4, window_fn=Rows([1]), window_size=7, collate_fn=list)
    numbers = [number for batch in loader for number, _ in batch]
    assert [number >= 100 for number in numbers] == [False] * 20 + [True] * 20
    assert len(set(numbers)) == 40


def test_an_epoch_is_ended_and_begun_by_its_number(data):
    epochs = [list(make(data))]
    loader = make(data)
    assert list(loader) == epochs[0]
    epochs.append(list(loader))
    assert epochs[0] != epochs[1]
    other = make(data)
    list(islice(other, 2))
    other.end_epoch()
    assert list(other) == epochs[1]
    third = make(data)
    third.set_epoch(1)
    assert list(third) == epochs[1]
    with pytest.raises(TypeError, match="window_fn"):
        len(third)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"batching_method": "stratified", "batch_size": 2}, "batching_method"),
        ({"skip": [{"samples": [3]}]}, "skip"),
        ({"replication": 1}, "replication"),
        ({"kind": Iterated}, "dataset"),
    ],
)
def test_a_stream_that_is_not_cut_into_windows_is_refused_by_name(data, options, name):
    kind = options.pop("kind", StreamingDataset)
    dataset = kind(local=data, world=World(), **options)
    with pytest.raises(ConfigurationError, match=f"^{name} = .*window"):
        StreamingDataLoader(dataset, 2, window_fn=list)


def test_a_state_of_other_data_or_of_no_windows_is_refused_by_name(data, tmp_path):
    loader = make(data)
    next(iter(loader))
    state = saved([loader])
    other = make(write(tmp_path / "other", 40, columns=("number",)))
    with pytest.raises(StateMismatchError, match="stream_shards"):
        other.load_state_dict(state)
    plain = StreamingDataLoader(StreamingDataset(local=data, world=World(), batch_size=3))
    with pytest.raises(StateMismatchError):
        plain.load_state_dict(state)
    next(iter(plain))
    with pytest.raises(StateMismatchError):
        make(data).load_state_dict(plain.state_dict())


def test_fewer_windows_than_ranks_are_refused_by_name(data):
    loader = make(data, world=World(1, 4, 1, 0), window_size=40)
    with pytest.raises(ConfigurationError, match=r"window_size = 40"):
        list(loader)


def test_ranks_that_torch_does_not_know_are_told_that_epochs_may_end_apart(data, caplog):
    with caplog.at_level(logging.WARNING):
        list(make(data, world=World(1, 2, 1, 0)))
    assert "each ends its epoch alone" in caplog.text
