"""Rows that ready-made functions make of the samples of a window."""

from functools import partial
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fkat_data import ConfigurationError, DataLoader
from fkat_data.datasets import Filter, Pack, PackedDataset, collate_packed

lengths = st.lists(st.integers(0, 12), max_size=20)


def documents_of(sizes):
    """Documents whose tokens name their document and place."""
    return [torch.arange(size) + 100 * (index + 1) for index, size in enumerate(sizes)]


def pieces_of(rows):
    """Return the tokens of each fragment, in order, as the boundaries tell them apart."""
    found = []
    for row in rows:
        edges = row["cu_seqlens"].tolist()
        for number, (start, stop) in enumerate(pairwise(edges)):
            ids = set(row["document_ids"][start:stop].tolist())
            assert row["position_ids"][start:stop].tolist() == list(range(stop - start))
            if ids == {-1}:
                assert not row["tokens"][start:stop].any()
            else:
                assert ids == {number}
                found.append(row["tokens"][start:stop].tolist())
    return found


@given(lengths, st.integers(1, 9))
def test_joined_documents_fill_every_sequence_but_the_last(sizes, size):
    documents = documents_of(sizes)
    rows = Pack(size, "concatenate")(documents)
    assert [*chain.from_iterable(pieces_of(rows))] == [*chain.from_iterable(each.tolist() for each in documents)]
    assert len(rows) == -(-sum(sizes) // size)
    assert all(len(row["tokens"]) == size for row in rows)


@given(lengths, st.sampled_from(["skip", "split", "truncate"]))
def test_documents_fit_whole_or_as_too_long_says(sizes, too_long):
    documents = documents_of(sizes)
    pieces = pieces_of(Pack(8, too_long=too_long)(documents))
    expected = {
        "skip": [each.tolist() for each in documents if len(each) <= 8],
        "split": [each[start : start + 8].tolist() for each in documents for start in range(0, len(each), 8)],
        "truncate": [each[:8].tolist() for each in documents],
    }[too_long]
    assert sorted(pieces) == sorted(each for each in expected if each)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=20))
def test_a_window_is_packed_as_a_packed_dataset_in_order_packs_it(sizes):
    documents = documents_of(sizes)
    planned = PackedDataset(documents, 8, window_size=len(sizes), lengths=sizes, shuffle=False)
    for row, expected in zip(Pack(8)(documents), planned, strict=True):
        assert row.keys() == expected.keys()
        assert all(torch.equal(row[name], expected[name]) for name in row)


def test_fields_are_padded_each_by_its_own_value():
    samples = [{"tokens": torch.tensor([1, 2]), "labels": np.array([4, 3])[::-1], "name": "a"}]
    (row,) = Pack(3, fields=["tokens", "labels"], padding={"labels": -100})(samples)
    assert row["tokens"].tolist() == [1, 2, 0]
    assert row["labels"].tolist() == [3, 4, -100]


def test_packed_while_loading_each_token_comes_once():
    documents = documents_of([5, 1, 30, 7, 2, 8, 8, 3] * 9)
    functions = [Filter(lambda document: len(document) > 1), Pack(8, too_long="split")]
    loader = DataLoader(documents, 4, shuffle=True, window_fn=functions, window_size=10, collate_fn=collate_packed)
    tokens = torch.cat([batch["tokens"][batch["document_ids"] >= 0] for batch in loader])
    expected = torch.cat([document for document in documents if len(document) > 1])
    assert torch.equal(tokens.sort().values, expected.sort().values)


@pytest.mark.parametrize(
    ("name", "value"), [("sequence_length", 9), ("padding", {"tokens": 1}), ("max_document_length", 7)]
)
def test_a_state_of_another_packing_is_refused(name, value):
    assert Filter(partial(max, 1)).version == Filter(max).version != Filter(partial(min, 1)).version

    def loader(**options):
        pack = Pack(**{"sequence_length": 8, "method": "concatenate", "too_long": "truncate", **options})
        return DataLoader(documents_of([5] * 30), 1, window_fn=pack, window_size=4, collate_fn=collate_packed)

    begun = loader()
    next(iter(begun))
    with pytest.raises(ValueError, match=rf"window_fn.*{name}={value}"):
        loader(**{name: value}).load_state_dict(begun.state_dict())


@pytest.mark.parametrize(
    ("samples", "fields", "words"),
    [
        ([[1], [1, 2, 3]], ["tokens"], "3 tokens at position 1"),
        ([{"a": [1]}], ["tokens"], "position 0"),
        ([{"tokens": [1], "labels": [1, 2]}], ["tokens", "labels"], "position 0"),
        ([[1]], ["tokens", "labels"], "position 0"),
        ([{"tokens": [[1]]}], ["tokens"], "position 0"),
        (["a text"], ["tokens"], "'tokens' at position 0"),
        ([torch.tensor([1], dtype=torch.uint16)], ["tokens"], "padding = -100.*uint16.*'tokens'"),
        ([{"position_ids": [1]}], ["position_ids"], "that packing adds"),
    ],
)
def test_samples_that_cannot_be_packed_are_named_by_their_position(samples, fields, words):
    with pytest.raises(ConfigurationError, match=words):
        Pack(2, fields=fields, padding={fields[0]: -100})(samples)
