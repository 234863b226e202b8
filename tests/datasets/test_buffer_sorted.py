import json
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_examples import Keyed
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.datasets import BufferSortedDataset
from fkat_data.errors import ConfigurationError

# An order is computed anew after a resume: if it changes, every run that is resumed goes on elsewhere, and says
# nothing. So the file may not change: never without a decision record (docs/adr).
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "dataset_orders.json").read_text())["buffer_sorted"]

KEYS = st.lists(st.integers(0, 9), max_size=60)
SIZES = {"buffer_size": st.integers(1, 20), "pack_size": st.integers(1, 25)}
SEEDS = st.integers(-(2**70), 2**70)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden['seed']}-{golden['epoch']}")
def test_the_orders_are_those_of_every_release(golden):
    dataset = BufferSortedDataset(
        Keyed(golden["keys"]), golden["buffer_size"], golden["pack_size"], init_seed=golden["seed"]
    )
    dataset.set_epoch(golden["epoch"])
    assert list(dataset) == golden["order"]


@given(keys=KEYS, **SIZES, seed=SEEDS, epoch=st.integers(0, 5))
def test_each_buffer_serves_its_own_items_once_in_packs_of_neighbours_by_key(keys, buffer_size, pack_size, seed, epoch):
    dataset = BufferSortedDataset(Keyed(keys), buffer_size, pack_size, seed)
    dataset.set_epoch(epoch)
    served = list(dataset)
    for start in range(0, len(keys), buffer_size):
        mine = served[start : start + buffer_size]
        assert sorted(mine) == list(range(start, min(start + buffer_size, len(keys))))
        ranked = sorted(keys[index] for index in mine)
        expected = [tuple(ranked[place : place + pack_size]) for place in range(0, len(mine), pack_size)]
        packs = [
            tuple(sorted(keys[index] for index in mine[place : place + pack_size]))
            for place in range(0, len(mine), pack_size)
        ]
        assert sorted(packs) == sorted(expected)
        if len(mine) % pack_size:
            assert packs[-1] == expected[-1]  # what is left over stands at the end


@given(keys=KEYS, **SIZES, seed=SEEDS, data=st.data())
def test_any_order_of_visits_any_copy_and_any_worker_sees_the_same(keys, buffer_size, pack_size, seed, data):
    in_order = list(BufferSortedDataset(Keyed(keys), buffer_size, pack_size, seed))
    dataset = BufferSortedDataset(Keyed(keys), buffer_size, pack_size, seed)
    for index in data.draw(st.permutations(range(len(keys)))):
        assert dataset[index] == in_order[index] == dataset[np.int64(index - len(keys))]
    assert list(pickle.loads(pickle.dumps(dataset))) == in_order
    for index in (len(keys), -len(keys) - 1, 10**9):
        with pytest.raises(IndexError, match=f"out of range for a dataset of {len(keys)} items"):
            dataset[index]
    chosen = data.draw(st.lists(st.sampled_from(range(-len(keys), len(keys))), max_size=9)) if keys else []
    assert dataset.__getitems__(chosen) == [in_order[index] for index in chosen]


@given(keys=KEYS, **SIZES)
def test_a_sort_key_is_asked_once_an_epoch(keys, buffer_size, pack_size):
    base = Keyed(keys)
    dataset = BufferSortedDataset(base, buffer_size, pack_size, 0)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        order = list(range(len(keys))) * 2
        random.Random(epoch).shuffle(order)
        dataset.__getitems__(order)
        assert sorted(base.asked) == sorted(list(range(len(keys))) * (epoch + 1))


@pytest.mark.parametrize(
    "keys",
    [[1, "a"], [None, 1], [1.0, float("nan")], [{}, {}], [np.arange(2), np.arange(2)], [torch.ones(2), torch.ones(2)]],
    ids=["numbers and text", "none", "not a number", "dicts", "arrays", "tensors"],
)
def test_keys_that_do_not_compare_are_named_with_their_position(keys):
    dataset = BufferSortedDataset(Keyed([1, 2, *keys]), 2, 1, 0)
    assert sorted(dataset[index] for index in (0, 1)) == [0, 1]
    with pytest.raises(ConfigurationError, match=r"base_dataset.*those of items 2 to 3 cannot"):
        dataset[2]
