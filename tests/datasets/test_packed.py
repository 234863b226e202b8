import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_examples import Documents
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from fkat_data.datasets import Pack, PackedDataset, attention_cost, collate_packed
from fkat_data.datasets.best_fit import best_fit, count_bins
from fkat_data.errors import ConfigurationError
from fkat_data.streaming import LocalDataset, MDSWriter

# See test_buffer_sorted.py: this file may not change.
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "dataset_orders.json").read_text())["packed"]

LENGTHS = st.lists(st.integers(1, 40), min_size=6, max_size=50)
SETTINGS = st.fixed_dictionaries(
    {
        "sequence_length": st.integers(8, 40),
        "window_size": st.integers(6, 30),
        "world_size": st.integers(1, 6),
        "shuffle": st.booleans(),
        "seed": st.integers(-(2**70), 2**70),
    }
)
COSTS = st.sampled_from([{}, *({"cost": attention_cost(4), "accumulate": count} for count in (1, 1, 3))])


def ranks(documents, options, epoch=0, **more):
    datasets = [PackedDataset(documents, **options, **more, rank=rank) for rank in range(options["world_size"])]
    for dataset in datasets:
        dataset.set_epoch(epoch)
    return datasets


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden['seed']}-{golden['epoch']}")
def test_the_packs_are_those_of_every_release(golden):
    names = ("sequence_length", "window_size", "shuffle", "seed")
    options = {name: golden[name] for name in names} | {"world_size": len(golden["ranks"])}
    for dataset, expected in zip(
        ranks(Documents(golden["lengths"]), options, golden["epoch"]), golden["ranks"], strict=True
    ):
        assert [
            [fragment.document for fragment in dataset.fragments(index)] for index in range(len(dataset))
        ] == expected


@given(lengths=LENGTHS, options=SETTINGS, costs=COSTS, epoch=st.integers(0, 3))
@settings(max_examples=60)
def test_tokens_are_conserved_and_no_sequence_overflows(lengths, options, costs, epoch):
    datasets = ranks(Documents(lengths), options | costs, epoch, too_long="split")
    assert len({len(dataset) for dataset in datasets}) == 1
    fragments = [dataset.fragments(index) for dataset in datasets for index in range(len(dataset))]
    assert all(0 < sum(fragment.length for fragment in each) <= options["sequence_length"] for each in fragments)
    found = sorted((fragment.document, fragment.start, fragment.length) for each in fragments for fragment in each)
    length = options["sequence_length"]
    expected = [
        (document, start, min(length, lengths[document] - start))
        for document in range(len(lengths))
        for start in range(0, lengths[document], length)
    ]
    assert len(set(found)) == len(found)
    assert set(found) <= set(expected)
    if options["world_size"] == 1:
        assert found == expected


@given(lengths=LENGTHS, options=SETTINGS, epoch=st.integers(0, 3), data=st.data())
@settings(max_examples=60)
def test_an_item_has_the_tokens_of_its_fragments_and_tells_them_apart(lengths, options, epoch, data):
    dataset = data.draw(st.sampled_from(ranks(Documents(lengths), options, epoch, too_long="split", pad_value=-1)))
    for index in range(len(dataset)):
        item, fragments = dataset[index], dataset.fragments(index)
        edges = item["cu_seqlens"].tolist()
        filled = sum(fragment.length for fragment in fragments)
        assert (edges[0], edges[-1]) == (0, options["sequence_length"])
        assert [stop - start for start, stop in itertools.pairwise(edges)] == [
            *[fragment.length for fragment in fragments],
            *([options["sequence_length"] - filled] if filled < options["sequence_length"] else []),
        ]
        for place, (start, stop) in enumerate(itertools.pairwise(edges)):
            is_padding = place == len(fragments)
            assert set(item["document_ids"][start:stop].tolist()) == {-1 if is_padding else place}
            assert item["position_ids"][start:stop].tolist() == list(range(stop - start))
            if is_padding:
                assert set(item["tokens"][start:].tolist()) == {-1}
            else:
                document, first, length = fragments[place]
                expected = [document * 1000 + token for token in range(first, first + length)]
                assert item["tokens"][start:stop].tolist() == expected
        assert [*item] == ["tokens", "document_ids", "position_ids", "cu_seqlens"]
        assert [value.dtype for value in item.values()] == [torch.int64, torch.int32] * 2


def test_any_order_of_visits_and_any_copy_sees_the_same():
    def make():
        return PackedDataset(Documents([1 + index * 7 % 13 for index in range(400)]), 16, 20, seed=1)

    first, second = make(), make()
    in_order = [first.fragments(index) for index in range(len(first))]
    for index in sorted(range(len(second)), key=lambda index: index * 7919 % 101):
        assert second.fragments(index) == in_order[index]
    copied = pickle.loads(pickle.dumps(second))
    assert [copied.fragments(index - len(copied)) for index in range(len(copied))] == in_order


@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from(["skip", "split", "truncate"]))
@settings(max_examples=20)
def test_many_windows_are_counted_as_they_are_planned(seed, longest, too_long):
    lengths = [1, *np.random.default_rng(seed).integers(0, longest + 1, 1500).tolist()]
    dataset = PackedDataset(Documents(lengths), 16, 4, seed=seed, too_long=too_long)
    found = sorted(fragment for index in range(len(dataset)) for fragment in dataset.fragments(index))
    expected = [
        (document, start, min(16, length - start))
        for document, length in enumerate(lengths)
        if length <= 16 or too_long != "skip"
        for start in range(0, min(length, 16) if too_long == "truncate" else length, 16)
    ]
    assert found == expected
    for outside in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError):
            dataset[outside]


@given(
    packings=st.lists(st.lists(st.floats(0, 1), max_size=40), max_size=9),
    capacity=st.sampled_from([1, 2, 63, 64, 65, 300, 4095, 5000, 300_000]),
)
@settings(max_examples=60)
def test_bins_are_counted_as_best_fit_makes_them(packings, capacity):
    sizes = [np.array([round(part * capacity) for part in each], np.int64) for each in packings]
    expected = [len(best_fit([size for size in each.tolist() if size], capacity)) for each in sizes]
    assert count_bins(sizes, capacity) == expected


def test_padding_is_each_fields_own():
    items = [{"tokens": torch.arange(n), "labels": -torch.arange(n), "weights": torch.ones(n)} for n in (3, 2)]
    options = {"lengths": [3, 2], "fields": ["tokens", "labels", "weights"], "shuffle": False}
    item = PackedDataset(items, 6, **options, pad_value=7, padding={"labels": -100, "weights": 0})[0]
    assert [item[name][-1].item() for name in options["fields"]] == [7, -100, 0]
    assert torch.equal(item["tokens"][:5], -item["labels"][:5])
    with pytest.raises(ConfigurationError, match=r"^padding = \{'label': 0\}: .*'labels'"):
        PackedDataset(items, 6, **options, padding={"label": 0})


def test_arrays_of_a_stream_are_packed_without_a_warning(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"tokens": "ndarray:int32"}) as writer:
        for length in (3, 2, 4):
            writer.write({"tokens": np.arange(length, dtype=np.int32)})
    packed = PackedDataset(LocalDataset(str(tmp_path)), 5, lengths=[3, 2, 4], shuffle=False)
    assert [item["tokens"].tolist() for item in packed] == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    rows = Pack(5)([sample["tokens"] for sample in LocalDataset(str(tmp_path))])
    assert [row["tokens"].tolist() for row in rows] == [item["tokens"].tolist() for item in packed]


def test_a_document_of_another_length_than_was_said_is_named():
    dataset = PackedDataset([torch.arange(3), torch.arange(4)], 8, lengths=[3, 5], shuffle=False)
    with pytest.raises(ConfigurationError, match=r"^lengths\[1\] = 5: .*'tokens' in the item: \[4\]"):
        dataset[0]


@pytest.mark.long
def test_a_microbatch_is_collated_as_if_it_were_one_row():
    dataset = PackedDataset(Documents([1 + index * 7 % 13 for index in range(60)]), 16, 20, seed=1)
    loader = DataLoader(dataset, batch_size=3, collate_fn=collate_packed, drop_last=True)
    for number, microbatch in enumerate(loader):
        assert microbatch["tokens"].shape == (3, 16)
        edges = microbatch["cu_seqlens"].tolist()
        assert edges == sorted(set(edges))
        assert (edges[0], edges[-1]) == (0, 48)
        assert {16, 32} <= set(edges)
        assert microbatch["max_seqlen"] == max(stop - start for start, stop in itertools.pairwise(edges))
        flat = microbatch["tokens"].flatten()
        alone = [dataset[3 * number + place] for place in range(3)]
        assert torch.equal(flat, torch.cat([item["tokens"] for item in alone]))
        for start, stop in itertools.pairwise(edges):
            assert len(set((flat[start:stop] // 1000).tolist())) == 1


@given(lengths=LENGTHS, options=SETTINGS, epoch=st.integers(0, 3))
@settings(max_examples=60)
def test_ranks_take_the_sequences_of_one_plan_in_turn_and_halve_only_the_last(lengths, options, epoch):
    documents = Documents(lengths)
    plan = ranks(documents, options | {"world_size": 1}, epoch, too_long="split")[0]
    datasets = ranks(documents, options, epoch, too_long="split")
    dealt = [datasets[rank].fragments(index) for index in range(len(datasets[0])) for rank in range(len(datasets))]
    of_plan = [plan.fragments(index) for index in range(len(plan))]
    same = next((at for at, (one, other) in enumerate(zip(dealt, of_plan, strict=False)) if one != other), len(dealt))
    if len(plan) % len(datasets) == 0:
        assert dealt == of_plan
    elif len(dealt) < len(plan):
        assert len(plan) - len(dealt) < len(datasets)
        assert dealt == of_plan[: len(dealt)]
    else:
        assert len(dealt) - len(plan) < len(datasets)
        # From there on, all documents follow in the plan's order: a rest of the plan is a rest of any ranks' part.
        assert [*itertools.chain(*dealt[same:])] == [*itertools.chain(*of_plan[same:])]
    for rank, dataset in enumerate(datasets):
        made = plan.for_rank(len(datasets), rank)
        assert (made.dp_size, made.dp_rank) == (len(datasets), rank)
        assert [made.fragments(index) for index in range(len(made))] == dealt[rank :: len(datasets)]
        assert made.state_dict() == dataset.state_dict() == plan.state_dict()
