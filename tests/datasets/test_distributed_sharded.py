import gc
import json
import pickle
import random
import threading
import weakref
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meeting import Meeting
from torch.utils.data import DataLoader

from fkat_data.datasets import DistributedShardedDataset
from fkat_data.errors import ConfigurationError, ShardCorruptError

# See test_buffer_sorted.py: this file may not change.
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "dataset_orders.json").read_text())["distributed"]

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=8)
OPTIONS = st.fixed_dictionaries(
    {
        "shuffle": st.booleans(),
        "shuffle_samples": st.none() | st.booleans(),
        "seed": st.integers(-(2**70), 2**70),
        "prefetch": st.booleans(),
    }
)
WAIT_S = 30


def contents(sizes):
    """Shards by key; a sample is its shard's key and its place there."""
    return {f"shard {place}": [(f"shard {place}", index) for index in range(size)] for place, size in enumerate(sizes)}


def params(sizes):
    return {key: ((samples,), {}) for key, samples in contents(sizes).items()}


def ranks(sizes, world_size, **options):
    return [
        DistributedShardedDataset(list, params(sizes), rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden['seed']}-{golden['epoch']}")
def test_the_orders_are_those_of_every_release(golden):
    shards = {key: (([f"{key}{index}" for index in range(size)],), {}) for key, size in golden["sizes"].items()}
    for rank, expected in enumerate(golden["ranks"]):
        dataset = DistributedShardedDataset(
            list,
            shards,
            rank=rank,
            world_size=len(golden["ranks"]),
            **{name: golden[name] for name in ("shuffle", "shuffle_samples", "seed")},
        )
        dataset.set_epoch(golden["epoch"])
        assert list(dataset) == expected


@given(sizes=SIZES, world_size=st.integers(1, 5), options=OPTIONS, epoch=st.integers(0, 3))
def test_ranks_have_equal_blocks_of_the_epochs_order_and_only_its_tail_is_dropped(sizes, world_size, options, epoch):
    total = sum(sizes) // world_size * world_size
    if total == 0:
        with pytest.raises(ConfigurationError, match=r"^world_size = "):
            ranks(sizes, world_size, **options)
        return
    datasets = ranks(sizes, world_size, **options)
    for dataset in datasets:
        dataset.set_epoch(epoch)
        assert dataset.total_samples == total
        assert len(dataset) == total // world_size
    found = [sample for dataset in datasets for sample in dataset]
    shards = contents(sizes)
    keys = datasets[0].shard_keys
    assert sorted(keys) == sorted(shards)
    assert options["shuffle"] or keys == sorted(shards)
    # The order of shards, samples apart, is that of all samples with the tail cut off.
    assert [key for key, _ in found] == [key for key in keys for _ in shards[key]][:total]
    assert len(set(found)) == len(found)
    is_shuffled = options["shuffle"] if options["shuffle_samples"] is None else options["shuffle_samples"]
    if not is_shuffled:
        assert found == [sample for key in keys for sample in shards[key]][:total]


@given(sizes=SIZES, world_size=st.integers(1, 4), options=OPTIONS, data=st.data())
def test_any_order_of_visits_and_any_copy_sees_the_same(sizes, world_size, options, data):
    if sum(sizes) < world_size:
        return
    rank = data.draw(st.integers(0, world_size - 1))
    in_order = list(ranks(sizes, world_size, **options)[rank])
    dataset = ranks(sizes, world_size, **options)[rank]
    for index in data.draw(st.permutations(range(len(in_order)))):
        assert dataset[index] == in_order[index] == dataset[np.int64(index - len(in_order))]
        key, place = dataset.rank_index_to_shard_index(index)
        assert contents(sizes)[key][place] == in_order[index]
        start, stop = dataset.shard_indices[key]
        assert start <= dataset.rank_index_to_global_index(index) == rank * len(in_order) + index < stop
    for outside in (len(in_order), -len(in_order) - 1):
        for get in (dataset.__getitem__, dataset.rank_index_to_shard_index):
            with pytest.raises(IndexError):
                get(outside)
    chosen = data.draw(st.lists(st.sampled_from(range(-len(in_order), len(in_order))), max_size=9))
    assert dataset.__getitems__(chosen) == [in_order[index] for index in chosen]
    assert list(pickle.loads(pickle.dumps(dataset))) == in_order


def test_shard_indices_are_ranges_in_the_epochs_order():
    dataset = DistributedShardedDataset(list, params([4, 0, 3, 4]), rank=0, world_size=5)
    assert dataset.shard_indices == {"shard 0": (0, 4), "shard 1": (4, 4), "shard 2": (4, 7), "shard 3": (7, 10)}
    # A last shard that is smaller than the tail does not end before it begins.
    assert DistributedShardedDataset(list, params([4, 1]), rank=0, world_size=4).shard_indices["shard 1"] == (4, 4)


class Shards:
    """Makes shards whose lives it counts."""

    def __init__(self, sizes):
        self.shards = contents(sizes)
        self.opened = []
        self.most = 0
        self.alive = weakref.WeakSet()
        self.lock = threading.Lock()

    def __call__(self, key):
        shard = _Shard(self.shards[key])
        with self.lock:
            self.opened.append(key)
            self.alive.add(shard)
            self.most = max(self.most, len(self.alive))
        return shard


class _Shard(list):
    __hash__ = object.__hash__


def opened_by(load, sizes, **options):
    """The dataset of shards that a function loads, whose sizes are said."""
    sizes = {f"shard {place}": size for place, size in enumerate(sizes)}
    return DistributedShardedDataset.from_uris(
        list(sizes), dataset_type=load, **{"rank": 0, "world_size": 1, "shard_sizes": sizes, **options}
    )


def test_given_sizes_open_nothing_and_each_shard_is_then_opened_once():
    maker = Shards([3, 4, 0, 5])
    dataset = opened_by(maker, [3, 4, 0, 5])
    assert maker.opened == []
    assert len(list(dataset)) == 12
    assert maker.opened == ["shard 0", "shard 1", "shard 3"]  # an empty one not at all


@pytest.mark.parametrize(("prefetch", "most"), [(True, 2), (False, 1)])
def test_no_more_than_one_shard_beside_the_open_one_is_in_memory(prefetch, most):
    maker = Shards([5] * 9)
    dataset = opened_by(maker, [5] * 9, prefetch=prefetch)
    gc.collect()
    gc.disable()  # they have to go at once
    try:
        order = [*range(45), *random.Random(1).choices(range(45), k=60), *range(45)]
        for index in order:
            assert dataset[index] == (f"shard {index // 5}", index % 5)
            assert len(maker.alive) <= most
        for place, sample in enumerate(dataset):
            assert sample == (f"shard {place // 5}", place % 5)
            assert len(maker.alive) <= most
    finally:
        gc.enable()
    assert maker.most <= most


def test_the_next_shard_is_loaded_while_this_one_is_visited_and_never_beyond_the_ranks_own():
    loaded = {f"shard {place}": threading.Event() for place in range(4)}

    def load(key):
        loaded[key].set()
        return contents([4] * 4)[key]

    dataset = opened_by(load, [4] * 4, world_size=2)
    assert dataset[0] == ("shard 0", 0)
    assert loaded["shard 1"].wait(WAIT_S)
    assert dataset[4] == ("shard 1", 0)
    assert [dataset[index] for index in range(4, 8)] == [("shard 1", index) for index in range(4)]
    assert not loaded["shard 2"].is_set()  # the other rank's


def test_an_error_in_the_background_arrives_at_the_shard_it_concerns_and_can_be_tried_again():
    failures = ["shard 1"]
    failed = threading.Event()

    def load(key):
        if key in failures:
            failed.set()
            raise OSError(f"cannot read {key}")
        return contents([3, 3, 3])[key]

    dataset = opened_by(load, [3] * 3)
    assert dataset[0] == ("shard 0", 0)
    assert failed.wait(WAIT_S)
    assert [dataset[index][1] for index in (1, 2)] == [1, 2]
    for _ in range(2):
        with pytest.raises(OSError, match="cannot read shard 1"):
            dataset[3]
    assert dataset[6] == ("shard 2", 0)
    failures.clear()
    assert dataset[3] == ("shard 1", 0)


def test_sizes_are_counted_once_in_parallel_and_remembered(tmp_path):
    path = tmp_path / "sizes.json"
    both = Meeting(2)
    opened = []

    def load(key):
        opened.append(key)
        if len(opened) <= 2:
            both.wait()  # breaks unless two are opened at a time
        return contents([3, 4, 5])[key]

    keys = [f"shard {place}" for place in range(3)]
    options = {"rank": 0, "world_size": 1, "sizes_cache": path, "num_counting_threads": 2}
    first = DistributedShardedDataset.from_uris(keys, dataset_type=load, **options)
    assert sorted(opened) == keys
    assert json.loads(path.read_text()) == {"version": 1, "sizes": {"shard 0": 3, "shard 1": 4, "shard 2": 5}}
    second = DistributedShardedDataset.from_uris(keys, dataset_type=load, **options)
    assert sorted(opened) == keys
    assert second.shard_indices == first.shard_indices
    # Only what is not known is opened.
    known = {"version": 1, "sizes": {"shard 0": 3, "shard 2": 5}}
    path.write_text(json.dumps(known))
    DistributedShardedDataset.from_uris(keys, dataset_type=load, **options)
    assert opened[3:] == ["shard 1"]
    assert [file.name for file in tmp_path.iterdir()] == ["sizes.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 2, "sizes": {}}', '{"version": 1}', "\x00"])
def test_a_cache_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "sizes.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"^sizes_cache = "):
        DistributedShardedDataset(list, params([3]), rank=0, world_size=1, sizes_cache=path)


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_shard_that_has_changed_its_length_is_named(prefetch):
    dataset = opened_by(contents([3, 5]).get, [3, 4], prefetch=prefetch)
    assert [dataset[index][1] for index in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ShardCorruptError, match="it has 5 samples, but had 4 when it was counted"):
            dataset[3]


def test_workers_of_a_dataloader_open_shards_of_their_own(processes, nothing_left_behind):
    # A forked worker inherits neither a shard nor a thread that is under way.
    dataset = DistributedShardedDataset(list, params([6] * 4), rank=0, world_size=1, shuffle=True)
    expected = [[sample[1] for sample in dataset.__getitems__(range(start, start + 3))] for start in range(0, 24, 3)]
    assert dataset[0][1] == expected[0][0]
    loader = DataLoader(
        dataset, batch_size=3, num_workers=2, multiprocessing_context=get_context("fork"), collate_fn=list
    )
    assert [[sample[1] for sample in batch] for batch in loader] == expected


def test_a_process_ends_while_a_shard_is_being_loaded(run_script):
    done = run_script(
        """
import threading
from fkat_data.datasets import DistributedShardedDataset

begun = threading.Event()

def load(key):
    if key == "b":
        begun.set()
        threading.Event().wait()
    return [key]

dataset = DistributedShardedDataset.from_uris(
    ["a", "b"], dataset_type=load, shard_sizes={"a": 1, "b": 1}, rank=0, world_size=1
)
print(dataset[0], begun.wait(30))
""",
        timeout=90,
    )
    assert done.stdout == "a True\n"
    assert done.stderr == ""


def test_the_state_brings_the_epoch_and_is_the_same_on_every_rank():
    first, second = ranks([5, 6, 7], 2, shuffle=True)
    first.set_epoch(4)
    state = json.loads(json.dumps(first.state_dict()))
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert second.shard_keys == first.shard_keys


def test_a_key_that_is_no_text_has_a_position_in_the_state():
    dataset = DistributedShardedDataset.from_uris(["\udcff.bin"], dataset_type=list, rank=0, world_size=1)
    dataset.load_state_dict(dataset.state_dict())
