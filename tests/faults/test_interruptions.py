"""What is raised in the caller's thread reaches the caller, once, and the loop goes on where it was."""

import functools
import gc
import os

import pytest
import torch
from interruption_sweep import Interruptions

from fkat_data import ShardedDataLoader

SIZES = {"a": 4, "empty": 0, "b": 6, "c": 3}
#: The second is large enough for shared memory.
NUM_ELEMENTS = (4, 20_000)


class Preempted(Exception):  # noqa: N818 - as a user may call it
    """What a handler of SIGTERM may raise."""


class Samples(torch.utils.data.Dataset):
    def __init__(self, shard):
        self.shard = shard

    def __len__(self):
        return SIZES[self.shard]

    def __getitem__(self, index):
        return microbatch_of(self.shard, index)


def microbatch_of(shard, index):
    number = 100 * list(SIZES).index(shard) + index
    return {str(size): torch.full((size,), number) for size in NUM_ELEMENTS}


def known(shard):
    return torch.utils.data.DataLoader(Samples(shard), batch_size=None)


def unknown(shard):
    for index in range(SIZES[shard]):
        yield microbatch_of(shard, index)


def number_of(microbatch):
    numbers = {int(value) for tensor in microbatch.values() for value in (tensor[0], tensor[-1])}
    assert len(numbers) == 1, numbers
    return numbers.pop()


EXPECTED = [100 * place + index for place, size in enumerate(SIZES.values()) for index in range(size)]


def uninterrupted(interruptions, function, *arguments, check=lambda: None):
    """Call until the call is not interrupted; check after each that was."""
    while True:
        result, is_interrupted = interruptions.call(function, *arguments)
        if not is_interrupted:
            return result
        check()


def check_epoch(loader, interruptions, epoch, resumes_at):
    """Go through an epoch; take a state at a position, and load it again two microbatches later."""
    call = functools.partial(uninterrupted, interruptions)
    position, state = 0, None
    iterator = call(iter, loader)

    def check_position():
        assert (loader.epoch, loader.step) == (epoch, position), interruptions.last_site
        assert loader.state_dict()["all_rank_steps"] == [position], interruptions.last_site

    while position < len(EXPECTED):
        if position % 3 == 1:
            call(loader.load_batch, check=check_position)
        if position % 5 == 2:
            call(loader.prefetch_shards, 1, check=check_position)
        take = functools.partial(next, iterator) if position % 4 != 3 else loader.load_batch_sync
        microbatch = call(take, check=check_position)
        assert number_of(microbatch) == EXPECTED[position], interruptions.last_site
        position += 1
        if position < len(EXPECTED):
            check_position()
        if position == resumes_at:
            state = call(loader.state_dict)
        if state is not None and position == resumes_at + 2:
            call(loader.load_state_dict, state)
            position, state = resumes_at, None
            iterator = call(iter, loader, check=check_position)
            resumes_at = -1
    with pytest.raises(StopIteration):
        call(next, iterator)
    assert (loader.epoch, loader.step) == (epoch + 1, 0)


def sweep(make, interruptions):
    with interruptions:
        loader = uninterrupted(interruptions, make)
        epoch, num_before = 0, -1
        while interruptions.num_raised > num_before:
            num_before = interruptions.num_raised
            check_epoch(loader, interruptions, epoch, resumes_at=3 + epoch % 6)
            epoch += 1
            if epoch % 3 == 0:
                uninterrupted(interruptions, loader.close)
        uninterrupted(interruptions, loader.close)
        loader.close()
        del loader
        gc.collect()
    assert not interruptions.swallowed


WAYS = {
    "in process": {"multiprocessing": False},
    "one worker": {},
    "two shards at once": {"num_shard_prefetches": 2, "num_microbatch_prefetches": 2},
    "two workers a shard": {"num_workers_per_shard": 2},
}


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("error", [KeyboardInterrupt, Preempted])
@pytest.mark.parametrize("factory", [known, unknown])
@pytest.mark.parametrize("way", WAYS)
def test_after_an_interruption_at_any_instruction_the_loop_goes_on_where_it_was(way, factory, error):

    interruptions = Interruptions(error, int(os.environ.get("SHARE", "10")), int(os.environ.get("OFFSET", "0")))
    sweep(lambda: ShardedDataLoader(0, list(SIZES), factory, **WAYS[way]), interruptions)
    print(way, factory.__name__, error.__name__, interruptions.num_raised)
    assert interruptions.num_raised > 100
