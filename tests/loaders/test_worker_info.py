"""What a worker's code finds of its worker is what torch says of it: the fields, the seeds, and what it may change."""

import multiprocessing
import os
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fkat_data import DataLoader


def facts():
    info = get_worker_info()
    if info is None:
        return None
    return {
        "id": info.id,
        "num_workers": info.num_workers,
        "seed": info.seed,
        "initial_seed": torch.initial_seed(),
        "num_threads": torch.get_num_threads(),
        "is_main": multiprocessing.current_process().name == "MainProcess",
    }


class Facts(Dataset):
    """What is found where an item is made; ``init`` is what ``initialise`` has found."""

    init = None

    def __init__(self, size=8):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        info = get_worker_info()
        return {"item": facts(), "init": self.init, "is_own": info is not None and info.dataset is self}


class FactsInTurn(Facts, IterableDataset):
    def __iter__(self):
        found = facts()
        for index in range(2):
            yield {**self[index], "iter": found}


def initialise(number):
    draws = random.random(), np.random.rand(), torch.rand(()).item()
    info = get_worker_info()
    assert info.id == number
    with pytest.raises((AttributeError, RuntimeError)):
        info.seed = 0
    info.dataset.init = {**facts(), "draws": draws, "repr": repr(info)[:15]}


def with_facts(samples):
    return [*samples, facts()]


def base_seeds(found):
    return {each["item"]["seed"] - each["item"]["id"] for each in found}


def test_seeds_of_workers_are_those_of_torch_in_the_first_epoch(processes):
    for dataset in (Facts(), FactsInTurn()):
        torch.manual_seed(5)
        first, second = (base_seeds(found) for found in epochs_of(dataset))
        torch.manual_seed(5)
        torchs = TorchDataLoader(dataset, None, num_workers=2, timeout=600, multiprocessing_context="fork")
        assert first == base_seeds(torchs)
        assert second != first


def epochs_of(dataset, count=2, **options):
    with DataLoader(dataset, None, num_workers=2, timeout=600, **options) as loader:
        return [list(loader) for _ in range(count)]


@pytest.mark.parametrize("kind", [Facts, FactsInTurn])
@pytest.mark.parametrize("start_method", [None, "spawn", "fork"])
def test_a_worker_finds_what_torchs_finds(kind, start_method, processes):
    options = {"num_workers": 2, "worker_init_fn": initialise, "collate_fn": with_facts}
    torchs = list(TorchDataLoader(kind(), 1, **options))
    with DataLoader(kind(), 1, start_method=start_method, **options) as loader:
        ours = list(loader)
    for found in (torchs, ours):
        for sample, collated in found:
            item, init = sample["item"], sample["init"]
            assert sample["is_own"]
            assert item["num_workers"] == 2
            assert item["num_threads"] == 1
            assert not item["is_main"]
            assert init["repr"] == "WorkerInfo(id=" + str(init["id"])
            assert collated == item
            assert init["seed"] == init["initial_seed"] == item["seed"]
            if kind is FactsInTurn:
                assert sample["iter"] == item
                assert item["seed"] == item["initial_seed"]
            drawn = torch.rand((), generator=torch.Generator().manual_seed(item["seed"])).item()
            assert init["draws"][0] == random.Random(item["seed"]).random()
            assert init["draws"][2] == drawn
        assert len(base_seeds(sample for sample, _ in found)) == 1
    assert len({sample["init"]["draws"][1] for sample, _ in ours}) == len({each["item"]["id"] for each, _ in ours})


@pytest.mark.parametrize("kind", [Facts, FactsInTurn])
def test_the_seeds_of_workers_count_on_from_one_number_for_each_epoch_and_rank(kind, processes):
    bases = []
    for options in ({"seed": 1}, {"seed": 1, "dp_rank": 1}, {"seed": 2}):
        bases += [base_seeds(found) for found in epochs_of(kind(), **options)]
    assert all(len(base) == 1 for base in bases)
    assert len(set.union(*bases)) == len(bases)
    assert [base_seeds(found) for found in epochs_of(kind(), seed=1)] == bases[:2]
    kept = [base_seeds(found) for found in epochs_of(kind(), seed=1, persistent_workers=True)]
    assert kept == [bases[0]] * 2
    fresh = [base_seeds(found) for found in epochs_of(kind(), seed=1, persistent_workers=False)]
    assert fresh == bases[:2]


class Divided(IterableDataset):
    """Numbers in one shuffled order, of which each worker takes its part, as many datasets of users do."""

    def __iter__(self):
        info = get_worker_info()
        order = np.random.default_rng(info.seed - info.id).permutation(40)
        for number in order[info.id :: info.num_workers]:
            yield int(number), torch.initial_seed() - info.id


def test_an_order_that_is_drawn_from_the_seed_is_divided_and_goes_on_after_a_resume(processes):
    with DataLoader(Divided(), None, num_workers=2, timeout=600, seed=5) as loader:
        epochs = [list(loader) for _ in range(3)]
    assert [sorted(number for number, _ in epoch) for epoch in epochs] == [list(range(40))] * 3
    assert all(one != other for one, other in pairwise(epochs))
    with DataLoader(Divided(), None, num_workers=2, timeout=600, seed=5) as loader:
        list(loader)
        iterator = iter(loader)
        begun = [next(iterator) for _ in range(7)]
        state = loader.state_dict()
    with DataLoader(Divided(), None, num_workers=1, timeout=600, seed=5) as resumed:
        resumed.load_state_dict(state)
        assert begun + list(resumed) == epochs[1]
        assert list(resumed) == epochs[2]


class Killed(Divided):
    """A worker that ends before its first number, once."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        if get_worker_info().id == 1 and not self.path.exists():
            self.path.touch()
            os._exit(1)
        yield from super().__iter__()


def test_a_worker_that_takes_anothers_place_has_its_seed(processes, tmp_path):
    with DataLoader(Divided(), None, num_workers=2, timeout=600, seed=5) as loader:
        due = list(loader)
    with DataLoader(Killed(tmp_path / "killed"), None, num_workers=2, seed=5, max_worker_restarts=1) as loader:
        assert list(loader) == due
    assert (tmp_path / "killed").exists()


def test_the_program_is_no_worker(processes):
    assert [each["item"] for each in DataLoader(Facts(2), None)] == [None] * 2
    with DataLoader(Facts(2), None, num_workers=1, timeout=600) as loader:
        list(loader)
        assert facts() is None
    with DataLoader(Facts(2), None, num_workers=2, workers="threads") as loader:
        assert [each["item"] for each in loader] == [None] * 2
