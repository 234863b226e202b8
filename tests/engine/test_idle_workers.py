"""Many loaders in one program, with few descriptors: those that wait give up their workers, and lose nothing."""

import contextlib
import itertools
import resource
import threading
from pathlib import Path

import pytest
import torch
from own_workers import worker_pids
from torch.utils.data import Dataset, IterableDataset

from fkat_data import DataLoader, ShardedDataLoader
from fkat_data.runtime.machine import num_usable_cpus

COUNT = 12


class Numbers(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.tensor([index, torch.randint(1000, ()).item()])


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return (torch.tensor([index]) for index in range(info.id, COUNT, info.num_workers))


def factory(shard):
    return torch.utils.data.DataLoader(Numbers(), batch_size=2)


MAKE = {
    "DataLoader": lambda: DataLoader(Numbers(), batch_size=2, shuffle=True, num_workers=2, seed=3),
    "an iterable dataset": lambda: DataLoader(Stream(), batch_size=2, num_workers=2, seed=3),
    "ShardedDataLoader": lambda: ShardedDataLoader(3, ["a", "b"], factory, num_shard_prefetches=1),
}


@contextlib.contextmanager
def few_descriptors(count):
    """Leave this process so many descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(link.name) for link in Path("/proc/self/fd").iterdir()}
    free = itertools.islice((number for number in itertools.count() if number not in taken), count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def seen(iterable):
    return [microbatch.tolist() for microbatch in iterable]


def test_many_loaders_in_turn_need_no_more_descriptors_than_a_few(some, processes):
    for make in some(MAKE.values(), 1):
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(make())
            expected = [seen(first), seen(first)]
            first.close()
            with few_descriptors(90):
                loaders = [stack.enter_context(make()) for _ in range(8)]
                for epoch in range(2):
                    assert [seen(loader) for loader in loaders] == [expected[epoch]] * len(loaders)


def test_loaders_that_are_iterated_at_once_give_up_workers_and_lose_nothing(some, processes):
    for make in some(MAKE.values(), 1):
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(make())
            expected = seen(first)
            first.close()
            with few_descriptors(80):
                iterators = [iter(stack.enter_context(make())) for _ in range(5)]
                got = [seen(same) for same in zip(*iterators, strict=True)]
        assert [step for step, *_ in got] == expected
        assert all(each == step[0] for step in got for each in step)


def test_few_idle_workers_stay_those_of_the_loader_used_last_first(processes):
    most = 4 * num_usable_cpus()
    count = most // 2 + 3
    with contextlib.ExitStack() as stack:
        options = {"num_workers": 2, "timeout": 600, "start_method": "template"}
        loaders = [stack.enter_context(DataLoader(Numbers(), **options)) for _ in range(count)]
        pids = []
        for loader in loaders:
            next(iter(loader))  # an iteration that is left counts as one that has ended
            before, now = set(itertools.chain(*pids)), set(worker_pids())
            assert len(now) <= most + 2
            pids.append(sorted(now - before))
        list(loaders[-1])
        assert len(worker_pids()) <= most
        assert set(pids[-1]) <= set(worker_pids())
        assert not set(pids[0]) & set(worker_pids())


def test_persistent_workers_are_not_given_up_and_an_error_says_what_would_do(processes):
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(DataLoader(Numbers(), num_workers=1, persistent_workers=True, timeout=600))
        list(kept)
        pids = worker_pids()
        others = [
            stack.enter_context(DataLoader(Numbers(), num_workers=1, persistent_workers=True, timeout=600))
            for _ in range(20)
        ]
        with few_descriptors(70), pytest.raises(OSError, match=r"RLIMIT_NOFILE allows \d+ .*ulimit -n .*close\(\)"):
            [seen(loader) for loader in others]
        assert set(pids) <= set(worker_pids())
        assert len(list(kept)) == COUNT


def test_loaders_in_several_threads_share_few_descriptors(processes):
    loaders = [DataLoader(Numbers(), batch_size=2, num_workers=1, seed=3, shuffle=True) for _ in range(6)]
    got, errors = [], []

    def iterate(own):
        try:
            for _ in range(2):
                got.extend(seen(loader) for loader in own)
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    with few_descriptors(100):
        threads = [threading.Thread(target=iterate, args=(loaders[place::2],)) for place in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for loader in loaders:
        loader.close()
    assert not errors
    assert len({str(each) for each in got}) == 2
