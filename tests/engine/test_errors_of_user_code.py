"""Errors that user code raises where none is expected: each comes as itself, in its place, and ends nothing else."""

import os
import time

import pytest
import torch
from drop_in_examples import Strand
from loader_examples import make
from torch.utils.data import DataLoader
from walks import both_modes

from fkat_data import ConfigurationError, WorkerDiedError, WorkerError

#: Rebuilding the second microbatch raises SystemExit, and so does pickling an error; one is rebuilt in workers alone. At
#: last a signal's handler exits.
SCRIPT = """
import os, signal, sys
import torch
from fkat_data import ShardedDataLoader

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))

class Rebuilt:
    struck = False
    def __init__(self, number):
        self.number = number
    def __setstate__(self, state):
        self.number = state["number"]
        if self.number == 1:
            sys.exit(3)
        elif self.number == 2 and not Rebuilt.struck:
            Rebuilt.struck = True
            os.kill(os.getpid(), signal.SIGTERM)

class Unpicklable(Exception):
    def __reduce__(self):
        sys.exit(4)

TRAINER = os.getpid()

class Picky(Exception):
    def __setstate__(self, state):
        if os.getpid() == TRAINER:
            raise RuntimeError("not in this process")
    def __reduce__(self):
        return Picky, self.args, {"some": "state"}

def factory(shard):
    yield Rebuilt(0)
    yield Rebuilt(1)

def failing(shard):
    yield torch.zeros(2)
    raise Unpicklable("mine")

def picky(shard):
    yield torch.zeros(2)
    raise Picky("mine")

for each in (factory, failing, picky):
    with ShardedDataLoader(0, ["a"], each) as loader:
        iterator = iter(loader)
        first = next(iterator)
        for _ in range(2):
            try:
                next(iterator)
            except Exception as error:
                print(type(error).__name__, str(error).splitlines()[0], "mine" in str(error.__notes__))
with ShardedDataLoader(0, ["a"], lambda shard: [Rebuilt(2)]) as loader:
    next(iter(loader))
"""


def test_what_exits_while_it_is_pickled_or_rebuilt_is_an_error_and_a_signals_handler_that_does_ends_the_program(
    run_script,
):
    rest = "in a worker; it cannot be rebuilt in this process, its traceback follows True"
    told = ["rebuilding microbatch 1 raised SystemExit(3) False", f"Unpicklable {rest}", f"Picky {rest}"]
    done = run_script(SCRIPT, check=False)
    assert done.stdout.splitlines() == [f"WorkerError {each}" for each in told for _ in range(2)]
    assert done.returncode == 5, done.stderr


def test_a_worker_whose_pipe_closes_before_it_ends_is_reported_with_its_own_exit_code(remote):
    def factory(shard):
        yield torch.zeros(2)
        os.closerange(3, 256)
        time.sleep(0.2)
        os._exit(4)

    with remote(["a"], factory) as loader, pytest.raises(WorkerDiedError) as caught:
        list(loader)
    assert caught.value.exit_code == 4


class LoaderOfItsOwn(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


def stopping(samples):
    if 4 in samples:
        raise StopIteration
    return torch.tensor(samples)


@both_modes
@pytest.mark.parametrize(
    ("kind", "num_nested"), [(DataLoader, 0), (DataLoader, 1), (LoaderOfItsOwn, 0)], ids=["plain", "nested", "own"]
)
def test_stop_iteration_of_a_collate_fn_does_not_cut_an_iterable_dataset_short(
    multiprocessing, kind, num_nested, processes
):
    def factory(shard):
        return kind(Strand(range(10)), batch_size=2, collate_fn=stopping, num_workers=num_nested)

    got = []
    with (
        make(["a"], factory, multiprocessing=multiprocessing) as loader,
        pytest.raises(WorkerError, match="collate_fn raised StopIteration"),
    ):
        got.extend(loader)
    assert [batch.tolist() for batch in got] == [[0, 1], [2, 3]]


@both_modes
def test_a_sampler_that_yields_none_is_an_error_and_no_end(multiprocessing, processes):
    class Sampler:
        def __iter__(self):
            return iter(["a", None, "b"])

    with make(Sampler(), lambda shard: [shard], multiprocessing=multiprocessing) as loader:
        for _ in range(2):
            got = []
            with pytest.raises(ConfigurationError, match=r"shard_sampler\[1\] = None"):
                got.extend(loader)
            assert got == ["a"]


@both_modes
@pytest.mark.parametrize("notes", [None, 5, ("a",), [7]], ids=repr)
def test_notes_that_are_no_notes_hide_no_error(multiprocessing, notes, processes):
    def factory(shard):
        yield 0
        error = ValueError("mine")
        error.__notes__ = notes
        raise error

    with (
        make(["a"], factory, multiprocessing=multiprocessing) as loader,
        pytest.raises(ValueError, check=lambda error: error.args == ("mine",)) as caught,
    ):
        list(loader)
    assert "microbatch 1 of shard 'a'" in str(caught.value.__notes__)
