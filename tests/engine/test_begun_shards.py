"""What is known of a begun shard is in its state: its batches, and its files. It is not finished with others."""

import functools
import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from walks import at_state, begun
from written_files import FORMATS, NUM_SAMPLES, left, saved_after, saved_by_two_ranks, write_lines

from fkat_data import DataLoaderFactory, ShardedDataLoader, StateMismatchError
from fkat_data.datasets import JsonDataset, MapDataset


def in_order(batch_size, **options):
    def factory(shard):
        return DataLoader(range(int(shard)), batch_size, **options)

    return factory


def shuffled(shard):
    return DataLoader(range(int(shard)), 4, sampler=RandomSampler(range(int(shard))))


def in_own_batches(batch_size):
    def factory(shard):
        samples = range(int(shard))
        return DataLoader(samples, batch_sampler=BatchSampler(SequentialSampler(samples), batch_size, drop_last=False))

    return factory


def as_a_list(shard):
    return [torch.arange(index, min(index + 3, int(shard))) for index in range(0, int(shard), 3)]


def by_arguments(batch_size=4, **options):
    return DataLoaderFactory(lambda shard: range(int(shard)), batch_size=batch_size, **options)


class Texts:
    """Makes a view of a shard's dataset."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, shard):
        return MapDataset(self.kind(shard), str)


class PlainFunction(Texts):
    def __call__(self, shard):
        return DataLoader(super().__call__(shard), batch_size=2)


class OneByOne:
    """An iterable of a user's own."""

    def __init__(self, shard):
        self.dataset = JsonDataset(shard)

    def __iter__(self):
        return (self.dataset[index] for index in range(len(self.dataset)))


FACTORIES = [lambda kind: DataLoaderFactory(Texts(kind), batch_size=2), PlainFunction]


class Batches:
    """Two shards in batches, and then in smaller ones."""

    field, num_samples, says = "batching", 100, "batch_size=3|3 in order"

    def __init__(self, factory_of, folder):
        self.factory_of, self.shards = factory_of, ["100", "100"]
        self.factory, self.batch_size = factory_of(4), 4

    def change(self):
        self.factory, self.batch_size = self.factory_of(3), 3


class Files:
    """Two shards in files, which are then written again."""

    field, num_samples, says = "files", NUM_SAMPLES, "the file has changed since the state was saved"
    batch_size = 2

    def __init__(self, factory_of, folder):
        self.factory, self.shards = factory_of(JsonDataset), [str(folder / "first"), str(folder / "second")]
        self.change("old")

    def change(self, word="new"):
        for shard in self.shards:
            write_lines(Path(shard), word)


@pytest.fixture(
    params=[
        *(functools.partial(Batches, factory_of) for factory_of in (in_order, by_arguments)),
        *(functools.partial(Files, factory_of) for factory_of in FACTORIES),
    ],
    ids=["batches of a function", "batches by arguments", "files by arguments", "files of a function"],
)
def case(request, tmp_path):
    return request.param(tmp_path)


def saved(case, num_taken=2, **options):
    return saved_after(num_taken, case.shards, case.factory, **options)


def num_left(case, state, **options):
    return sum(map(len, left(state, case.shards, case.factory, **options)))


def refused(case):
    return pytest.raises(StateMismatchError, match=case.says)


@pytest.mark.parametrize(
    ("saved", "present", "says"),
    [
        (in_order(4), in_order(3), ("batch_size=4, sampler=SequentialSampler", "batch_size=3")),
        (in_order(4), in_order(4, drop_last=True), ("drop_last=False", "drop_last=True")),
        (in_order(4), shuffled, ("sampler=SequentialSampler", "sampler=RandomSampler")),
        (in_own_batches(4), in_own_batches(3), ("batch_size=4", "batch_size=3")),
        (by_arguments(), by_arguments(3), ("4 in order", "3 in order")),
        (by_arguments(), by_arguments(sampler_generator=SequentialSampler), ("4 in order", "")),
        (by_arguments(), by_arguments(1, batch_sampler_generator=lambda rows: [[0]]), ("4 in order", "")),
    ],
)
def test_it_is_not_finished_in_other_batches(saved, present, says):
    state = saved_after(6, ["100", "100"], saved)
    with pytest.raises(StateMismatchError) as raised:
        left(state, ["100", "100"], present)
    assert raised.value.field == "fingerprint.batching"
    assert says[0] in raised.value.saved
    assert says[1] in raised.value.present
    assert sum(map(len, left(state, ["100", "100"], saved))) == 200 - 6 * 4


@pytest.mark.parametrize("of_kind", FACTORIES, ids=["DataLoaderFactory", "function"])
@pytest.mark.parametrize(("kind", "write"), FORMATS)
def test_it_is_not_finished_in_another_file(tmp_path, kind, write, of_kind):
    path, factory = tmp_path / "file", of_kind(kind)
    write(path, "older")
    state = saved_after(2, [str(path)], factory)
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000_000))
    assert len(left(state, [str(path)], factory)) == NUM_SAMPLES // 2 - 2
    write(path, "new, and of another length" * 30)
    with pytest.raises(StateMismatchError, match=f"files.*the file has changed since the state was saved.*{path}"):
        left(state, [str(path)], factory)


@pytest.mark.parametrize("num_workers_per_shard", [1, 2])
def test_workers_report_and_compare_it(case, num_workers_per_shard, processes):
    options = {"multiprocessing": True, "num_workers_per_shard": num_workers_per_shard, "on_shard_error": "skip"}
    state = saved(case, **options)
    assert num_left(case, state, **options) == 2 * (case.num_samples - case.batch_size)
    case.change()
    with refused(case):
        num_left(case, state, **options)


def test_between_two_shards_it_may_change_and_a_state_without_it_loads(case):
    between = saved(case, case.num_samples // case.batch_size)
    within = saved(case)
    case.change()
    assert num_left(case, between) == case.num_samples
    within["fingerprint"][case.field] = None
    assert num_left(case, within) == 2 * (case.num_samples - case.batch_size)
    del within["fingerprint"][case.field]
    assert num_left(case, within) == 2 * (case.num_samples - case.batch_size)


def test_a_loaded_state_a_closed_loader_and_a_left_iteration_still_say_it(case):
    state = saved(case)
    with at_state(ShardedDataLoader(0, case.shards, case.factory, multiprocessing=False), state) as loader:
        assert loader.local_state_dict() == state
        states = [loader.state_dict()]
        next(iter(loader))
        loader.close()
        states.append(loader.state_dict())
    case.change()
    for again in states:
        with refused(case):
            num_left(case, again)


def test_another_number_of_ranks_finishes_the_begun_shards_of_all(case):
    whole, sampler = saved_by_two_ranks(2, case.shards, case.factory)
    with at_state(ShardedDataLoader(0, sampler, case.factory, multiprocessing=False), whole) as one:
        microbatches = begun(one, 1)
        within_a_piece = one.local_state_dict()
        assert 1 + sum(1 for _ in microbatches) == 2 * (case.num_samples // case.batch_size - 2)
    case.change()
    # Files are compared by the rank that has begun them, batches by every one.
    for state in (whole, within_a_piece) if case.field == "batching" else (within_a_piece,):
        with refused(case):
            left(state, sampler, case.factory)


def test_a_product_that_does_not_say_its_batches_loads():
    assert saved_after(6, ["100", "100"], as_a_list)["fingerprint"]["batching"] is None
    assert left(saved_after(6, ["100", "100"], in_order(4)), ["100", "100"], as_a_list)[0].tolist() == [18, 19, 20]


def test_an_iterable_that_names_its_dataset_is_compared(tmp_path):
    case = Files(lambda kind: OneByOne, tmp_path)
    state = saved(case)
    case.change()
    with refused(case):
        num_left(case, state)


@pytest.mark.parametrize("files", ["9f3c", ["9f3c"], 7])
def test_a_state_whose_files_are_no_numbers_is_refused(tmp_path, files):
    case = Files(FACTORIES[0], tmp_path)
    state = saved(case)
    state["fingerprint"]["files"] = files
    with pytest.raises(StateMismatchError, match=r"fingerprint\.files"):
        num_left(case, state)
