import copy
import pickle
from itertools import islice
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from streaming_examples import numbers, same, world, write
from torch.utils.data import TensorDataset, default_collate
from walks import at_state, begun

from fkat_data import DataLoader, ShardedDataLoader, item_generators
from fkat_data.configuration import instantiate
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.streaming import Stream, StreamingDataLoader, StreamingDataset, open_epoch

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
COLUMNS = ("number", "text", "row")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "numbers", 97, columns=COLUMNS)


def make(data, **options):
    return StreamingDataset(local=data, batch_size=4, shuffle=True, shuffle_algo="block", **options)


def of_epoch(batches):
    return [number for batch in numbers(batches) for number in batch]


def collated_by_torch(samples):
    """torch's own function, under a name that ours does not know."""
    return default_collate(samples)


WORKERS = [
    {"num_workers": 1, "multiprocessing_context": "fork"},
    {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
    {"num_workers": 3, "workers": "threads"},
]


def drawn(sample):
    return {**sample, "drawn": item_generators().python.random()}


def test_threads_make_the_draws_of_a_transform(data):
    found = []
    for options in ({}, {"num_workers": 3, "workers": "threads"}):
        with StreamingDataLoader(make(data, transform=drawn), **options) as loader:
            found.append([batch["drawn"].tolist() for _ in range(2) for batch in loader])
    assert found[0] == found[1]


def of_a_few(sample):
    """Fail as code of a user's does that looks up what is not there."""
    return {**sample, "name": ["one", "two"][sample["number"] // 40]}


def collated_of_a_few(samples):
    return [of_a_few(sample) for sample in samples]


ROUTES = {
    "here": list,
    "skip": lambda loader: list(loader.skip(1)),
    "microbatch": lambda loader: [loader.microbatch(index) for index in range(len(loader))],
    "state": lambda loader: list(at_state(loader, {**loader.state_dict(), "sample_in_epoch": 4})),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("transform", "collate"), [(of_a_few, default_collate), (None, collated_of_a_few)])
def test_an_error_that_looks_like_an_end_reaches_the_caller(data, route, transform, collate):
    loader = StreamingDataLoader(make(data, transform=transform), collate_fn=collate)
    with loader, pytest.raises(IndexError, match="list index"):
        ROUTES[route](loader)


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_workers_hide_no_error_that_looks_like_an_end(processes, data, workers):
    loader = StreamingDataLoader(make(data, transform=of_a_few), **workers)
    with loader, pytest.raises(IndexError, match="list index"):
        list(loader)


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_workers_change_nothing(processes, data, workers):
    plain, parallel = StreamingDataLoader(make(data)), StreamingDataLoader(make(data), **workers)
    for _ in range(2):
        assert numbers(plain) == numbers(parallel)
        assert plain.state_dict() == parallel.state_dict()
    # Stopped with batches in flight, which do not count.
    for loader in (plain, parallel):
        iterator = iter(loader)
        read = [next(iterator)["number"].tolist() for _ in range(3)]
        state = loader.state_dict()
        del iterator
        assert state["sample_in_epoch"] == 12
        loader.load_state_dict(state)
        assert read == numbers(StreamingDataLoader(_at(data, 2)))[:3]
        assert numbers(loader) == numbers(StreamingDataLoader(_at(data, 2)))[3:]


def _at(data, epoch):
    dataset = make(data)
    dataset.next_epoch = epoch
    return dataset


@pytest.mark.parametrize("columns", [("number",), COLUMNS, ("text", "ragged")])
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_a_gathered_batch_is_what_torch_collates(tmp_path, columns, arrays):
    # Text alone differs in length, so what is ragged has batches of one.
    path = write(tmp_path / "data", 53, columns=columns)
    size = 1 if "ragged" in columns else 6
    dataset = StreamingDataset(local=path, batch_size=size, shuffle=True, arrays=arrays, writable=True)
    gathered = list(StreamingDataLoader(StreamingDataset(local=path, batch_size=size, shuffle=True, arrays=arrays)))
    collated = list(StreamingDataLoader(dataset, collate_fn=collated_by_torch))
    assert len(gathered) == len(collated)
    assert all(same(one, other) for one, other in zip(gathered, collated, strict=True))
    # A batch keeps no other batch's memory, and is the caller's own.
    for batch in gathered:
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                assert value.untyped_storage().nbytes() == value.numel() * value.element_size()
                value.add_(1)


def test_streams_with_other_columns_are_collated_as_torch_does(tmp_path):
    streams = [
        Stream(local=write(tmp_path / "a", 12, columns=("number", "text"))),
        Stream(local=write(tmp_path / "b", 12, first=100, columns=("number",))),
    ]
    loader = StreamingDataLoader(StreamingDataset(streams=streams, batch_size=24))
    with pytest.raises(KeyError, match="text"):
        list(loader)
    per_stream = StreamingDataset(streams=streams, batch_size=4, batching_method="per_stream")
    assert {tuple(batch) for batch in StreamingDataLoader(per_stream)} == {("number", "text"), ("number",)}


def test_the_state_counts_what_was_delivered_on_all_ranks(data):
    loader = StreamingDataLoader(StreamingDataset(local=data, batch_size=3, replication=2, world=world(1, 4)))
    assert loader.state_dict()["sample_in_epoch"] == 0
    for place, batch in enumerate(loader, start=1):
        assert loader.num_samples_yielded == 3 * (place - 1) + len(batch["number"])
        assert loader.state_dict()["sample_in_epoch"] == 2 * loader.num_samples_yielded


def test_another_batch_size_is_refused_and_a_missing_one_taken(data):
    with pytest.raises(ConfigurationError, match="batch_size"):
        StreamingDataLoader(make(data), batch_size=8)
    with pytest.raises(ConfigurationError, match="batch_size"):
        StreamingDataLoader(StreamingDataset(local=data))
    assert len(StreamingDataLoader(StreamingDataset(local=data), batch_size=50)) == 2
    with pytest.raises(ConfigurationError, match="batch_size"):
        StreamingDataLoader(StreamingDataset(local=data, batching_method="per_stream"), batch_size=98)


def test_batches_out_of_order_are_refused(data):
    with pytest.raises(ConfigurationError, match="in_order"):
        StreamingDataLoader(make(data), num_workers=2, in_order=False)
    assert StreamingDataLoader(TensorDataset(torch.arange(6)), in_order=False).state_dict()["place"][0]["step"] == 0


def test_over_another_dataset_it_is_the_loader_of_such_datasets():
    loader = StreamingDataLoader(TensorDataset(torch.arange(6)), batch_size=4)
    assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]
    assert len(loader) == 2
    next(iter(loader))
    again = at_state(StreamingDataLoader(TensorDataset(torch.arange(6)), batch_size=4), loader.state_dict())
    assert [batch[0].tolist() for batch in again] == [[4, 5]]
    with pytest.raises(ConfigurationError, match="StreamingDataset"):
        loader.skip(1)


@pytest.mark.parametrize("options", [{}, {"window_fn": list, "window_size": 4}])
def test_as_a_shard_over_another_dataset_it_resumes_by_its_iteration(options):
    def make():
        def factory(shard):
            return StreamingDataLoader(TensorDataset(torch.arange(8)), batch_size=2, **options)

        return ShardedDataLoader(0, ["0"], factory, multiprocessing=False)

    loader = make()
    rest = begun(loader, 2)
    resumed = at_state(make(), loader.state_dict())
    assert [batch[0].tolist() for batch in resumed] == [batch[0].tolist() for batch in rest] == [[4, 5], [6, 7]]


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.with_processes)])
@pytest.mark.parametrize("copied_by", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_under_iteration_has_a_whole_epoch(data, num_workers, copied_by):
    loader = StreamingDataLoader(make(data), num_workers=num_workers, persistent_workers=num_workers > 0)
    rest = iter(loader)
    first = next(rest)
    assert len(rest) == len(loader)
    copied = copied_by(loader)
    assert copied.num_samples_yielded == 0
    assert sorted(of_epoch(copied)) == sorted([*of_epoch([first]), *of_epoch(rest)])
    for refused in (iter(loader), iter(copied)):
        with pytest.raises(NotImplementedError, match=r"StreamingDataLoader cannot be pickled or copied"):
            copied_by(refused)


def test_a_copy_keeps_a_position_that_was_loaded_and_not_begun(data):
    loader, loaded = (StreamingDataLoader(make(data)) for _ in range(2))
    rest = begun(loader, 1)
    loaded.load_state_dict(loader.state_dict())
    assert of_epoch(pickle.loads(pickle.dumps(loaded))) == of_epoch(rest)


def test_skipped_batches_are_not_read(data):
    whole = numbers(StreamingDataLoader(make(data)))
    for count in (0, 1, 24, 25, 30):
        loader = StreamingDataLoader(make(data))
        assert numbers(loader.skip(count)) == whole[count:]
    with pytest.raises(ConfigurationError, match="count"):
        loader.skip(-1)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_by_its_number_is_the_one_of_the_epoch(data, drop_last):
    expected = [batch["number"].tolist() for batch in StreamingDataLoader(make(data), drop_last=drop_last)]
    loader = StreamingDataLoader(make(data), drop_last=drop_last)
    assert loader.num_microbatches == len(expected)
    for index in [*range(0, len(expected), 3), 2, 1, len(expected) - 1, 0]:
        assert loader.microbatch(index)["number"].tolist() == expected[index]
    with pytest.raises(IndexError, match=str(len(expected))):
        loader.microbatch(len(expected))
    with pytest.raises(ConfigurationError, match="index"):
        loader.microbatch(-1)
    assert not hasattr(StreamingDataLoader(TensorDataset(torch.arange(3))), "num_microbatches")


def test_an_epoch_that_is_ended_after_a_load_is_one_that_was_left(data):
    def made():
        return StreamingDataLoader(StreamingDataset(local=data, batch_size=4, shuffle=True))

    whole = made()
    epochs = [numbers(whole) for _ in range(2)]
    for count in range(len(epochs[0]) + 1):
        left, loaded = made(), made()
        begun(left, count)
        state = left.state_dict()
        assert loaded.merge_state_dicts([left.local_state_dict()]) == state
        loaded.load_state_dict(state)
        for loader in (left, loaded):
            loader.end_epoch()
            assert numbers(loader) == epochs[min(count, 1)]
    with pytest.raises(StateMismatchError):
        made().merge_state_dicts([])


PAGE = Path(__file__).parents[2] / "docs" / "streaming" / "index.md"


def test_the_documented_configuration_reads_epochs_and_resumes(processes, data, nothing_left_behind):
    config = OmegaConf.create(PAGE.read_text().partition("```yaml\n")[2].partition("```")[0])
    config.dataloader_factory.dataset_generator.local = data
    dataset = StreamingDataset(local=data, batch_size=32, shuffle=True, shuffle_algo="block")
    expected = [batch for _ in range(3) for batch in numbers(StreamingDataLoader(dataset))]
    for stop in (4, 6):  # at the end of the first epoch, and in the next one
        with instantiate(config) as loader:
            first = numbers(islice(loader, stop))
            state = loader.state_dict()
        with at_state(instantiate(config), state) as resumed:
            assert first + numbers(resumed) == expected


@pytest.mark.parametrize("epoch", ["first", "-1", 1, ""])
def test_a_shard_that_is_no_epoch_is_refused(data, epoch):
    with pytest.raises(ConfigurationError, match="epoch"):
        open_epoch(epoch, local=data)


def test_ranks_in_torchs_interface_have_one_state_that_any_number_of_them_loads(data):
    def ranks(number):
        return [DataLoader(make_of_rank(data, number, rank), 12 // number) for rank in range(number)]

    two = ranks(2)
    iterators = [iter(loader) for loader in two]
    had = [number for iterator in iterators for number in of_epoch(islice(iterator, 3))]
    state = DataLoader.merge_state_dicts([loader.local_state_dict() for loader in two])
    for number in (1, 2, 3):
        loaders = [at_state(loader, state) for loader in ranks(number)]
        assert {(loader.epoch, loader.step) for loader in loaders} == {(0, 3)}
        assert {*had, *(each for loader in loaders for each in of_epoch(loader))} == {*range(97)}
    next(iterators[0])
    with pytest.raises(StateMismatchError, match=r"stream.*equally many microbatches"):
        DataLoader.merge_state_dicts([loader.local_state_dict() for loader in two])


def make_of_rank(data, num_ranks, rank):
    return StreamingDataset(
        local=data, batch_size=12 // num_ranks, shuffle=True, shuffle_algo="block", world=world(1, num_ranks, rank)
    )
