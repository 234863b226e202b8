"""Rows that a window function makes of an iterable dataset: the same draws and the next row at every cut."""

import json
import os
import random
import signal
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from own_workers import worker_pids
from torch.utils.data import IterableDataset, get_worker_info

from fkat_data import ConfigurationError, DataLoader, StateMismatchError


class Plain(IterableDataset):
    """Numbers, each with a draw; each worker has its part."""

    def __init__(self, size):
        self.size = size
        self.at = 0

    def numbers(self):
        info = get_worker_info()
        return range(self.size) if info is None else range(info.id, self.size, info.num_workers)

    def __iter__(self):
        return ((number, random.random()) for number in self.numbers())


class Stateful(Plain):
    def __iter__(self):
        numbers = self.numbers()
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1], random.random()
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state_dict):
        self.at = state_dict["at"]


class OwnIterator(Stateful):
    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        numbers = self.numbers()
        if self.at >= len(numbers):
            raise StopIteration
        self.at += 1
        return numbers[self.at - 1], random.random()


class AllRanks(Stateful):
    counts_workers_of_all_ranks = True


KINDS = [Plain, Stateful, OwnIterator]


def rows_of(samples):
    return [(number, drawn, float(torch.rand(()))) for number, drawn in samples for _ in range(number % 3)]


def with_draw(rows):
    return [*rows, random.random()]


def make(kind, size, *, batch_size=4, window_size=5, **options):
    options = {"collate_fn": with_draw, "window_fn": rows_of, **options}
    return DataLoader(kind(size), batch_size, seed=2, window_size=window_size, **options)


shapes = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "size": st.integers(0, 30),
        "batch_size": st.sampled_from([1, 4, 9]),
        "window_size": st.sampled_from([1, 5, 40]),
        "snapshot_every_n_steps": st.sampled_from([0, 1, 3]),
        "drop_last": st.booleans(),
    }
)


@given(shapes, st.data())
def test_each_sample_gives_its_rows_and_a_state_goes_on_with_the_next_one(shape, data):
    with make(**shape) as loader:
        whole = list(loader)
    numbers = [row[0] for batch in whole for row in batch[:-1]]
    expected = [number for number in range(shape["size"]) for _ in range(number % 3)]
    assert numbers == (
        expected[: len(expected) // shape["batch_size"] * shape["batch_size"]] if shape["drop_last"] else expected
    )
    with make(**shape) as loader:
        second = [list(loader) for _ in range(2)][1]
    loader, had = make(**shape), []
    for cut in sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3))):
        had += islice(loader, max(0, cut - len(had)))
        state = json.loads(json.dumps(loader.state_dict()))
        loader = make(**shape)
        loader.load_state_dict(state)
    assert had + (list(loader) if loader.epoch == 0 else []) == whole
    assert list(loader) == second


@pytest.mark.parametrize("kind", KINDS)
def test_workers_make_the_rows_of_their_parts_and_are_replaced(processes, kind):
    options = {"num_workers": 2, "max_worker_restarts": 2}
    with make(kind, 60, **options) as loader:
        epochs = [list(loader) for _ in range(2)]
        assert sorted(row[0] for batch in epochs[0] for row in batch[:-1]) == [
            number for number in range(60) for _ in range(number % 3)
        ]
    with make(kind, 60, **options) as loader, make(kind, 60, **options) as resumed:
        found = []
        for step, batch in enumerate(loader):
            found.append(batch)
            if step in (2, 9):
                os.kill(worker_pids()[-1], signal.SIGKILL)
            if step == 5:
                state = loader.state_dict()
        assert found == epochs[0]
        resumed.load_state_dict(state)
        assert [list(resumed) for _ in range(2)] == [epochs[0][6:], epochs[1]]


def test_other_ranks_go_on_with_the_strands_of_those_before(processes):
    def ranks_of(count, num_workers):
        loaders = [make(AllRanks, 60, num_workers=num_workers) for _ in range(count)]
        for rank, loader in enumerate(loaders):
            loader.deal_out(count, rank)
        return loaders

    before, (one,) = ranks_of(2, 1), ranks_of(1, 2)
    had = [row[0] for loader in before for batch in islice(loader, 3) for row in batch[:-1]]
    one.load_state_dict(DataLoader.merge_state_dicts([loader.local_state_dict() for loader in before]))
    had += [row[0] for batch in one for row in batch[:-1]]
    for loader in (*before, one):
        loader.close()
    assert sorted(had) == [number for number in range(60) for _ in range(number % 3)]


def test_what_does_not_fit_is_refused_by_name():
    windowed = make(Plain, 9)
    list(islice(windowed, 1))
    plain = DataLoader(Plain(9), 4, seed=2)
    for loader, state in (
        (plain, windowed.state_dict()),
        (windowed, plain.state_dict()),
        (make(Plain, 9, window_fn=list), windowed.state_dict()),
    ):
        with pytest.raises(StateMismatchError, match="window_"):
            loader.load_state_dict(state)
    with pytest.raises(ConfigurationError, match="on_sample_error"):
        DataLoader(Plain(9), 4, on_sample_error="skip")
    with pytest.raises(TypeError, match="not known"):
        len(windowed)


def test_a_function_that_fails_says_which_window_it_had():
    def failing(samples):
        raise ValueError("no rows")

    with pytest.raises(ValueError, match="no rows") as caught:
        list(make(Plain, 9, window_fn=failing))
    assert any("window 0 of the dataset" in note for note in caught.value.__notes__)
