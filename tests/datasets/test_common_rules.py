"""Rules that all datasets and samplers keep: what cannot work is refused by name, and a seed is all that decides."""

import json

import pytest
import torch
from dataset_examples import CountedKeyed, Documents, Keyed
from loader_examples import generators

from fkat_data.datasets import (
    BufferSortedDataset,
    DatasetChain,
    DictDataset,
    DistributedShardedDataset,
    Filter,
    IterableJsonDataset,
    IterableParquetDataset,
    JsonDataset,
    MapDataset,
    Pack,
    PackedDataset,
    PaddingCollate,
    ParquetDataset,
    ResumableSequentialSampler,
    ShardedDataset,
    TokenBudgetBatchSampler,
    pad_stack_1d,
)
from fkat_data.errors import ConfigurationError, StateMismatchError


def of_shards(**options):
    known = {"dataset_type": list, "shard_params": {"a": (([1, 2],), {})}, "rank": 0, "world_size": 1}
    return DistributedShardedDataset(**known | options)


def packed(**options):
    return PackedDataset(**{"base_dataset": Documents([1, 2]), "sequence_length": 4, "seed": 0, **options})


def budget(**options):
    return TokenBudgetBatchSampler(**{"lengths": [1, 2], "max_tokens": 10, "seed": 0, **options})


def view(dataset=(1,), total=2, current=0, mode="chunked", padded=True):
    return ShardedDataset(list(dataset), total, current, mode, padded)


ONE = torch.ones(1)
ARGUMENTS = [
    ("base_dataset", lambda: BufferSortedDataset(list(range(5)), 2, 1)),
    ("base_dataset", lambda: BufferSortedDataset(None, 2, 1)),
    ("generators", lambda: DatasetChain([])),
    ("generators", lambda: DatasetChain(5)),
    (r"generators\[1\]", lambda: DatasetChain([list, "list"])),
    ("datasets", lambda: DictDataset({})),
    ("datasets", lambda: DictDataset({1: [1]})),
    (r"datasets\['a'\]", lambda: DictDataset({"a": iter([1])})),
    (r"dataset_generators\['a'\]", lambda: DictDataset.over({"a": [1]})),
    ("dataset_generators", lambda: DictDataset.over({1: list})),
    ("dataset_type", lambda: of_shards(dataset_type="list")),
    ("shard_params", lambda: of_shards(shard_params={})),
    ("shard_params", lambda: of_shards(shard_params=["a"])),
    (r"shard_params\['a'\]", lambda: of_shards(shard_params={"a": ("path", {})})),
    (r"shard_params\['a'\]", lambda: of_shards(shard_params={"a": (["path"],)})),
    ("rank", lambda: of_shards(rank=1)),
    ("world_size", lambda: of_shards(world_size=3)),
    ("shard_sizes", lambda: of_shards(shard_sizes={"b": 1})),
    ("shard_sizes", lambda: of_shards(shard_sizes=[1])),
    (r"shard_sizes\['a'\]", lambda: of_shards(shard_sizes={"a": -1})),
    *(
        ("paths", lambda kind=kind, paths=paths: kind(paths))
        for kind in (JsonDataset, IterableJsonDataset, ParquetDataset, IterableParquetDataset)
        for paths in ([], 3, ["a", 3], ["a", "a"])
    ),
    ("paths", lambda: JsonDataset("nowhere://x")),  # nothing opens the protocol
    *(
        ("columns", lambda kind=kind, columns=columns: kind("a", columns))
        for kind in (ParquetDataset, IterableParquetDataset)
        for columns in ([], ["a", "a"])
    ),
    ("dataset", lambda: MapDataset(3, abs)),
    ("fn", lambda: MapDataset([1], "abs")),
    ("dataset_generator", lambda: MapDataset.over("parquet", abs)),
    ("base_dataset", lambda: packed(base_dataset=iter([]))),
    ("lengths", lambda: packed(lengths=[1])),
    ("lengths", lambda: packed(base_dataset=[ONE])),
    (r"lengths\[1\]", lambda: packed(base_dataset=Documents([1, 5]))),
    ("fields", lambda: packed(fields=[])),
    ("rank", lambda: packed(rank=1)),
    ("lengths", lambda: packed(base_dataset=Documents([0, 0]))),
    ("world_size", lambda: packed(base_dataset=Documents([0, 1]), world_size=2, seed=1)),
    ("dp_rank", lambda: packed().for_rank(2, 2)),
    ("window_size", lambda: packed(base_dataset=Documents([1] * 10), window_size=8).for_rank(9, 0)),
    ("items", lambda: pad_stack_1d([], 0)),
    (r"items\[1\]", lambda: pad_stack_1d([ONE, torch.ones(1, 1)], 0)),
    (r"items\[1\]", lambda: pad_stack_1d([ONE, torch.ones(1, dtype=torch.int32)], 0)),
    (r"items\[0\]", lambda: pad_stack_1d([[1, 2]], 0)),
    ("pad_value", lambda: PaddingCollate("0")),
    ("pad_value", lambda: PaddingCollate({})),
    ("padding_side", lambda: PaddingCollate(0, "up")),
    ("data_source", lambda: ResumableSequentialSampler(iter([]))),
    ("start_index", lambda: ResumableSequentialSampler([1], 2)),
    ("padding", lambda: Pack(8, "best_fit", None, ["tokens"], {"tokens": "1"})),
    ("keep", lambda: Filter(None)),
    ("dataset", lambda: ShardedDataset(iter([1]), 2, 0, "chunked", True)),
    ("current_shard", lambda: view(current=2)),
    ("indexing_mode", lambda: view(mode="round_robin")),
    ("device_mesh", lambda: ShardedDataset.from_mesh([1], torch.zeros(2))),
    ("rank", lambda: budget(rank=1)),
    ("world_size", lambda: budget(world_size=3)),  # two samples
    ("window_size", lambda: budget(window_size=1, world_size=2)),  # a window has a sample for each rank
    ("seed", lambda: budget(seed=None, world_size=2)),  # each rank would draw its own
    ("lengths", lambda: budget(lengths="abc")),
    ("lengths", lambda: budget(lengths=[1.5])),
    ("lengths", lambda: budget(lengths=[[1]])),
    (r"lengths\[1\]", lambda: budget(lengths=[1, -1])),
    (r"lengths\[0\]", lambda: budget(lengths=[10], max_tokens=11, pad_to_multiple_of=4)),
    ("dp_rank", lambda: budget().for_rank(2, 2)),
    ("window_size", lambda: budget(lengths=[1] * 10, window_size=8).for_rank(9, 0)),
]


@pytest.mark.parametrize(("name", "make"), ARGUMENTS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_argument_that_cannot_work_is_named(name, make):
    with pytest.raises(ConfigurationError, match=f"^{name} = "):
        make()


#: What has a state, and values of its fields that do not fit.
STATES = [
    (
        lambda: BufferSortedDataset(Keyed(range(10)), 4, 2, 7),
        *[("version", 2), ("seed", 8), ("seed", "7"), ("epoch", -1), ("epoch", True), ("buffer_size", 5)],
        *[("pack_size", 1), ("length", 11), ("base_dataset", {})],
    ),
    (
        lambda: of_shards(shard_params={"a": ((range(18),), {})}, shuffle=True),
        *[("version", 2), ("epoch", -1), ("world_size", 2), ("shuffle", False), ("shuffle_samples", False)],
        *[("seed", 1), ("total_samples", 17), ("shards", "0")],
    ),
    (
        lambda: PackedDataset(Documents([3] * 40), 6, 20, seed=1),
        *[("version", 1), ("version", 3), ("seed", 2), ("epoch", -1), ("sequence_length", 7), ("window_size", 21)],
        *[("shuffle", False), ("num_documents", 41), ("num_tokens", 1), ("too_long", "split")],
    ),
    (
        lambda: ResumableSequentialSampler(range(5), 2),
        *[("version", 2), ("length", 6), ("index", 6), ("index", -1), ("index", None)],
    ),
    (
        lambda: ShardedDataset(Keyed(range(9)), 3, 1, "sequential", True),
        *[("version", 0), ("total_shards", 4), ("current_shard", 0), ("indexing_mode", "chunked")],
        *[("pad_to_equal_size_across_shards", value) for value in (False, 1)],
        ("base_dataset", {}),
    ),
    (
        lambda: TokenBudgetBatchSampler([3] * 40, 12, 20, seed=1),
        *[
            ("version", 1),
            ("version", 3),
            ("epoch", -1),
            ("index", 11),
            ("index", None),
            ("seed", 2),
            ("max_tokens", 13),
        ],
        *[("window_size", 21), ("world_size", 0), ("shuffle", False), ("num_samples", 41), ("max_batch_size", 1)],
        *[("lengths", 5), ("dealt", 5), ("dealt", [3]), ("dealt", [[2, 3]]), ("dealt", [[2, 0]])],
    ),
]


@pytest.mark.parametrize(("make", "field", "value"), [(make, *wrong) for make, *fields in STATES for wrong in fields])
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(make, field, value):
    made = make()
    before = made.state_dict()
    with pytest.raises(StateMismatchError, match=f"^state field '{field}'"):
        made.load_state_dict(before | {field: value})
    #: What a state of another program lacks.
    optional = {"version"} if isinstance(made, ShardedDataset) else set()
    if field in before and field not in optional:
        with pytest.raises(StateMismatchError, match=f"'{field}': saved <missing>"):
            made.load_state_dict({name: kept for name, kept in before.items() if name != field})
    assert made.state_dict() == before
    assert repr(list(made)) == repr(list(make()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: BufferSortedDataset(Keyed(range(50)), 50, 5),
        lambda: PackedDataset(Documents(range(1, 51)), 50),
        lambda: TokenBudgetBatchSampler([1] * 50, 1),
    ],
)
def test_a_seed_that_is_not_given_is_drawn_and_kept_in_the_state_with_the_epoch(make):
    first, second = make(), make()
    first.set_epoch(3)
    state, order = json.loads(json.dumps(first.state_dict())), repr(list(first))
    assert repr(list(second)) != order
    second.load_state_dict(state)
    assert repr(list(second)) == order


AROUND = [
    lambda base: BufferSortedDataset(base, 2, 1, 0),
    lambda base: ShardedDataset(base, 3, 1, "chunked", True),
    lambda base: PackedDataset(base, 9, lengths=range(1, 10), seed=0),
]


@pytest.mark.parametrize("around", AROUND)
def test_a_base_datasets_state_passes_through(around):
    base, other = CountedKeyed(range(9), 4), CountedKeyed(range(9))
    around(other).load_state_dict(json.loads(json.dumps(around(base).state_dict())))
    assert other.visits == 4


@pytest.mark.parametrize("around", AROUND[:2])
def test_a_base_datasets_epoch_passes_through(around):
    around(Keyed(range(9))).set_epoch(5)  # of which it knows nothing
    inner = BufferSortedDataset(Keyed(range(9)), 9, 2, 1)
    inner.sort_key = lambda index: index
    around(inner).set_epoch(5)
    assert inner.state_dict()["epoch"] == 5


@pytest.mark.parametrize("make", [make for make, *_ in STATES])
def test_no_global_generator_is_moved_where_a_seed_is_given(make):
    before = generators()
    assert list(make())
    assert generators() == before
