"""An epoch of which nothing was delivered begins again, whatever was read of it: that nothing was is a step of 0."""

import logging
from functools import partial

import pytest
from loader_examples import make
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fkat_data import DataLoader, ShardedDataLoader

#: Samples below are left out, or raise; the first shards have none.
FIRST = 4


class Fault:
    """Raises once, if it is due."""

    def __init__(self):
        self.is_due = False

    def __call__(self):
        if self.is_due:
            self.is_due = False
            raise ValueError("closed today")


class Samples(Dataset):
    def __init__(self, fault):
        self.fault = fault

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index >= FIRST:
            self.fault()
        return index


class BadSamples(Samples):
    def __getitem__(self, index):
        if index < FIRST:
            raise OSError("unreadable")
        return index


class Stream(Samples, IterableDataset):
    """In one of several workers, the first has nothing."""

    def __iter__(self):
        self.fault()
        info = get_worker_info()
        if info is None or info.num_workers == 1 or info.id:
            yield from map(self.__getitem__, range(len(self)))


class Late:
    def __init__(self, fault):
        self.fault = fault

    def __call__(self, rows):
        found = [row for row in rows if row >= FIRST]
        if found:
            self.fault()
        return found


def shards(fault):
    def factory(shard):
        for index in range(0 if shard.startswith("empty") else 3):
            fault()
            yield f"{shard}{index}"

    return make(["empty0", "empty1", "a", "b", "empty2"], factory)


FACES = {
    "shards": shards,
    "windows": lambda fault: DataLoader(Samples(Fault()), 2, seed=3, window_fn=Late(fault), window_size=2),
    "rows": lambda fault: DataLoader(Samples(Fault()), None, seed=3, window_fn=Late(fault), window_size=2),
    "bad samples": lambda fault: DataLoader(
        BadSamples(Fault()), 2, seed=3, window_fn=Late(fault), window_size=2, on_sample_error="skip"
    ),
    "an iterable dataset": lambda fault: DataLoader(Stream(fault), 2, seed=3),
    "windows of an iterable dataset": lambda fault: DataLoader(
        Stream(Fault()), 2, seed=3, window_fn=Late(fault), window_size=2
    ),
}


def delivered(loader):
    """Return an epoch, and which one it was."""
    epoch = loader.epoch
    found = [str(microbatch) for microbatch in loader]
    return epoch, loader.epoch, found


def as_whole(make_face):
    with make_face(Fault()) as loader:
        return delivered(loader)[2]


@pytest.mark.parametrize("face", FACES)
def test_an_epoch_that_failed_before_its_first_microbatch_begins_again(face):
    whole = as_whole(FACES[face])
    fault = Fault()
    with FACES[face](fault) as loader:
        fault.is_due = True
        with pytest.raises(ValueError, match="closed today"):
            next(iter(loader))
        assert delivered(loader) == (0, 1, whole)


@pytest.mark.parametrize("face", FACES)
def test_to_end_an_epoch_of_which_nothing_was_delivered_changes_nothing(face):
    whole = as_whole(FACES[face])
    fault = Fault()
    with FACES[face](fault) as loader:
        fault.is_due = True
        with pytest.raises(ValueError, match="closed today"):
            next(iter(loader))
        loader.end_epoch()
        assert (loader.epoch, loader.step) == (0, 0)
        state = loader.state_dict()
        assert delivered(loader) == (0, 1, whole)
    with FACES[face](Fault()) as other:
        other.load_state_dict(state)
        assert delivered(other) == (0, 1, whole)


@pytest.mark.parametrize("face", FACES)
def test_an_epoch_whose_only_microbatch_is_taken_back_begins_again(face):
    whole = as_whole(FACES[face])
    with FACES[face](Fault()) as loader:
        for _ in range(2):
            next(iter(loader))
            assert loader.take_back()
            assert (loader.epoch, loader.step) == (0, 0)
            loader.end_epoch()
        assert delivered(loader) == (0, 1, whole)


def test_a_worker_without_samples_does_not_move_the_epoch_on(processes):
    with DataLoader(Stream(Fault()), 2, seed=3, num_workers=2) as loader:
        next(iter(loader))
        assert loader.take_back()
        loader.end_epoch()
        assert delivered(loader)[:2] == (0, 1)


def counted(samples):
    return len(samples), *samples


RESUMED = {
    "indices": lambda **options: DataLoader(Samples(Fault()), 2, shuffle=True, seed=3, **options),
    "windows": lambda **options: DataLoader(
        Samples(Fault()), 2, shuffle=True, seed=3, window_fn=list, window_size=3, **options
    ),
    "an iterable dataset": lambda **options: DataLoader(Stream(Fault()), 2, seed=3, **options),
}


@pytest.mark.parametrize("face", RESUMED)
def test_a_loaded_place_of_which_nothing_was_continued_stays_where_a_setting_changes(face):
    make_loader = RESUMED[face]
    whole = as_whole(lambda _: make_loader(collate_fn=counted))
    with make_loader(collate_fn=list) as loader:
        iterator = iter(loader)
        _, _ = next(iterator), next(iterator)
        state = loader.state_dict()
    with make_loader(collate_fn=list) as other:
        other.load_state_dict(state)
        iter(other)
        other.collate_fn = counted
        assert delivered(other) == (0, 1, whole[2:])


@pytest.mark.parametrize("num_begun", [1, 2])
def test_a_loaded_place_of_which_nothing_was_continued_stays_the_epoch_for_set_epoch(num_begun):
    make_loader = partial(DataLoader, Samples(Fault()), 2, shuffle=True, seed=3)
    whole = as_whole(lambda _: make_loader())
    with make_loader() as loader:
        iterator = iter(loader)
        _, _ = next(iterator), next(iterator)
        state = loader.state_dict()
    with make_loader() as other:
        other.load_state_dict(state)
        for _ in range(num_begun):
            iter(other)
        other.set_epoch(other.epoch)
        assert delivered(other) == (0, 1, whole[2:])


def test_an_iteration_that_begins_ends_what_can_be_taken_back():
    for loader in (make(["list-a-1", "list-b-1"]), DataLoader(range(2), seed=3)):
        list(loader)
        iterator = iter(loader)
        assert not loader.take_back()
        assert (loader.epoch, loader.step) == (1, 0)
        next(iterator)
        assert loader.take_back()


class Failing(Dataset):
    """Of shard "bad", the first sample cannot be read until it is repaired; "empty" has none."""

    is_broken = True

    def __init__(self, shard):
        self.shard = shard

    def __len__(self):
        return 0 if self.shard == "empty" else 3

    def __getitem__(self, index):
        if self.shard == "bad" and self.is_broken:
            raise OSError("cannot be read")
        return f"{self.shard} {index}"


def failing_factory(shard):
    return TorchDataLoader(Failing(shard), 2)


@pytest.mark.parametrize("num_before", [1, 2])
@pytest.mark.parametrize("num_empty", [0, 1, 3])
def test_behind_a_call_that_raised_the_microbatch_before_it_can_be_taken_back(num_before, num_empty, monkeypatch):
    shards = ["good", *["empty"] * num_empty, "bad"]
    loader, whole = (ShardedDataLoader(3, shards, failing_factory, multiprocessing=False) for _ in range(2))
    iterator = iter(loader)
    found = [next(iterator) for _ in range(num_before)]
    before = {}
    if num_before == 2:
        with pytest.raises(OSError, match="cannot be read"):
            next(iterator)
        other = iter(whole)
        next(other)
        before = whole.local_state_dict()
    assert loader.take_back()
    assert not loader.take_back()
    assert loader.step == num_before - 1
    if before:
        assert loader.local_state_dict() == before
    monkeypatch.setattr(Failing, "is_broken", False)
    assert next(iterator) == found[-1]
    assert len([*iterator]) == 4 - num_before


@pytest.mark.parametrize("order", [["a"], ["a", "b"], ["a", "empty", "empty", "b"]])
@pytest.mark.parametrize("is_seen_between", [False, True])
def test_the_state_behind_a_microbatch_that_was_taken_back_says_how_its_shard_is_batched(order, is_seen_between):
    loader, other = (ShardedDataLoader(3, order, failing_factory, multiprocessing=False) for _ in range(2))
    iterator, before = iter(loader), iter(other)
    for _ in range(2):
        next(iterator)
        if is_seen_between:
            loader.local_state_dict()
    next(before)
    assert loader.take_back()
    assert loader.local_state_dict() == other.local_state_dict()
    assert loader.local_state_dict()["fingerprint"]["batching"] is not None


def of_indices(count):
    return DataLoader(range(count), 2)


def in_turn(count):
    return DataLoader(InTurn(count), 2)


class InTurn(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


@pytest.mark.parametrize("factory", [of_indices, in_turn])
def test_an_empty_shard_that_a_loader_of_ours_reads_is_no_warning_and_an_empty_epoch_is_one(factory, caplog):
    caplog.set_level(logging.WARNING, "fkat_data")
    with ShardedDataLoader(1, [0, 4, 0, 0, 6], factory, multiprocessing=False) as loader:
        assert [len(list(loader)) for _ in range(2)] == [5, 5]
    assert not caplog.records
    with ShardedDataLoader(1, [0, 0], factory, multiprocessing=False) as loader:
        assert list(loader) == []
    assert [record.message[:26] for record in caplog.records] == ["epoch 0 has no microbatch "]
    caplog.clear()
    assert list(factory(0)) == []
    assert "epoch 0 has no microbatch" in caplog.text
