from functools import partial
from itertools import chain
from unittest import mock

import pytest
import torch
from own_datasets import EXACT_ANYWHERE, ONE_FOR_ONE, ByItem, ByTransform, LocalByIndex, LocalByItem, marked
from streaming_examples import numbers, world, worlds, write
from torch.utils.data import DataLoader, Subset
from walks import at_state, recorded

from fkat_data import DataLoaderFactory, ShardedDataLoader
from fkat_data.errors import ConfigurationError
from fkat_data.mixing import DictDataLoader, Weighted
from fkat_data.streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
from fkat_data.streaming.reader import reader_of

pytestmark = pytest.mark.filterwarnings("error:The given NumPy array is not writable")


@pytest.fixture(scope="module")
def expected(options):
    batches = numbers(StreamingDataLoader(StreamingDataset(**options)))
    return [[number + 1000 for number in batch] for batch in batches]


def as_tensors(samples):
    """A collate function of a user's."""
    return {"number": torch.tensor([sample["number"] for sample in samples])}


def streaming_loader(dataset, batch_size=None, **_options):
    return StreamingDataLoader(dataset)


@pytest.mark.parametrize("kind", ONE_FOR_ONE)
def test_what_a_subclass_makes_of_a_sample_comes_from_every_way_of_reading(options, expected, kind):
    make = partial(kind, **options)
    assert [sample["number"] for sample in make()] == list(chain.from_iterable(expected))
    assert numbers(DataLoader(make(), batch_size=4)) == expected
    assert numbers(StreamingDataLoader(make())) == expected
    assert numbers(StreamingDataLoader(make(), collate_fn=as_tensors)) == expected
    for generator in (None, streaming_loader):
        factory = DataLoaderFactory(lambda _shard: make(), dataloader_generator=generator, batch_size=4)
        with ShardedDataLoader(0, ["0"], factory, multiprocessing=False) as loader:
            for number, batch in enumerate(loader):
                assert batch["number"].tolist() == expected[number]
                if number == 8:
                    state = loader.state_dict()
            assert number == len(expected) - 1
        with at_state(ShardedDataLoader(0, ["0"], factory, multiprocessing=False), state) as loader:
            assert numbers(loader) == expected[9:]
    mixture = DictDataLoader({"a": StreamingDataLoader(make())}, Weighted({"a": 1.0}, seed=0))
    assert next(iter(mixture))["number"].tolist() == expected[0]


@pytest.mark.parametrize("kind", ONE_FOR_ONE)
def test_and_in_workers(processes, options, expected, kind):
    forked = {"num_workers": 2, "multiprocessing_context": "fork"}
    assert numbers(DataLoader(kind(**options), batch_size=4, **forked)) == expected
    found, states = recorded(StreamingDataLoader(kind(**options), **forked), lambda batch: batch["number"].tolist())
    assert found == expected
    assert numbers(at_state(StreamingDataLoader(kind(**options), **forked), states[12])) == expected[12:]


def test_a_sample_by_its_number_is_the_overridden_one(options):
    for kind in EXACT_ANYWHERE:
        assert kind(**options)[5]["number"] == kind(**options).__getitems__([5])[0]["number"] == 1005
        assert Subset(kind(**options), [5]).__getitems__([0])[0]["number"] == 1005
    for kind in (ByItem, ByTransform):
        assert kind(**options).get_item(-97)["number"] == 1000
        rows = kind(**options)[[[1], [2, 3]]]
        assert [[sample["number"] for sample in row] for row in rows] == [[1001], [1002, 1003]]
        assert [sample["number"] for sample in kind(**options)[94:]] == [1094, 1095, 1096]
        with pytest.raises(IndexError):
            kind(**options)[97]
        with pytest.raises(ConfigurationError, match="index"):
            kind(**options)["a"]


def test_an_override_of_the_instance_or_by_a_patch_counts(options, expected):
    for name in ("__getitem__", "get_item"):
        dataset = StreamingDataset(**options)
        original = getattr(dataset, name)
        setattr(dataset, name, lambda index, original=original: marked(original(index)))
        assert [sample["number"] for sample in dataset] == list(chain.from_iterable(expected))
        dataset.next_epoch = 0
        assert numbers(StreamingDataLoader(dataset)) == expected

    plain = StreamingDataset.get_item
    with mock.patch.object(StreamingDataset, "get_item", lambda self, index: marked(plain(self, index))):
        assert numbers(StreamingDataLoader(StreamingDataset(**options))) == expected
    assert not reader_of(StreamingDataset(**options)).maker.has_user_code


def test_local_datasets_are_overridden_too(options):
    for dataset in (
        LocalByIndex(options["local"]),
        LocalByItem(options["local"]),
        LocalDataset(options["local"], transform=marked),
    ):
        assert dataset[5]["number"] == 1005
        assert numbers(DataLoader(dataset, batch_size=50)) == [list(range(1000, 1050)), list(range(1050, 1097))]
    with pytest.raises(ConfigurationError, match="transform"):
        LocalDataset(options["local"], transform=3)
    with pytest.raises(ConfigurationError, match="transform"):
        StreamingDataset(**options, transform="x")


@pytest.mark.parametrize("kind", [IndexError, StopIteration])
def test_an_error_of_a_transform_ends_no_samples_in_silence(options, kind):
    def refuse(_sample):
        raise kind

    dataset = LocalDataset(options["local"], transform=refuse)
    for read in (lambda: dataset[[3, 5]], lambda: dataset.__getitems__([3, 5]), lambda: list(dataset)):
        with pytest.raises((IndexError, RuntimeError)):
            read()


@pytest.mark.parametrize("kind", EXACT_ANYWHERE)
def test_draws_follow_the_position_in_the_order_in_any_world(options, kind):
    def draws(nodes, ranks, batch_size, state=None):
        found = {}
        for one in worlds(nodes, ranks):
            loader = StreamingDataLoader(kind(**options | {"batch_size": batch_size}, world=one))
            if state is not None:
                loader.load_state_dict(state)
            for batch in loader:
                found.update(zip(batch["number"].tolist(), batch["draw"].tolist(), strict=True))
        return found

    wanted = draws(1, 1, 12)
    assert len(set(wanted.values())) == 97
    for grid in [(1, 2, 6), (2, 1, 6), (3, 2, 2), (1, 1, 5)]:
        assert draws(*grid) == wanted
    assert {sample["number"]: sample["draw"] for sample in kind(**options)} == wanted
    loader = StreamingDataLoader(kind(**options | {"batch_size": 12}))
    next(iter(loader))
    rest = draws(2, 3, 2, loader.state_dict())
    assert len(rest) == 85
    assert rest.items() <= wanted.items()
    dataset = kind(**options)
    dataset.next_epoch = 1
    assert wanted.items().isdisjoint((sample["number"], sample["draw"]) for sample in dataset)


def test_a_sample_that_an_epoch_repeats_draws_again(options):
    repeated = {**options, "streams": [Stream(local=options["local"], repeat=3)], "local": None}
    samples = list(StreamingDataset(**repeated, transform=marked))
    assert len({(sample["number"], sample["draw"]) for sample in samples}) == len(samples) == 3 * 97
    phases = [{"from_sample": 0, "weights": [1]}, {"from_sample": 48, "weights": [2]}]
    dataset = StreamingDataset(**options, transform=marked, weight_schedule=phases)
    whole = [batch["draw"].tolist() for batch in StreamingDataLoader(dataset)]
    assert len(set(chain.from_iterable(whole))) == 97
    loader = StreamingDataLoader(dataset)
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "sample_in_epoch": 60})
    assert [batch["draw"].tolist() for batch in loader] == whole[15:]


def test_an_error_of_the_transform_comes_after_the_samples_before_it(options):
    def picky(sample):
        if sample["number"] == 50:
            raise KeyError("no label")
        return sample

    order = list(chain.from_iterable(numbers(StreamingDataLoader(StreamingDataset(**options)))))
    read = []
    with pytest.raises(KeyError, match="no label"):
        read.extend(sample["number"] for sample in StreamingDataset(**options, transform=picky))
    assert read == order[: order.index(50)]


def test_ranks_and_skips_keep_the_batches_of_the_order(options):
    skipping = options | {"skip": [{"samples": [17, 4, 31]}, {"epoch": 0, "batches": [3, 5]}]}
    for rank in range(2):
        wanted = numbers(StreamingDataLoader(StreamingDataset(**skipping, world=world(1, 2, rank))))
        for kind in ONE_FOR_ONE:
            found = numbers(StreamingDataLoader(kind(**skipping, world=world(1, 2, rank))))
            assert found == [[number + 1000 for number in batch] for batch in wanted]


def test_arrays_of_a_sample_may_be_views_of_the_file(tmp_path):
    path = write(tmp_path / "data", 20, columns=("number", "row"))
    plain = list(StreamingDataLoader(StreamingDataset(local=path, batch_size=4)))
    made = list(StreamingDataLoader(StreamingDataset(local=path, batch_size=4, transform=dict)))
    pairs = list(StreamingDataLoader(StreamingDataset(local=path, batch_size=4, transform=lambda s: tuple(s.values()))))
    for one, two, three in zip(plain, made, pairs, strict=True):
        assert torch.equal(one["row"], two["row"])
        assert torch.equal(one["row"], three[1])
