"""Until a worker has begun, the caller's thread makes what it would wait for: the same bits, in the same order."""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch
from startup_examples import FACES, Gate, Numbers, from_caller, made_with
from torch.utils.data import get_worker_info
from walks import wait_until

from fkat_data import DataLoader, ShardedDataLoader
from fkat_data.errors import StaleIteratorError, WorkerError

pytestmark = pytest.mark.usefixtures("processes")
WITHOUT_FACTORY = ["indices", "stream"]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("face", WITHOUT_FACTORY)
def test_order_bits_and_states_are_those_of_one_process_wherever_workers_begin(face, num_workers, tmp_path, some):
    make = FACES[face]
    expected, states = [], []
    with make(None, tmp_path, 0) as alone:
        for microbatch in alone:
            expected.append(made_with(microbatch))
            states.append(alone.state_dict())
    assert len(expected) == 6
    for num_by_caller in some(range(7), 3):
        folder = tmp_path / str(num_by_caller)
        folder.mkdir()
        gate = Gate(folder)
        with make(gate, tmp_path, num_workers) as loader:
            found, by_caller = [], []
            if not num_by_caller:
                gate.open()
                # Nothing says from outside that a worker is up: with the first ones, the caller may be quicker.
            for microbatch in loader:
                found.append(made_with(microbatch))
                by_caller.append(from_caller(microbatch))
                assert loader.state_dict() == states[len(found) - 1]
                if len(found) == num_by_caller:
                    gate.open()
                    if num_by_caller < 6:
                        wait_until(gate.is_passed)
            assert found == expected
            if num_by_caller:
                assert by_caller == [True] * num_by_caller + [False] * (6 - num_by_caller)
            assert loader.statistics().produced_by_caller == sum(by_caller)
            # In the next epoch, nothing is made here once a worker has begun. (A stream has others then, since its state
            # was saved.)
            if not all(by_caller) and face != "stream":
                assert not any(map(from_caller, loader))


PROGRAM = """
import sys, tempfile, time
from pathlib import Path
from startup_examples import FACES, Gate, from_caller, made_with

for face in ("shards", "shards ahead"):
    with FACES[face](None, "", 0) as alone:
        expected, states = [], []
        for microbatch in alone:
            expected.append(made_with(microbatch))
            states.append(alone.state_dict())
    for num_by_caller in map(int, sys.argv[1:]):
        gate = Gate(tempfile.mkdtemp())
        with FACES[face](gate, "", 2) as loader:
            found, by_caller = [], []
            for microbatch in loader:
                found.append(made_with(microbatch))
                by_caller.append(from_caller(microbatch))
                assert loader.state_dict() == states[len(found) - 1]
                if len(found) == num_by_caller:
                    gate.open()
                    while num_by_caller < 6 and not gate.is_passed():
                        time.sleep(0.01)
            assert found == expected
            print(by_caller.index(False) if False in by_caller else len(by_caller), sum(by_caller))
"""


def test_shards_are_made_where_a_factory_numbers_sets_as_in_a_worker(run_script, monkeypatch, some):
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    cases = [1, 6, *some(range(2, 6), 1)]
    done = run_script(PROGRAM, *map(str, cases))
    assert done.stdout.splitlines() == 2 * [f"{case} {case}" for case in cases]


def test_shards_are_made_by_workers_where_it_would_number_them_otherwise(run_script, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    text = (
        "from startup_examples import *\nwith FACES['shards'](None, '', 1) as loader: print(*map(from_caller, loader))"
    )
    assert run_script(text).stdout.split() == ["False"] * 6


@pytest.mark.parametrize("face", WITHOUT_FACTORY)
def test_a_state_from_before_any_worker_has_begun_resumes_with_any_number_of_them(face, tmp_path):
    make = FACES[face]
    with make(None, tmp_path, 0) as alone:
        expected = [made_with(microbatch) for microbatch in alone]
    for num_delivered in range(1, 6):
        gate = Gate(tmp_path)
        with make(gate, tmp_path, 2) as loader:
            begun = iter(loader)
            assert [made_with(next(begun)) for _ in range(num_delivered)] == expected[:num_delivered]
            state = loader.state_dict()
            # The same loader goes on from there, and still no worker has begun.
            loader.load_state_dict(state)
            assert [made_with(microbatch) for microbatch in loader] == expected[num_delivered:]
        with make(None, tmp_path, 0) as alone:
            alone.load_state_dict(state)
            assert [made_with(microbatch) for microbatch in alone] == expected[num_delivered:]


def test_the_program_keeps_its_dataset_its_generators_and_its_worker_info(tmp_path):
    dataset = Numbers(Gate(tmp_path))
    threads = torch.get_num_threads()
    with DataLoader(dataset, batch_size=4, num_workers=2, start_method="template") as loader:
        iterator = iter(loader)  # it draws, as torch's does
        states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        made = list(iterator)
        assert all(map(from_caller, made))
        assert not any(microbatch[0].is_shared() for microbatch in made)
        # As a worker would tell it.
        assert {worker for microbatch in made for worker in microbatch[4].tolist()} == {0}
        assert get_worker_info() is None
        assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
        assert torch.get_num_threads() == threads
        assert not hasattr(dataset, "newest")
        assert dataset.weights.equal(torch.arange(100_000))
        # What was sent has not changed: the next epoch has the same workers, which have not begun either.
        assert all(map(from_caller, loader))
        assert loader.statistics().produced_by_caller == 12


class Told(Numbers):
    def __getitem__(self, index):
        info = get_worker_info()
        return index, info.id, info.num_workers, info.seed, info.dataset is not None, info.dataset.count


def test_get_worker_info_is_that_of_the_first_worker(tmp_path):
    with DataLoader(Told(Gate(tmp_path)), batch_size=None, num_workers=2, start_method="template", seed=2) as loader:
        told = list(loader)
    with DataLoader(Told(), batch_size=None, num_workers=2, start_method="template", seed=2, timeout=600) as loader:
        of_workers = {tuple(item[1:]) for item in loader}
    (of_caller,) = {tuple(item[1:]) for item in told}
    assert of_caller[0] == 0
    assert of_caller[1:2] == (2,)
    # Where the first worker has made nothing, the other one says what its seed would be.
    assert of_caller in {(0, size, seed - number, *rest) for number, size, seed, *rest in of_workers}


@pytest.mark.parametrize(
    "options",
    [{"worker_init_fn": print}, {"timeout": 600}, {"max_worker_restarts": 1}],
    ids=["worker_init_fn", "timeout", "max_worker_restarts"],
)
def test_what_asks_for_a_worker_process_gets_one(options):
    with DataLoader(Numbers(), batch_size=4, num_workers=1, start_method="template", **options) as loader:
        assert not any(map(from_caller, loader))
        assert loader.statistics().produced_by_caller == 0


def test_another_thread_than_the_main_one_makes_nothing():
    found = []
    with DataLoader(Numbers(), batch_size=4, num_workers=1, start_method="template") as loader:
        thread = threading.Thread(target=lambda: found.extend(loader))
        thread.start()
        torch.rand(1000)  # from the generators that the microbatches are drawn from
        thread.join()
    assert len(found) == 6
    assert not any(map(from_caller, found))


def generator(shard):
    for index in range(3):
        yield index, os.getpid()


def test_what_a_factory_makes_in_order_is_made_by_its_worker():
    with ShardedDataLoader(0, ["a", "b"], generator) as loader:
        made = list(loader)
    assert [index for index, _ in made] == [0, 1, 2] * 2
    assert os.getpid() not in {pid for _, pid in made}


class Failing(Numbers):
    def __getitem__(self, index):
        if index == 9:
            raise LookupError("item 9")
        return super().__getitem__(index)


class FailingHere(Numbers):
    def __getitem__(self, index):
        if os.getpid() == self.gate.pid:
            raise LookupError("not in this process")
        return super().__getitem__(index)


class Leaving(Numbers):
    def __getitem__(self, index):
        raise SystemExit(3)


def test_an_error_comes_in_its_place_with_its_class(tmp_path):
    gate = Gate(tmp_path)
    with DataLoader(Failing(gate), batch_size=4, num_workers=2, start_method="template") as loader:
        iterator = iter(loader)
        assert [from_caller(next(iterator)) for _ in range(2)] == [True, True]
        gate.open()
        for _ in range(2):
            with pytest.raises(LookupError, match="item 9"):
                next(iterator)
        assert loader.step == 2


def test_what_cannot_be_made_in_the_callers_process_is_made_by_workers(tmp_path):
    gate = Gate(tmp_path)
    gate.open()
    with DataLoader(FailingHere(gate), batch_size=4, num_workers=2, start_method="template") as loader:
        assert [index for microbatch in loader for index in microbatch[0].tolist()] == list(range(24))


def test_a_dataset_that_leaves_ends_no_program(tmp_path):
    gate = Gate(tmp_path)
    gate.open()
    with (
        DataLoader(Leaving(gate), batch_size=4, num_workers=1, start_method="template") as loader,
        pytest.raises(WorkerError, match="SystemExit"),
    ):
        next(iter(loader))


class Interrupted(Numbers):
    def __getitem__(self, index):
        flag = self.gate.folder / "interrupt"
        if os.getpid() == self.gate.pid and flag.exists():
            flag.unlink()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return super().__getitem__(index)


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("num_before", [0, 2])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_interrupted_microbatch_is_the_next_one(num_workers, num_before, is_opened, tmp_path):
    with DataLoader(Numbers(), batch_size=4, seed=5, shuffle=True) as alone:
        expected = [made_with(microbatch) for microbatch in alone]
    gate = Gate(tmp_path)
    with DataLoader(
        Interrupted(gate), batch_size=4, seed=5, shuffle=True, num_workers=num_workers, start_method="template"
    ) as loader:
        iterator = iter(loader)
        found = [made_with(next(iterator)) for _ in range(num_before)]
        (tmp_path / "interrupt").touch()
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert loader.step == num_before
        assert get_worker_info() is None
        if is_opened:
            gate.open()
            if num_before:  # the worker begins behind what was interrupted
                wait_until(gate.is_passed)
        found += [made_with(microbatch) for microbatch in iterator]
        assert found == expected


class AlwaysInterrupted(Numbers):
    """The caller never makes its third microbatch; when it tries for the second time, workers begin behind it."""

    def __getitem__(self, index):
        if os.getpid() == self.gate.pid and index >= 8:
            with (self.gate.folder / "tries").open("a") as tries:
                tries.write(".")
            if (self.gate.folder / "tries").stat().st_size == 2:
                self.gate.open()
                wait_until(self.gate.is_passed)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("num_tries", [1, 2])
def test_workers_make_what_the_caller_is_interrupted_in_each_time(num_workers, num_tries, tmp_path):
    gate = Gate(tmp_path)
    with DataLoader(AlwaysInterrupted(gate), batch_size=4, num_workers=num_workers, start_method="template") as loader:
        iterator = iter(loader)
        found = [index for _ in range(2) for index in next(iterator)[0].tolist()]
        for _ in range(num_tries):
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
        gate.open()
        wait_until(gate.is_passed)
        found += [index for microbatch in iterator for index in microbatch[0].tolist()]
        assert found == list(range(24))
    assert (tmp_path / "tries").stat().st_size == num_tries


class Closing(Numbers):
    def __getitem__(self, index):
        if index == 8 and os.getpid() == self.gate.pid:
            (self.gate.folder / "reached").touch()
            while not (self.gate.folder / "closed").exists():
                time.sleep(0.01)
        return super().__getitem__(index)


def test_a_loader_that_another_thread_closes_meanwhile_says_so(tmp_path):
    loader = DataLoader(Closing(Gate(tmp_path)), batch_size=4, num_workers=1, start_method="template")

    def close():
        wait_until((tmp_path / "reached").exists)
        loader.close()
        (tmp_path / "closed").touch()

    thread = threading.Thread(target=close)
    thread.start()
    iterator = iter(loader)
    assert [next(iterator)[0].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(StaleIteratorError, match="closed"):
        next(iterator)
    thread.join()


def test_the_verdict_says_that_no_worker_had_started(tmp_path):
    with DataLoader(Numbers(Gate(tmp_path)), batch_size=4, num_workers=2, start_method="template") as loader:
        assert len(list(loader)) == 6
        verdict = loader.statistics().verdict
        assert verdict.limit == "start"
        assert "no worker had started" in str(verdict)
        assert "6 made by the caller while workers started" in " ".join(str(loader.statistics()).split())
