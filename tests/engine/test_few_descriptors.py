"""A trainer that has too many open files for a while: errors that say so, then the rest of the epoch."""

import os
import resource

import pytest
import torch

from fkat_data import ShardedDataLoader

COUNT = 40


def growing(shard):
    """Each microbatch needs a larger segment than the one before, whose descriptor travels to the trainer."""
    for index in range(COUNT):
        yield torch.full((20_000 * (index + 1),), index)


@pytest.mark.parametrize("start_method", ["template", "spawn", "fork"])
def test_after_too_many_open_files_the_epoch_goes_on_where_it_was(start_method, processes):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    got, errors = [], []
    with ShardedDataLoader(0, ["a"], growing, num_microbatch_prefetches=0, start_method=start_method) as loader:
        iterator = iter(loader)
        while len(got) < COUNT:
            if len(got) == 5 and len(errors) < 3:
                lowest_free = os.dup(0)
                os.close(lowest_free)
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
            try:
                got.append(int(next(iterator)[0]))
            except Exception as error:  # noqa: BLE001 - which one is looked at below
                errors.append(str(error))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert loader.step == len(got) or len(got) == COUNT
    assert got == list(range(COUNT))
    assert errors
    assert all("too many open files" in text.lower() for text in errors), errors
