import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from fkat_data.datasets import PaddingCollate, PaddingSide1D, pad_stack_1d
from fkat_data.errors import ConfigurationError


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    multiple=st.none() | st.integers(1, 9),
    side=st.sampled_from([*PaddingSide1D, "left", "right"]),
    dtype=st.sampled_from([torch.float32, torch.uint8, torch.bool, torch.bfloat16, torch.int64]),
)
def test_rows_hold_their_items_and_padding_and_are_as_short_as_can_be(lengths, multiple, side, dtype):
    items = [torch.arange(1, length + 1).to(dtype) for length in lengths]
    stacked = pad_stack_1d(items, 0, side, multiple)
    width = stacked.shape[1]
    assert max(lengths) <= width < max(lengths) + (multiple or 1)
    assert width % (multiple or 1) == 0
    assert stacked.dtype == dtype
    for row, item in zip(stacked, items, strict=True):
        assert row.count_nonzero() == len(item)
        assert torch.equal(row[: len(item)] if side == "right" else row[width - len(item) :], item)


ITEMS = [
    {"tokens": torch.tensor([1, 2, 3]), "mask": torch.tensor([1.0, 1, 1]), "label": 5, "name": "a"},
    {"tokens": torch.tensor([4]), "mask": torch.tensor([1.0]), "label": 6, "name": "b"},
]


def test_a_collate_pads_sequences_and_leaves_the_rest_to_torch():
    microbatch = next(iter(DataLoader(ITEMS, batch_size=2, collate_fn=PaddingCollate({"tokens": -100, "mask": 0}))))
    assert microbatch["tokens"].tolist() == [[1, 2, 3], [4, -100, -100]]
    assert microbatch["mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert microbatch["label"].tolist() == [5, 6]
    assert microbatch["name"] == ["a", "b"]


def test_a_collate_with_one_value_pads_every_sequence_and_can_say_the_lengths():
    microbatch = PaddingCollate(9, "left", 2, lengths_name="length")(ITEMS)
    assert microbatch["tokens"].tolist() == [[9, 1, 2, 3], [9, 9, 9, 4]]
    assert microbatch["mask"].tolist() == [[9, 1, 1, 1], [9, 9, 9, 1]]
    assert microbatch["length"].tolist() == [3, 1]


def test_a_collate_takes_bare_tensors_and_pickles():
    collate = pickle.loads(pickle.dumps(PaddingCollate(7)))
    bare = [item["tokens"] for item in ITEMS]
    assert collate(bare).tolist() == [[1, 2, 3], [4, 7, 7]]
    assert PaddingCollate(lengths_name="length")(bare)["length"].tolist() == [3, 1]


@pytest.mark.parametrize("pad_value", [{"toks": 0}, {"label": 0}])
def test_a_collate_names_entries_that_are_no_sequences(pad_value):
    with pytest.raises(ConfigurationError):
        PaddingCollate(pad_value)([{"tokens": torch.zeros(2), "label": 5}])


@pytest.mark.parametrize(
    ("items", "words"),
    [([(torch.zeros(2), 5)], "a list of tuple"), ([{"ids": [1, 2], "label": 5}], "'ids': 'list', 'label': 'int'")],
)
def test_a_collate_says_what_the_items_have_instead_of_sequences(items, words):
    with pytest.raises(ConfigurationError, match=words):
        PaddingCollate()(items)
