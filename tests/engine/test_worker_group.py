"""Several workers make one shard: the same bits as one, from every position, whoever dies."""

import contextlib
import os
import random
import signal
import time
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_examples import OF_WORKERS, epoch, plain
from own_workers import worker_pids
from patience import unless_held_up
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler
from walks import at_state, recorded, wait_until

from fkat_data import MemoryLimitError, ShardedDataLoader, WorkerDiedError, WorkerError
from fkat_data.errors import WorkerStalledError

pytestmark = pytest.mark.usefixtures("processes")


class Drawn(Dataset):
    """Items with random draws; every ninth takes longer."""

    def __init__(self, shard, count):
        self.shard, self.count = shard, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index % 9 == 0:
            time.sleep(0.002)
        return torch.tensor([int(self.shard), index, random.randrange(1 << 30)]), torch.rand(2)


class Stream(IterableDataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return (self.dataset[index] for index in range(len(self.dataset)))


class ByNumber:
    """Random access without a DataLoader."""

    def __init__(self, dataset):
        self.dataset = dataset

    @property
    def num_microbatches(self):
        return len(self.dataset)

    def microbatch(self, index):
        return list(self.dataset[index])


class Factory:
    """Makes shards of these sizes; a kind is a name, or makes a product of a size."""

    def __init__(self, sizes, kind="map", batch_size=2, dataset=Drawn):
        self.sizes, self.kind, self.batch_size, self.dataset = sizes, kind, batch_size, dataset

    def __call__(self, shard):
        count = self.sizes[int(shard)]
        if callable(self.kind):
            return self.kind(count)
        dataset = self.dataset(shard, count)
        kind = ("map", "iterable", "number")[int(shard) % 3] if self.kind == "mixed" else self.kind
        if kind == "map":
            sampler = RandomSampler(dataset) if len(dataset) else None
            return DataLoader(dataset, batch_size=self.batch_size, sampler=sampler)
        if kind == "iterable":
            return DataLoader(Stream(dataset), batch_size=self.batch_size)
        return ByNumber(dataset)


def loader(factory, **options):
    shards = [str(index) for index in range(len(factory.sizes))]
    return ShardedDataLoader(5, shards, factory, **OF_WORKERS | options)


KINDS = st.sampled_from(["map", "iterable", "number", "mixed"])


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    kind=KINDS,
    num_workers=st.integers(2, 3),
    num_shards=st.integers(0, 2),
    num_ahead=st.sampled_from([-1, 0, 1, 3]),
    data=st.data(),
)
@settings(max_examples=10, deadline=None)
def test_any_number_of_workers_makes_the_same_bits_and_any_other_resumes(
    sizes, kind, num_workers, num_shards, num_ahead, data
):
    factory = Factory(sizes, kind)
    with loader(factory, multiprocessing=False) as alone:
        first, second = epoch(alone), epoch(alone)
    options = {"num_shard_prefetches": num_shards, "num_microbatch_prefetches": num_ahead}
    with loader(factory, num_workers_per_shard=num_workers, **options) as several:
        stop = data.draw(st.integers(0, len(first)))
        iterator = iter(several)
        assert [plain(next(iterator)) for _ in range(stop)] == first[:stop]
        state = several.state_dict()
        assert epoch(several if stop == len(first) else iterator) == (second if stop == len(first) else first[stop:])
    with at_state(loader(factory, multiprocessing=False), state) as other:
        assert epoch(other) == (first[stop:] or second)


@pytest.mark.parametrize("kind", ["map", "mixed"])
def test_every_position_resumes_with_several_workers(kind):
    factory = Factory([3, 0, 7, 1, 4, 5], kind, batch_size=1)
    with loader(factory, num_workers_per_shard=3, num_shard_prefetches=1) as several:
        expected, states = recorded(several, plain)
        assert len(expected) == 20
        for position, state in enumerate(states[:-1]):
            several.load_state_dict(state)
            assert epoch(several) == expected[position:]


class Fatal(Drawn):
    """Kills its worker once at an item."""

    def __init__(self, shard, count, at, mark):
        super().__init__(shard, count)
        self.at, self.mark = at, mark

    def __getitem__(self, index):
        if (self.shard, index) == self.at:
            with contextlib.suppress(FileExistsError):
                mark = os.open(self.mark, os.O_CREAT | os.O_EXCL) if self.mark else -1
                os.kill(os.getpid(), signal.SIGKILL if mark else 0)
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", ["map", "iterable", "number"])
def test_what_a_dead_worker_had_picked_is_made_by_another(kind, tmp_path):
    sizes = [12, 9, 10]
    with loader(Factory(sizes, kind), multiprocessing=False) as alone:
        expected = epoch(alone)
    factory = Factory(sizes, kind, dataset=partial(Fatal, at=("1", 4), mark=str(tmp_path / "mark")))
    options = {"num_workers_per_shard": 3, "num_shard_prefetches": 1}
    with loader(factory, **options, max_worker_restarts=1) as several:
        assert epoch(several) == expected
        assert several.statistics().worker_restarts == 1
    (tmp_path / "mark").unlink()
    with loader(factory, **options) as several:
        got = []
        with pytest.raises(WorkerDiedError) as caught:
            got.extend(map(plain, several))
        assert caught.value.shard == "1"
    assert got == expected[: len(got)]


def test_killed_from_outside_again_and_again_nothing_is_lost():
    factory = Factory([30, 25, 40])
    with loader(factory, multiprocessing=False) as alone:
        expected = epoch(alone)
    draw = random.Random(3)
    with loader(factory, num_workers_per_shard=2, num_shard_prefetches=2, max_worker_restarts=100) as several:
        got = []
        for microbatch in several:
            got.append(plain(microbatch))
            if len(got) % 8 == 0:
                with contextlib.suppress(ProcessLookupError, IndexError):  # one that died now, and was not replaced yet
                    os.kill(draw.choice(worker_pids()), signal.SIGKILL)
        assert got == expected


@pytest.mark.parametrize("num_workers", [2, 3])
def test_workers_that_die_together_lose_nothing_that_they_had_sent(num_workers):
    with loader(Factory([200]), multiprocessing=False) as alone:
        expected = epoch(alone)
    options = {"num_microbatch_prefetches": 20, "max_worker_restarts": 2 * num_workers}
    with loader(Factory([200]), num_workers_per_shard=num_workers, **options) as several:
        microbatches = iter(several)
        got = [plain(next(microbatches))]
        for _ in range(2):
            wait_until(lambda: several.statistics().queue_depth >= 8)
            while pids := worker_pids():  # one that is being forked is seen later
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[0], signal.SIGKILL)
            # More than can be ready: whoever waits learns of each death.
            got.extend(plain(next(microbatches)) for _ in range(21))
        assert got + list(map(plain, microbatches)) == expected


@pytest.mark.parametrize("kind", ["map", "number"])
def test_a_microbatch_that_kills_two_workers_is_given_up_with_its_shard_and_nothing_before_it_is_lost(kind):
    factory = Factory([8, 14, 6], kind, batch_size=1, dataset=partial(Fatal, at=("1", 9), mark=""))
    with loader(Factory([8, 14, 6], kind, batch_size=1), multiprocessing=False) as alone:
        expected = epoch(alone)
    options = {"max_worker_restarts": 9, "on_shard_error": "skip"}
    with loader(factory, num_workers_per_shard=3, num_shard_prefetches=1, **options) as several:
        got = epoch(several)
        assert several.statistics().skipped_shards == 1
        assert several.statistics().worker_restarts == 2
    num_before = len(got) - 6
    assert got == expected[:num_before] + expected[-6:]
    assert 8 <= num_before < 22


class Failing(Drawn):
    def __getitem__(self, index):
        if (self.shard, index) == ("1", 3):
            raise ValueError("the fourth item")
        return super().__getitem__(index)


def test_an_error_comes_in_its_place_and_a_skip_goes_on_behind_its_shard():
    factory = Factory([4, 8, 4], dataset=Failing)
    with loader(factory, multiprocessing=False, on_shard_error="skip") as alone:
        expected = epoch(alone)
    with loader(factory, num_workers_per_shard=3, num_shard_prefetches=1, on_shard_error="skip") as several:
        assert epoch(several) == expected
        assert several.statistics().skipped_shards == 1
    with loader(factory, num_workers_per_shard=3) as several:
        iterator = iter(several)
        got = []
        for _ in range(2):
            with pytest.raises(ValueError, match="the fourth item"):  # noqa: PT012 - what comes before it counts
                while True:
                    got.append(plain(next(iterator)))
        assert got == expected[: len(got)]


@unless_held_up
def test_one_slow_microbatch_does_not_stop_the_others_and_the_verdict_names_it(tmp_path):
    with loader(Factory([40], partial(Slow, later=tmp_path / "later")), num_workers_per_shard=3) as several:
        got = epoch(several)
        statistics = several.statistics()
    assert [microbatch[0] for microbatch in got] == list(range(40))
    assert statistics.waited_behind_s > 0.05  # beside other processes, the later ones arrive late
    assert statistics.num_workers_per_shard == 3


class Slow:
    """One microbatch comes a while after later ones, which other workers make."""

    def __init__(self, count, later=None):
        self.num_microbatches = count
        self.later = later

    def microbatch(self, index):
        if index == 10:
            wait_until(self.later.exists)
            time.sleep(0.4)
        elif index > 10:
            self.later.touch()
        return torch.tensor([index])


@unless_held_up
def test_a_worker_that_hangs_is_the_one_that_is_killed(tmp_path):
    factory = Factory([10], partial(Hanging, mark=tmp_path / "mark"))
    with loader(factory, num_workers_per_shard=2, stall_timeout_s=4.0, max_worker_restarts=1) as several:
        assert [microbatch[0] for microbatch in epoch(several)] == list(range(10))
    (tmp_path / "mark").unlink()
    with loader(factory, num_workers_per_shard=2, stall_timeout_s=4.0) as several:
        with pytest.raises(WorkerStalledError) as caught:
            epoch(several)
        assert caught.value.microbatch_index == 4


class Hanging(Slow):
    def __init__(self, count, mark):
        super().__init__(count)
        self.mark = mark

    def microbatch(self, index):
        if index == 4:
            with contextlib.suppress(FileExistsError):
                self.mark.touch(exist_ok=False)
                time.sleep(1000)
        return torch.tensor([index])


class Large(Slow):
    """Microbatches of 300 kB; every seventh is late."""

    def microbatch(self, index):
        if index % 7 == 0:
            time.sleep(0.03)
        return torch.full((75_000,), index, dtype=torch.float32)


def test_little_memory_holds_workers_up_and_only_what_the_caller_keeps_is_an_error():
    options = {"num_workers_per_shard": 3, "memory_limit_bytes": 3 << 20, "max_worker_restarts": 9}
    with loader(Factory([40, 30], Large), num_microbatch_prefetches=64, **options) as several:
        got = []
        for microbatch in several:
            got.append(int(microbatch[0]))
            if len(got) in (15, 50):
                os.kill(worker_pids()[0], signal.SIGKILL)
        assert got == [*range(40), *range(30)]
        with pytest.raises(MemoryLimitError, match="that the caller keeps"):
            list(several)


class OfItsProcess(Dataset):
    """Samples, and batches of them that are others in each process."""

    def __init__(self, folder, *, makes_last):
        self.folder, self.makes_last, self.count, self.has_made = folder, makes_last, None, False

    def __len__(self):
        return 20

    def wait_for(self, name):
        wait_until((self.folder / name).exists)

    def batches(self):
        try:
            (self.folder / "first").touch(exist_ok=False)
            self.count = 10
        except FileExistsError:
            self.count = 20
            (self.folder / "second").touch()
        self.wait_for("second")
        yield from ([index] for index in range(self.count))
        (self.folder / f"{self.count} drawn").touch()

    def __getitem__(self, index):
        if index == 9:
            (self.folder / "made").touch()
        elif index > 9:
            self.wait_for("10 drawn")
        elif (self.count == 20) is self.makes_last and not self.has_made:
            with contextlib.suppress(AssertionError):  # where the other one was the first to see it, it makes nothing
                wait_until((self.folder / "made").exists, timeout_s=5)
        self.has_made = True
        return index


class Batches:
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return self.dataset.batches()


@pytest.mark.parametrize("makes_last", [False, True])
def test_workers_whose_sampler_gives_other_numbers_of_batches_end_in_an_error(makes_last, tmp_path):
    """Whichever of them makes the last one: it is no wait, and no end."""

    def factory(shard):
        dataset = OfItsProcess(tmp_path, makes_last=makes_last)
        return DataLoader(dataset, batch_sampler=Batches(dataset))

    ahead = {"num_workers_per_shard": 2, "num_microbatch_prefetches": 20}
    with (
        ShardedDataLoader(3, ["a"], factory, **ahead, **OF_WORKERS) as loader,
        pytest.raises(WorkerError, match=r"do not draw the same batches, or not equally many: (at least )?[12]"),
    ):
        list(loader)


class OfEntropy(RandomSampler):
    """Another order in each process, which says that it has drawn it."""

    def __iter__(self):
        (self.data_source.folder / str(os.getpid())).touch()
        return iter(np.random.default_rng().permutation(len(self)).tolist())


class Met(Dataset):
    """No worker makes a sample before another one has drawn."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 40

    def __getitem__(self, index):
        wait_until(lambda: len([*self.folder.iterdir()]) > 1)
        return index


def test_workers_whose_sampler_gives_another_order_in_each_end_in_an_error_instead_of_a_loss(tmp_path):
    def factory(shard):
        dataset = Met(tmp_path)
        return DataLoader(dataset, 2, sampler=OfEntropy(dataset))

    with (
        ShardedDataLoader(3, ["a"], factory, num_workers_per_shard=2, **OF_WORKERS) as loader,
        pytest.raises(WorkerError, match="do not draw the same batches"),
    ):
        list(loader)
