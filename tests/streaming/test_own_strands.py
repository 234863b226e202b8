"""Streams under torch's face and the reference's, subclasses with an ``__iter__`` of their own among them."""

import json
import os
import random
import signal
import time
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from own_datasets import Endless, Filtered, Iterated, OwnOrder
from own_workers import worker_pids
from patience import unless_held_up
from streaming_examples import numbers, world, worlds, write
from torch.utils.data import get_worker_info
from walks import at_state, begun

from fkat_data import ConfigurationError, DataLoader, StateMismatchError
from fkat_data.errors import ShardCorruptError, WorkerStalledError
from fkat_data.streaming import StreamingDataLoader, StreamingDataset

# Of three workers on two cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")

NUM_SAMPLES = 61
BATCH_SIZE = 6
FACES = [DataLoader, StreamingDataLoader]
WORKERS = [0, *(pytest.param(count, marks=pytest.mark.with_processes) for count in (1, 2, 3))]


def draws(sample):
    """Draw from the global generators."""
    return {"number": sample["number"], "drawn": [random.random(), float(np.random.rand()), float(torch.rand(()))]}


class Transformed(StreamingDataset):
    def __init__(self, **options):
        super().__init__(**options, transform=draws)


class Drawing(StreamingDataset):
    """Passes on a sample for each, with draws."""

    def __iter__(self):
        yield from map(draws, super().__iter__())


class Informed(StreamingDataset):
    """Says which worker made a sample."""

    def __iter__(self):
        info = get_worker_info()
        named = {"worker": -1, "workers": 0} if info is None else {"worker": info.id, "workers": info.num_workers}
        for sample in super().__iter__():
            yield {"number": sample["number"], **named}


class Uneven(StreamingDataset):
    """The first worker ends early, the second yields nothing, and the rest twice what they get."""

    def __iter__(self):
        info = get_worker_info()
        place = 2 if info is None else info.id
        for index, sample in enumerate(super().__iter__()):
            if place == 1 or (place == 0 and index == 8):
                return
            yield sample
            if place == 2:
                yield sample


class Empty(StreamingDataset):
    def __iter__(self):
        yield from ()


class Twice(StreamingDataset):
    """Two epochs in one iteration."""

    def __iter__(self):
        yield from super().__iter__()
        yield from super().__iter__()


class Failing(StreamingDataset):
    """The last worker fails in the middle."""

    def __iter__(self):
        info = get_worker_info()
        fails = info is None or info.id == info.num_workers - 1
        for index, sample in enumerate(super().__iter__()):
            if fails and index == 14:
                raise KeyError("in the middle")
            yield sample


class Counting(StreamingDataset):
    """Counts its iterations in an attribute."""

    def __init__(self, **options):
        super().__init__(**options)
        self.count = 0

    def __iter__(self):
        self.count += 1
        for sample in super().__iter__():
            yield {"number": sample["number"], "iteration": self.count}


class Stuck(StreamingDataset):
    """The last worker stops for a long time."""

    def __iter__(self):
        info = get_worker_info()
        for index, sample in enumerate(super().__iter__()):
            if index == 8 and info.id == info.num_workers - 1:
                time.sleep(600)
            yield sample


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "numbers", NUM_SAMPLES, columns=("number",))


def all_of(batches):
    """The numbers of all batches, in one list."""
    return list(chain.from_iterable(batches))


def dataset_of(data, kind, **options):
    given = {"shuffle": True, "shuffle_algo": "block", "batch_size": BATCH_SIZE, "num_canonical_nodes": 2} | options
    return kind(local=data, **given)


def make(data, kind, face=DataLoader, dataset_options=None, **options):
    return face(dataset_of(data, kind, **dataset_options or {}), batch_size=BATCH_SIZE, **options)


def torchs(data, kind, num_workers, **options):
    """The batches of torch's own loader."""
    forked = {"multiprocessing_context": "fork"} if num_workers else {}
    dataset = dataset_of(data, kind)
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=num_workers, **forked, **options)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("kind", [StreamingDataset, Informed, Filtered, Uneven, Empty, OwnOrder])
def test_batches_are_those_of_torchs_own_workers_in_their_order(processes, data, kind, num_workers, some):
    for drop_last in some((False, True), 1):
        expected = list(torchs(data, kind, num_workers, drop_last=drop_last))
        for face in FACES if drop_last else FACES[:1]:
            with make(data, kind, face, num_workers=num_workers, drop_last=drop_last) as loader:
                found = list(loader)
                assert numbers(found) == numbers(expected)
                assert loader.statistics().delivered == len(expected)
                if kind is StreamingDataset:
                    assert (len(loader), loader.epoch, loader.step) == (len(expected), 1, 0)
                if kind is Informed:
                    columns = [[batch[name].tolist() for batch in found] for name in ("worker", "workers")]
                    assert columns == [[batch[name].tolist() for batch in expected] for name in ("worker", "workers")]


@pytest.mark.parametrize("num_workers", [0, 2, 3])
@pytest.mark.parametrize("kind", [Transformed, Drawing])
def test_a_state_is_exact_at_every_cut_and_loads_with_any_workers_into_either_face(
    processes, data, kind, num_workers, some
):
    with make(data, kind, collate_fn=list) as whole:
        expected = [*whole], [*whole]
    plain = make(data, StreamingDataset, StreamingDataLoader)
    states = [plain.state_dict(), *(plain.state_dict() for _ in plain)]
    # One loader is taken to each place: a loader for each costs a second.
    with (
        make(data, kind, num_workers=num_workers, collate_fn=list) as loader,
        make(data, kind, StreamingDataLoader, num_workers=(num_workers + 1) % 3, collate_fn=list) as other,
    ):
        for cut in some(range(len(expected[0]))):
            loader.load_state_dict(states[0])
            iterator = iter(loader)
            before = [next(iterator) for _ in range(cut)]
            state = json.loads(json.dumps(loader.state_dict()))
            (place,) = state["place"]
            assert place["stream"] == json.loads(json.dumps(states[cut]))
            assert (loader.epoch, loader.step) == (place["epoch"], place["step"]) == (0, cut)
            other.load_state_dict(state)
            assert (other.epoch, other.step) == (0, cut)
            assert [*before, *other] == expected[0]
            assert other.num_samples_yielded == NUM_SAMPLES - cut * BATCH_SIZE
            assert other.state_dict() == states[-1]
            if cut % 3 == 0:
                assert [*other] == expected[1]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_what_no_state_can_say_is_refused_and_may_be_copied_and_ended(processes, data, num_workers):
    for face in FACES:
        with make(data, Filtered, face, num_workers=num_workers) as loader:
            iterator = iter(loader)
            assert loader.state_dict()
            for _ in range(3):
                next(iterator)
            with pytest.raises(ConfigurationError, match=r"Filtered.*yields one sample for each"):
                loader.state_dict()
            with pytest.raises(ConfigurationError, match="Filtered"):
                loader.local_state_dict()
            assert loader.num_workers == num_workers
            assert list(iterator)
            assert loader.epoch == 1


@pytest.mark.parametrize("num_workers", WORKERS[::2])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", [StreamingDataset, Filtered])
def test_an_epoch_that_is_left_is_followed_by_the_next(processes, data, kind, face, num_workers):
    with make(data, kind) as whole:
        expected = [sorted(all_of(numbers(whole))) for _ in range(2)]
    with make(data, kind, face, num_workers=num_workers) as loader:
        next(iter(loader))
        second = numbers(loader)
        assert sorted(all_of(second)) == expected[1]
        assert numbers(loader) != second
        loader.set_epoch(1)
        assert numbers(loader) == second


@pytest.mark.parametrize("num_workers", WORKERS)
def test_epochs_that_one_iteration_goes_through_count(processes, data, num_workers):
    with make(data, StreamingDataset) as plain:
        expected = [sorted(all_of(numbers(plain))) for _ in range(4)]
    with make(data, Twice, num_workers=num_workers) as loader:
        for pair in (expected[:2], expected[2:]):
            assert sorted(all_of(numbers(loader))) == sorted(all_of(pair))
        assert (loader.epoch, loader.step) == (4, 0)


def test_the_position_is_known_in_the_second_epoch_of_an_iteration(data):
    with make(data, Endless) as whole:
        expected = [batch["number"].tolist() for batch, _ in zip(whole, range(40), strict=False)]
    num_batches = len(make(data, Endless))
    for cut in (num_batches - 1, num_batches, num_batches + 1, num_batches + 7):
        with make(data, Endless) as loader:
            begun(loader, cut)
            state = loader.state_dict()
            after_break = next(iter(loader))["number"].tolist()
        (place,) = state["place"]
        assert (place["epoch"], place["step"]) == ((0, cut) if cut <= num_batches else (1, cut - num_batches))
        assert after_break == expected[num_batches * (1 if cut <= num_batches else 2)]
        with at_state(make(data, Endless, StreamingDataLoader), state) as other:
            found = [batch["number"].tolist() for batch, _ in zip(other, range(9), strict=False)]
        assert found == expected[cut : cut + 9]


@pytest.mark.parametrize("num_workers", WORKERS[2:])
@pytest.mark.parametrize("kind", [Transformed, Drawing, Filtered, Uneven])
def test_nothing_is_lost_where_workers_are_killed(processes, data, kind, num_workers, some):
    options = {"num_workers": num_workers, "collate_fn": list}
    with make(data, kind, **options) as loader:
        expected = [*loader]
    for face in some(FACES, 1):
        with make(data, kind, face, prefetch_factor=1, max_worker_restarts=2, **options) as loader:
            found = []
            for step, batch in enumerate(loader):
                found.append(batch)
                if step in (0, 3):
                    os.kill(worker_pids()[-1], signal.SIGKILL)
            assert found == expected


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_strand_that_fails_fails_in_its_turn_and_the_next_epoch_begins(processes, data, num_workers):
    with make(data, Failing, num_workers=num_workers) as loader:
        found = []
        with pytest.raises(KeyError, match="in the middle"):
            found.extend(batch["number"].tolist() for batch in loader)
        assert found == numbers(make(data, StreamingDataset))[: 3 * max(1, num_workers) - 1]
        assert loader.state_dict()["place"][0]["step"] == len(found)
        with pytest.raises(KeyError, match="in the middle"):
            list(loader)
        assert loader.epoch == 1


@pytest.mark.parametrize("num_workers", WORKERS[1:3])
@unless_held_up
def test_a_strand_that_stalls_is_an_error_in_its_turn(processes, data, num_workers):
    with make(data, Stuck, num_workers=num_workers, timeout=2) as loader:
        found = []
        with pytest.raises(WorkerStalledError):
            found.extend(batch["number"].tolist() for batch in loader)
    assert found == numbers(make(data, StreamingDataset))[: 2 * num_workers - 1]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_dataset_of_workers_begins_each_epoch_as_the_callers_unless_it_stays(processes, data, num_workers):
    for stays in (None, True):
        with make(data, Counting, num_workers=num_workers, persistent_workers=stays if num_workers else None) as loader:
            found = [{count for batch in loader for count in batch["iteration"].tolist()} for _ in range(2)]
        assert found == [{1}, {2} if stays or not num_workers else {1}]


@pytest.mark.long
def test_a_state_is_exact_at_every_position_and_in_other_worlds(options):
    plain = StreamingDataLoader(StreamingDataset(**options | {"batch_size": 12}))
    states = [plain.state_dict(), *(plain.state_dict() for _ in plain)]
    loader = StreamingDataLoader(Iterated(**options | {"batch_size": 12}))
    batches = numbers(loader)
    loader.load_state_dict(states[0])
    assert [loader.state_dict(), *(loader.state_dict() for _ in loader)] == states
    for position, state in enumerate(states):
        read = []
        for one in worlds(2, 3):
            other = at_state(StreamingDataLoader(Iterated(**options | {"batch_size": 2}, world=one)), state)
            assert other.state_dict() == state
            read.append(numbers(other))
        full = [sorted(batch) for batch in batches[position:] if len(batch) == 12]
        assert [sorted(chain.from_iterable(step)) for step in zip(*read, strict=True)][: len(full)] == full
    assert [len(batch) for batch in numbers(StreamingDataLoader(Iterated(**options), drop_last=True))] == [4] * 15


def test_an_iteration_has_the_epoch_that_it_began_whatever_others_begin_meanwhile(options):
    dataset = Iterated(**options)
    plain = StreamingDataLoader(StreamingDataset(**options))
    expected = [[number + 1000 for number in batch] for batch in numbers(plain)], numbers(plain)
    iterator = iter(StreamingDataLoader(dataset))
    assert next(iter(dataset))["number"] == expected[1][0][0] + 1000
    assert [batch["number"].tolist() for batch in iterator] == expected[0]


def py1e(data, face=DataLoader, rank=0, num_ranks=1, dataset_options=None, **options):
    own = world(1, num_ranks, rank)
    given = {"shuffle": True, "shuffle_algo": "py1e", "batch_size": 12 // num_ranks, "num_canonical_nodes": 2}
    dataset = StreamingDataset(local=data, world=own, **given | (dataset_options or {}))
    return face(dataset, batch_size=dataset.batch_size, **options)


@pytest.mark.parametrize("method", ["random", "stratified", "device_stratified", "per_stream", "device_per_stream"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_what_torchs_own_loader_reads_is_what_both_faces_deliver(data, method, num_ranks):
    options = {"batching_method": method, "shuffle_algo": "block"}
    for rank in range(num_ranks):
        dataset = py1e(data, rank=rank, num_ranks=num_ranks, dataset_options=options).dataset
        expected = numbers(torch.utils.data.DataLoader(dataset, batch_size=dataset.batch_size))
        for face in FACES:
            with py1e(data, face, rank, num_ranks, options) as loader:
                assert numbers(loader) == expected


@pytest.mark.parametrize("num_workers", WORKERS[:3])
def test_of_batches_that_are_read_together_those_before_a_faulty_one_come_first(processes, tmp_path, num_workers):
    path = write(tmp_path / "numbers", NUM_SAMPLES, columns=("number",))
    with py1e(path, dataset_options={"shuffle": False}) as loader:
        states = [loader.state_dict()["place"][0]["stream"]]
        whole = []
        for batch in loader:
            whole.append(batch["number"].tolist())
            states.append(loader.state_dict()["place"][0]["stream"])
    damaged = max((tmp_path / "numbers").glob("shard.*"))
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with py1e(path, dataset_options={"shuffle": False}, num_workers=num_workers) as loader:
        for first in (0, 2):
            loader.load_state_dict({**loader.state_dict()["place"][0], "stream": states[first]})
            found = []
            iterator = iter(loader)
            with pytest.raises(ShardCorruptError):
                found.extend(batch["number"].tolist() for batch in iterator)
            assert 0 < len(found) < len(whole) - first
            assert found == whole[first : first + len(found)]
            assert loader.step == first + len(found)
            with pytest.raises(ShardCorruptError):
                next(iterator)


def test_what_does_not_fit_a_stream_is_refused_by_name(data):
    with pytest.raises(ConfigurationError, match="batch_size"):
        DataLoader(py1e(data).dataset, batch_size=5)
    with py1e(data) as loader, DataLoader(range(9)) as other:
        with pytest.raises(StateMismatchError, match="stream"):
            other.load_state_dict(loader.state_dict())
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(other.state_dict())


class Doubled(StreamingDataset):
    def __getitem__(self, index):
        return {"number": 2 * super().__getitem__(index)["number"]}


@pytest.mark.long
@pytest.mark.parametrize("share", [40, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
@pytest.mark.parametrize("kind", [StreamingDataset, Doubled, Iterated])
def test_a_loop_that_a_signal_interrupts_goes_on_where_it_was(tmp_path, kind, share):
    from front_door_sweep import sweep_beside

    assert sweep_beside(partial(make, write(tmp_path / "numbers", 31), kind), share) > 5
