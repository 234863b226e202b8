import codecs
import json
import os
import pickle
import random
from pathlib import Path

import pytest
import torch
from dataset_examples import CountedKeyed, Keyed
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from walks import at_state

from fkat_data.datasets import BufferSortedDataset, ResumableSequentialSampler, ShardedDataset
from fkat_data.errors import StateMismatchError

GOLDEN = Path(__file__).parents[1] / "golden" / "states"
CASES = json.loads((GOLDEN / "cases.json").read_text())
KEYS = CASES["keys"]
buffers = pytest.mark.parametrize("case", CASES["buffer_sorted"], ids=lambda case: case["file"])


# torch 2.4 takes no bytes in a file unless the function that pickle makes them with is named.
torch.serialization.add_safe_globals([codecs.encode])


def saved(case):
    return torch.load(GOLDEN / case["file"], weights_only=True)


def resumed(case, seed=None, base=None):
    dataset = BufferSortedDataset(base or Keyed(KEYS), case["buffer_size"], case["pack_size"], seed)
    dataset.load_state_dict(saved(case))
    return dataset


@buffers
@pytest.mark.parametrize("seed", [None, 5])
def test_a_buffer_sorted_dataset_goes_on_in_d9ds_order(case, seed):
    dataset = resumed(case, seed)
    assert [dataset[index] for index in range(case["stop"], 23)] == case["following"]
    assert sorted(dataset) == list(range(23))
    # What d9d visited before it comes in the order of d9d's next pass.
    assert [dataset[index] for index in range(len(case["next_pass"]))] == case["next_pass"]


@buffers
def test_d9ds_order_is_a_function_of_the_index(case):
    order = list(resumed(case))
    for visits in (range(22, -1, -1), random.Random(0).sample(range(23), 23)):
        dataset = resumed(case)
        assert {index: dataset[index] for index in visits} == dict(enumerate(order))
    assert list(pickle.loads(pickle.dumps(dataset))) == order


@buffers
def test_an_epoch_that_continues_d9ds_is_saved_and_resumed(case):
    dataset = resumed(case)
    state = json.loads(json.dumps(dataset.state_dict()))
    assert list(state)[-1] == "drawn_order"
    other = at_state(BufferSortedDataset(Keyed(KEYS), case["buffer_size"], case["pack_size"]), state)
    assert list(other) == list(dataset)
    assert other.state_dict() == dataset.state_dict()
    # A state of an epoch of its own ends it.
    other.load_state_dict(BufferSortedDataset(Keyed(KEYS), 5, 2, 3).state_dict())
    assert "drawn_order" not in other.state_dict()
    assert list(other) == list(BufferSortedDataset(Keyed(KEYS), 5, 2, 3))


@pytest.mark.parametrize("epoch", [0, 3])
def test_the_first_epoch_that_is_named_is_d9ds_and_the_next_one_is_not(epoch):
    dataset, own = resumed(CASES["buffer_sorted"][1], seed=9), BufferSortedDataset(Keyed(KEYS), 5, 2, 9)
    order = list(dataset)
    for _ in range(2):
        dataset.set_epoch(epoch)
        assert list(dataset) == order
        assert dataset.state_dict()["epoch"] == epoch
    again = at_state(BufferSortedDataset(Keyed(KEYS), 5, 2, 9), dataset.state_dict())
    for each in (dataset, again, own):
        each.set_epoch(epoch + 1)
    assert list(dataset) == list(again) == list(own) != order


def test_a_base_datasets_error_moves_no_generator():
    case, base = CASES["buffer_sorted"][1], Keyed(KEYS)
    dataset = resumed(case, base=base)
    base.keys[12] = "text"
    for _ in range(2):
        with pytest.raises(ValueError, match="items 10 to 14 cannot"):
            dataset[22]
    base.keys[12] = KEYS[12]
    assert [dataset[index] for index in range(case["stop"], 23)] == case["following"]


@given(
    count=st.integers(1, 40),
    buffer_size=st.integers(1, 12),
    pack_size=st.integers(1, 14),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_any_state_of_d9d_gives_each_item_once(count, buffer_size, pack_size, seed, data):
    buffer = data.draw(st.integers(-1, (count - 1) // buffer_size))
    items = list(range(buffer * buffer_size, min(count, (buffer + 1) * buffer_size))) if buffer >= 0 else []
    random.Random(seed).shuffle(items)
    state = {
        "seed": pickle.dumps(random.Random(seed).getstate()),
        "buffer_idx": buffer,
        "buffer_indices": items,
    }
    dataset = at_state(BufferSortedDataset(Keyed(range(count)), buffer_size, pack_size), state)
    assert sorted(dataset) == list(range(count))
    if items:
        assert list(dataset)[items[0] // buffer_size * buffer_size :][: len(items)] == items


class Runs:
    def __reduce__(self):
        return os.getpid, ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": None}, "seed"),
        ({"seed": b"no pickle"}, "seed"),
        ({"seed": pickle.dumps(Runs())}, "seed"),
        ({"seed": pickle.dumps((3, (1, 2), None))}, "seed"),
        ({"buffer_idx": 0}, "buffer_indices"),
        ({"buffer_idx": 7}, "buffer_indices"),
        ({"buffer_indices": [5, 6]}, "buffer_indices"),
        ({"buffer_indices": [5.0, 6, 7, 8, 9]}, "buffer_indices"),
        ({"base_dataset": {"visits": 1}}, "base_dataset"),
    ],
)
def test_a_damaged_state_of_d9d_is_refused_by_its_field_and_changes_nothing(change, field):
    case = CASES["buffer_sorted"][1]
    dataset = BufferSortedDataset(Keyed(KEYS), 5, 2, 3)
    order = list(dataset)
    with pytest.raises(StateMismatchError, match=f"^state field '{field}'"):
        dataset.load_state_dict({**saved(case), **change})
    assert list(dataset) == order
    for missing in ("seed", "buffer_indices"):
        with pytest.raises(StateMismatchError, match=f"'{missing}': saved <missing>"):
            dataset.load_state_dict({name: value for name, value in saved(case).items() if name != missing})


@pytest.mark.parametrize(
    "change", [None, {}, 5, "x", {"random_state": [3, [1], None], "buffer": 0}, {"offsets": [0.5]}]
)
def test_a_damaged_drawn_order_is_refused(change):
    dataset = resumed(CASES["buffer_sorted"][1])
    state = dataset.state_dict()
    if isinstance(change, dict) and "offsets" in change:
        change = {**state["drawn_order"], **change}
    with pytest.raises(StateMismatchError, match=r"^state field 'drawn_order'"):
        dataset.load_state_dict({**state, "drawn_order": change})


def test_another_buffer_size_than_d9ds_is_refused():
    dataset = BufferSortedDataset(Keyed(KEYS), 6, 2)
    with pytest.raises(StateMismatchError, match=r"'buffer_indices'.*buffer_size or the base dataset differs"):
        dataset.load_state_dict(saved(CASES["buffer_sorted"][1]))


@pytest.mark.parametrize("case", CASES["views"][:2], ids=lambda case: case["mode"])
def test_a_view_goes_on_as_d9ds_does(case):
    base = CountedKeyed(KEYS)
    inner = BufferSortedDataset(base, case["buffer_size"], case["pack_size"])
    view = at_state(ShardedDataset(inner, 2, 1, case["mode"], True), saved(case))
    assert [view[index] for index in range(case["stop"], len(view))] == case["following"]
    assert base.visits == case["visits"]


def test_a_view_of_d9d_belongs_to_the_same_rank():
    view = at_state(ShardedDataset(Keyed(KEYS), 4, 2, "sequential", False), saved(CASES["views"][2]))
    assert list(view) == list(range(2, 23, 4))
    with pytest.raises(StateMismatchError, match=r"^state field 'current_shard'"):
        ShardedDataset(Keyed(KEYS), 4, 1, "sequential", False).load_state_dict(saved(CASES["views"][2]))


def loaded(state):
    return at_state(ResumableSequentialSampler(range(23)), state)


@pytest.mark.parametrize(
    "load",
    [
        lambda checkpoint: ResumableSequentialSampler(range(23), start_index=checkpoint["sampler_index"]),
        loaded,
        lambda checkpoint: loaded({"start_index": checkpoint["sampler_index"]}),
    ],
    ids=["start_index", "checkpoint", "state"],
)
def test_a_sampler_goes_on_as_llm_pytorchs_does(load):
    case = CASES["llm_pytorch"]
    sampler = load(saved(case))
    loader = DataLoader(range(case["length"]), batch_size=case["batch_size"], sampler=sampler, drop_last=True)
    assert len(loader) == case["num_batches"]
    assert [batch.tolist() for batch in loader] == case["following"]
    assert [batch.tolist() for batch in loader] == case["next_epoch"]


@pytest.mark.parametrize(
    ("state", "field"),
    [
        ({"sampler_index": 24}, "sampler_index"),
        ({"start_index": -1}, "start_index"),
        ({"start_index": "1"}, "start_index"),
        # vars(sampler): its index is that of a sample that may or may not have been used.
        ({"data_length": 23, "start_index": 1, "index": 5}, "version"),
        ({"epoch": 1}, "version"),
    ],
)
def test_another_state_of_llm_pytorch_is_refused_by_its_field(state, field):
    with pytest.raises(StateMismatchError, match=f"^state field '{field}'"):
        loaded(state)
