"""Which epoch of a stream a loader begins, where it says that it is, and how many batches it says that one has."""

import copy
import pickle
from itertools import islice, product

import pytest
from own_datasets import Iterated
from streaming_examples import numbers, world

from fkat_data import DataLoader
from fkat_data.streaming import Stream, StreamingDataLoader, StreamingDataset

SIZE = 4


def identity(rows):
    return rows


def made(options, loader_type=StreamingDataLoader, kind=StreamingDataset, **of_loader):
    return loader_type(kind(**options), SIZE, **of_loader)


WINDOWS = {"window_fn": identity, "window_size": 10}
FACES = {
    "StreamingDataLoader": {},
    "DataLoader": {"loader_type": DataLoader},
    "an __iter__ of its own": {"kind": Iterated},
    "a DataLoader of an __iter__ of its own": {"kind": Iterated, "loader_type": DataLoader},
    "windows": WINDOWS,
    "windows of a DataLoader": {"loader_type": DataLoader, **WINDOWS},
}


@pytest.fixture(params=FACES)
def make(request, options):
    return lambda: made(options, **FACES[request.param])


def position(loader):
    return loader.epoch, loader.step


def epochs(loader, count):
    return [numbers(loader) for _ in range(count)]


def taken(loader, count):
    """Take some batches; return the iterator and their numbers."""
    iterator = iter(loader)
    return iterator, numbers(islice(iterator, count))


def test_iterations_of_which_nothing_is_asked_begin_the_same_epoch(make):
    whole = epochs(make(), 2)
    loader = make()
    for _ in range(3):
        iter(loader)
        assert position(loader) == (0, 0)
        loader.end_epoch()
    assert epochs(loader, 2) == whole


def test_a_look_that_is_taken_back_begins_no_other_epoch(make):
    whole = epochs(make(), 2)
    loader = make()
    for _ in range(2):
        _, first = taken(loader, 1)
        assert first == whole[0][:1]
        assert loader.take_back()
        assert position(loader) == (0, 0)
    state = loader.state_dict()
    loader.end_epoch()
    loader.set_epoch(loader.epoch)
    assert epochs(loader, 2) == whole
    other = make()
    other.load_state_dict(state)
    assert epochs(other, 2) == whole


def test_a_loaded_position_of_which_nothing_was_continued_stays(make):
    whole = epochs(make(), 2)
    loader = make()
    _iterator, _ = taken(loader, 3)
    state = loader.state_dict()
    other = make()
    other.load_state_dict(state)
    iter(other)
    _, following = taken(other, 1)
    assert following == whole[0][3:4]
    assert other.take_back()
    assert position(other) == (0, 3)
    assert other.state_dict() == state
    other.set_epoch(0)
    iter(other)
    other.worker_init_fn = identity
    assert epochs(other, 2) == [whole[0][3:], whole[1]]


def test_an_epoch_that_was_left_is_followed_by_the_next_one_as_the_loader_says(make):
    whole = epochs(make(), 3)
    loader = make()
    _iterator, _ = taken(loader, 3)
    for _ in range(2):
        loader.end_epoch()
        assert position(loader) == (1, 0)
    state = loader.state_dict()
    assert epochs(loader, 2) == whole[1:]
    assert position(loader) == (3, 0)
    other = make()
    other.load_state_dict(state)
    assert position(other) == (1, 0)
    _iterator, _ = taken(other, 1)
    assert epochs(other, 1) == whole[2:]


@pytest.mark.parametrize("num_begun", [0, 1])
def test_a_loaded_epoch_can_be_ended_before_it_is_continued(make, num_begun):
    whole = epochs(make(), 2)
    loader = make()
    _iterator, _ = taken(loader, 3)
    other = make()
    other.load_state_dict(loader.state_dict())
    for _ in range(num_begun):
        iter(other)
    other.end_epoch()
    assert position(other) == (1, 0)
    assert epochs(other, 1) == whole[1:]


@pytest.mark.parametrize("face", FACES)
def test_an_epoch_of_which_fewer_samples_came_than_ranks_load_it_has_begun_and_can_be_ended(options, face):
    def ranks(count):
        of_face = {"kind": StreamingDataset, "loader_type": StreamingDataLoader, **FACES[face]}
        loader_type, kind = of_face.pop("loader_type"), of_face.pop("kind")
        datasets = [kind(**{**options, "batch_size": 1}, world=world(count, 1, rank)) for rank in range(count)]
        return [loader_type(dataset, 1, **of_face) for dataset in datasets]

    following = {count: [epochs(loader, 2)[1] for loader in ranks(count)] for count in (2, 3)}
    for before, after in [(1, 2), (1, 3), (2, 3)]:
        begun = ranks(before)
        for loader in begun:
            taken(loader, 1)
        state = begun[0].merge_state_dicts([loader.local_state_dict() for loader in begun])
        found = []
        for loader in ranks(after):
            loader.load_state_dict(state)
            assert position(loader) == (0, 1)
            loader.end_epoch()
            assert position(loader) == (1, 0)
            found += epochs(loader, 1)
        assert found == following[after], f"{before} ranks, then {after}"


@pytest.mark.parametrize("face", [face for face in FACES if "DataLoader" in face and face != "StreamingDataLoader"])
def test_behind_the_last_batch_a_dataloader_is_at_the_start_of_the_next_epoch_loaded_or_not(options, face):
    whole = epochs(made(options, **FACES[face]), 2)
    loader = made(options, **FACES[face])
    iterator, _ = taken(loader, len(whole[0]))
    for _ in range(2):
        assert position(loader) == (1, 0)
        other = made(options, **FACES[face])
        other.load_state_dict(loader.state_dict())
        assert position(other) == (1, 0)
        other.end_epoch()
        assert epochs(other, 1) == whole[1:]
        assert list(iterator) == []


@pytest.mark.parametrize("kind", [StreamingDataset, Iterated])
def test_behind_the_last_batch_the_references_contract_has_an_empty_epoch_and_says_so(options, kind):
    whole = epochs(made(options, kind=kind), 2)
    loader = made(options, kind=kind)
    _iterator, _ = taken(loader, len(whole[0]))
    other = made(options, kind=kind)
    other.load_state_dict(loader.state_dict())
    assert position(other) == (0, len(whole[0])) == (0, len(other))
    assert epochs(other, 2) == [[], whole[1]]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize("face", [face for face in FACES if "windows" not in face])
def test_a_copy_begins_where_it_says_the_epoch_under_way_at_its_start(options, face, copied):
    def make():
        return made(options, **FACES[face])

    whole = epochs(make(), 2)
    loader = make()
    for number in range(2):
        for count in (0, 3):
            iterator, _ = taken(loader, count)
            before = position(loader), loader.state_dict()
            other, fresh = copied(loader), make()
            assert position(other) == (number, 0)
            fresh.load_state_dict(other.state_dict())
            assert epochs(other, 1) == epochs(fresh, 1) == whole[number : number + 1]
            assert (position(loader), loader.state_dict()) == before
        list(iterator)


def skips():
    return [
        None,
        [{"epoch": 0, "batches": [5, 7]}, {"epoch": 1, "batches": [0, 1]}],
        [{"samples": [17, 4, 59]}],
        [{"samples": list(range(8))}, {"epoch": 0, "batches": [1, 3]}],
    ]


METHODS = ("random", "stratified", "device_stratified", "per_stream", "device_per_stream")


@pytest.mark.parametrize("skip", skips())
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("loader_type", [DataLoader, StreamingDataLoader])
def test_the_length_is_what_is_delivered_resumed_or_not(two, some, skip, drop_last, loader_type):
    ranks = [world(1, num_ranks, rank) for num_ranks in (1, 2) for rank in range(num_ranks)]
    # Few of each, since there are sixteen cases above: each run of lane `all` draws others.
    for method, epoch_size, of_rank in product(some(METHODS, 2), some((None, 34, 121), 1), some(ranks, 2)):

        def make(method=method, epoch_size=epoch_size, of_rank=of_rank):
            options = {"batch_size": SIZE, "shuffle": True, "epoch_size": epoch_size, "skip": skip, "world": of_rank}
            options |= {"batching_method": method, "num_canonical_nodes": 1}
            dataset = StreamingDataset(streams=[Stream(local=local) for local in two], **options)
            return loader_type(dataset, SIZE, drop_last=drop_last)

        loader = make()
        for number in range(2):
            length = len(loader)
            iterator = iter(loader)
            assert len(iterator) == length
            half = list(islice(iterator, length // 2))
            assert (position(loader), len(loader)) == ((number, length // 2), length)
            state = loader.state_dict()
            assert len(half) + len(list(iterator)) == length
            other = make()
            other.load_state_dict(state)
            assert (position(other), len(other)) == ((number, length // 2), length)
            assert len(list(other)) == length - length // 2
