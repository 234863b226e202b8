"""Every small state of workers in threads: each case ends, and gives what a plain list does."""

import contextlib
import random
import threading
from functools import partial
from itertools import islice, product

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset

from fkat_data import ConfigurationError, DataLoader, ShardedDataLoader

# What none of the cases takes, however slow the machine is.
LONGEST_S = 120.0
SIZES = [sizes for num_shards in range(1, 5) for sizes in product(range(3), repeat=num_shards)]


class Items(Dataset):
    """The items of a shard, whose name is ``kind-index-size``; those of a kind ``bad`` raise at the last."""

    def __init__(self, shard):
        self.kind, index, size = shard.split("-")
        self.index, self.size = int(index), int(size)

    def __len__(self):
        return self.size

    def __getitem__(self, position):
        if self.kind.startswith("bad") and position == self.size - 1:
            raise ValueError("bad")
        return torch.tensor([self.index, position])


class Stream(Items, IterableDataset):
    def __iter__(self):
        return map(self.__getitem__, range(self.size))


def generate(items):
    for position in range(items.size):
        yield items[position][None]


def opened(shard):
    kind = shard.split("-")[0]
    if kind.endswith("generator"):
        return generate(Items(shard))
    return TorchDataLoader(Stream(shard) if kind == "stream" else Items(shard), batch_size=1)


def taken(iterator, count=None):
    """What the iterator gives, as tuples; at an error of the dataset's, what came before."""
    found = []
    with contextlib.suppress(ValueError):
        found.extend(tuple(microbatch.flatten().tolist()) for microbatch in islice(iterator, count))
    return found


def whole_epochs(loader, due):
    return [taken(loader) for _ in range(3)] == [due] * 3


def left_after_one(loader, due):
    return (taken(loader, 1), taken(loader)) == (due[:1], due)


def closed_after_one(loader, due):
    first = taken(loader, 1)
    loader.close()
    return (first, taken(loader)) == (due[:1], due)


def resumed_after_one(loader, due):
    first = taken(loader, 1)
    loader.load_state_dict(loader.state_dict())
    return (first, taken(loader)) == (due[:1], due[1:] or due)


def begun_twice(loader, due):
    return taken(iter(loader), 0) == [] and taken(loader) == due


def taken_back(loader, due):
    iterator = iter(loader)
    return taken(iterator, 1) == due[:1] and loader.take_back() == bool(due) and taken(iterator) == due


def ended_after_one(loader, due):
    first = taken(loader, 1)
    loader.end_epoch()
    return (first, taken(loader)) == (due[:1], due)


def more_shards(loader, due):
    loader.prefetch_shards(2)
    return whole_epochs(loader, due)


def up_to_an_error(loader, due):
    """Only the last shard may raise, at its last microbatch; the error stays, and a new iteration begins the next epoch."""
    iterator = iter(loader)
    return [taken(iterator), taken(iterator), taken(loader)] == [due, [], due]


WALKS = [
    whole_epochs,
    left_after_one,
    closed_after_one,
    resumed_after_one,
    begun_twice,
    taken_back,
    ended_after_one,
]


def ends_right(make, walk, due, *, is_made_here):
    """Walk in a thread, with a loader made there or here; return whether it ends, and gives what is due."""
    found = []
    made = [make()] if is_made_here else []

    def run():
        with made.pop() if made else make() as loader:
            found.append(walk(loader, due))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONGEST_S)
    return found == [True]


def of_shards(kind, sizes, num_workers, num_shards, num_microbatches, **options):
    shards = [f"{kind}-{index}-{size}" for index, size in enumerate(sizes)]
    return ShardedDataLoader(
        0,
        shards,
        opened,
        workers="threads",
        num_workers_per_shard=num_workers,
        num_shard_prefetches=num_shards,
        num_microbatch_prefetches=num_microbatches,
        **options,
    )


def due_of(sizes):
    return [(index, position) for index, size in enumerate(sizes) for position in range(size)]


def test_each_case_of_shards_in_threads_ends_and_gives_every_microbatch(some):
    for setting in some(product(SIZES, (1, 2, 3), (0, 1, 2))):
        kind, bound = random.choice(["map", "stream", "generator"]), random.choice([-1, 0, 1])
        walk, is_made_here = random.choice([*WALKS, more_shards]), random.random() < 0.5
        is_right = ends_right(
            partial(of_shards, kind, *setting, bound), walk, due_of(setting[0]), is_made_here=is_made_here
        )
        assert is_right, (kind, *setting, bound, walk.__name__, is_made_here)


@pytest.mark.parametrize("num_shards", [0, 2])
@pytest.mark.parametrize("sizes", [(0, 5), (0, 1, 0, 5, 0)])
def test_a_first_shard_that_is_empty_holds_up_no_thread(sizes, num_shards):
    make = partial(of_shards, "map", sizes, 1, num_shards, -1)
    assert ends_right(make, whole_epochs, due_of(sizes), is_made_here=True)


def test_an_error_in_a_thread_comes_in_its_turn_and_none_waits_for_what_is_behind_it(some):
    for setting in some(product(SIZES, (1, 2, 3), (0, 2))):
        sizes, kind, bound = setting[0], random.choice(["bad", "badgenerator"]), random.choice([-1, 0, 1])
        is_skipped = random.random() < 0.5
        # Each shard that has items raises at its last one.
        kept = [(index, position) for index, size in enumerate(sizes) for position in range(size - 1)]
        first = next((index for index, size in enumerate(sizes) if size), 0)
        due = kept if is_skipped else [each for each in kept if each[0] == first]
        options = {"on_shard_error": "skip", "max_skipped_shards": 9} if is_skipped else {}
        make = partial(of_shards, kind, *setting, bound, **options)
        assert ends_right(make, up_to_an_error, due, is_made_here=True), (kind, *setting, bound, options)


class Numbers(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor(index)


def every_second_twice(rows):
    return [row for row in rows if row % 2 for _ in range(2)]


def of_indices(num_samples, batch_size, num_workers, prefetch_factor, window_size):
    options = {"window_fn": every_second_twice, "window_size": window_size} if window_size else {}
    return DataLoader(
        Numbers(num_samples),
        batch_size,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        workers="threads",
        **options,
    )


def test_each_case_of_indices_and_windows_in_threads_ends_and_gives_every_microbatch(some):
    for setting in some(product(range(7), (1, 2, 3), (1, 2, 3), (None, 1, 2), (0, 1, 2, 3)), 30):
        num_samples, batch_size, *_, window_size = setting
        rows = list(range(num_samples))
        rows = every_second_twice(rows) if window_size else rows
        due = [tuple(rows[first : first + batch_size]) for first in range(0, len(rows), batch_size)]
        walk, is_made_here = random.choice(WALKS), random.random() < 0.5
        is_right = ends_right(partial(of_indices, *setting), walk, due, is_made_here=is_made_here)
        assert is_right, (*setting, walk.__name__, is_made_here)


class Drawn(IterableDataset):
    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        yield self.draw()
        yield self.draw()


def of_drawn(loader_type, draw, shard):
    del shard
    return loader_type(Drawn(draw), batch_size=1, collate_fn=list)


DRAWS = {
    "python's": random.random,
    "numpy's": lambda: float(np.random.random()),
    "torch's": lambda: float(torch.rand(())),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("loader_type", [TorchDataLoader, DataLoader])
def test_a_shards_own_loader_that_draws_from_the_programs_generators_is_refused_in_threads(loader_type, draw):
    factory = partial(of_drawn, loader_type, DRAWS[draw])
    with (
        ShardedDataLoader(7, ["a"], factory, workers="threads") as loader,
        pytest.raises(ConfigurationError, match=f"^workers = 'threads'.*the program: {draw}"),
    ):
        list(loader)


@pytest.mark.parametrize("loader_type", [TorchDataLoader, DataLoader])
def test_a_shards_own_loader_leaves_the_programs_generators_alone_in_threads(loader_type):
    def factory(shard):
        return loader_type(Items(shard), batch_size=2, shuffle=True)

    in_process = list(ShardedDataLoader(7, ["map-0-5"], factory, multiprocessing=False))
    before = torch.get_rng_state()
    with ShardedDataLoader(7, ["map-0-5"], factory, workers="threads", num_workers_per_shard=2) as loader:
        assert [each.tolist() for each in loader] == [each.tolist() for each in in_process]
    assert torch.equal(torch.get_rng_state(), before)
