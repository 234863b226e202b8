"""Where files are in a store, the next microbatches are begun to be read while one is made: the same samples come."""

import os
import signal
from functools import partial

import pytest
from meeting import Meeting
from own_workers import worker_pids
from range_server import LINES, serving
from remote_tables import KINDS
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import RandomSampler

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader
from fkat_data.datasets import JsonDataset, MapDataset, ParquetDataset
from fkat_data.errors import DownloadError

BATCH_SIZE = 4


def first(batch):
    return batch


class Forwarding:
    """A dataset of a user's own."""

    def __init__(self, dataset):
        self._dataset = dataset
        self.indices = []

    def __len__(self):
        return len(self._dataset)

    def __getitems__(self, indices):
        self.indices.append(indices)
        return self._dataset.__getitems__(indices)

    @property
    def prefetch_items(self):
        return self._dataset.prefetch_items


class Plain(Forwarding):
    prefetch_items = None


class Own(JsonDataset):
    """A subclass that makes samples of its own."""

    def __getitem__(self, index):
        return super().__getitem__(index)


def by_loader(dataset):
    return DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=0, collate_fn=first, seed=3)


def by_threads(dataset):
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "collate_fn": first, "seed": 3}
    return DataLoader(dataset, num_workers=2, workers="threads", prefetch_factor=4, **options)


def by_factory(dataset):
    factory = DataLoaderFactory(
        lambda _: dataset,
        RandomSampler,
        dataloader_generator=partial(TorchDataLoader, collate_fn=first),
        batch_size=BATCH_SIZE,
    )
    return ShardedDataLoader(3, ["counting://file"], factory, multiprocessing=False)


LOADERS = [by_loader, by_threads, by_factory]


class AfterTheFirst:
    """A meeting that the first requests need not wait for, and those behind it."""

    def __init__(self, num_first, number):
        self._meetings = iter([None] * num_first + [Meeting(number)] * number)

    def wait(self):
        meeting = next(self._meetings, None)
        if meeting is not None:
            meeting.wait()


# Threads make the first microbatch alone, and then two at a time.
@pytest.mark.parametrize(("make", "num_alone", "num_together"), [(by_loader, 0, 5), (by_threads, 1, 7)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_microbatches_are_begun_with_one(kind, make, num_alone, num_together, store):
    files, opened, _ = KINDS[kind]
    store.files.update(files())
    dataset = opened()
    dataset[0]
    expected = list(map(str, by_loader(Plain(opened()))))
    store.requests.clear()
    batches = iter(make(dataset))
    num_requests = BATCH_SIZE * (2 if kind == "tar" else 1)  # a header is between two members
    store.meeting = AfterTheFirst(num_alone * num_requests, num_together * num_requests)
    found = [str(next(batches)) for _ in range(num_alone + 1)]
    store.meeting = None
    assert [*found, *map(str, batches)] == expected


@pytest.mark.parametrize("make", LOADERS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_range_is_asked_for_once(kind, make, store):
    files, opened, _ = KINDS[kind]
    store.files.update(files())
    dataset = opened()
    dataset[0]
    store.requests.clear()
    list(make(dataset))
    assert len(store.requests) == len(set(store.requests))


@pytest.mark.parametrize("make", LOADERS)
def test_row_groups_are_begun_too(make, store, table):
    opened = ParquetDataset("counting://file", ["c07"], row_groups_kept=10)
    expected = list(map(str, make(Plain(opened))))
    opened = ParquetDataset("counting://file", ["c07"], row_groups_kept=10)
    store.requests.clear()
    assert list(map(str, make(opened))) == expected
    assert len(store.requests) == 10


@pytest.mark.parametrize("kind", [Forwarding, Plain, Own, partial(MapDataset, fn=first)])
def test_a_dataset_of_a_users_own_gets_the_same_samples_and_what_it_forwards(kind, store):
    store.files.update(KINDS["json lines"][0]())
    expected = list(map(str, by_loader(Plain(JsonDataset("counting://file")))))
    dataset = Own("counting://file") if kind is Own else kind(JsonDataset("counting://file"))
    store.requests.clear()
    assert list(map(str, by_loader(dataset))) == expected
    assert kind is Own or len(store.requests) == len(set(store.requests))


@pytest.mark.parametrize("make", LOADERS)
def test_an_error_of_the_store_comes_where_its_sample_is(make, store, monkeypatch):
    files, opened, _ = KINDS["json lines"]
    store.files.update(files())
    expected = list(map(str, make(Plain(opened()))))
    dataset = opened()
    dataset[0]
    batches = iter(make(dataset))
    found = [str(next(batches))]
    monkeypatch.setattr(store, "answer", staticmethod(lambda content: content + b"x"))
    with pytest.raises(DownloadError, match="counting://file"):
        found.extend(map(str, batches))
    assert found == expected[: len(found)]
    assert len(found) < len(expected) // 3


def test_what_was_begun_and_left_is_read_again(store):
    files, opened, _ = KINDS["json lines"]
    store.files.update(files())
    loader = by_loader(opened())
    plain = by_loader(Plain(opened()))
    for _ in range(30):
        batches, expected = iter(loader), iter(plain)
        assert [str(next(batches)) for _ in range(2)] == [str(next(expected)) for _ in range(2)]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_that_are_killed_lose_and_repeat_nothing_that_was_begun(num_workers, tmp_path, processes):
    options = {"batch_size": 2, "shuffle": True, "seed": 3, "collate_fn": first}
    (tmp_path / "file").write_bytes(LINES)
    expected = list(DataLoader(JsonDataset(tmp_path / "file"), num_workers=0, **options))
    with serving() as server:
        dataset = JsonDataset(server.url)
        loader = DataLoader(dataset, num_workers=num_workers, max_worker_restarts=100, **options)
        found = []
        for number, batch in enumerate(loader):
            found.append(batch)
            pids = worker_pids() if number % 31 == 4 else []
            if pids:  # one that was killed before may not be replaced yet
                os.kill(pids[number % len(pids)], signal.SIGKILL)
        loader.close()
    assert found == expected
