"""The loader's surface: arguments, iteration, its methods, its end."""

import copy
import gc
import inspect
import os
import pickle
import sys
import time
import weakref

import numpy as np
import pytest
import torch
from loader_examples import bounded, epoch, make, mixed, plain
from own_workers import parent_pids, worker_pids
from patience import Patience, check_in_time
from torch.utils.data import DataLoader
from walks import begun, both_modes, wait_until

from fkat_data import (
    ConfigurationError,
    DistributedDataParallelShardSampler,
    ShardedDataLoader,
    ShardSampler,
    ShuffledShardSampler,
    StaleIteratorError,
)
from fkat_data.testing import digest


class NoShards(ShardSampler):
    def shards(self, epoch):
        return []


GOOD = {"seed": 7, "shard_sampler": ["list-a-1"], "dataloader_factory": mixed, "multiprocessing": False}


BAD = [
    ("seed", "7", "an integer"),
    ("shard_sampler", None, "iterable of shards"),
    ("shard_sampler", "shards/*", "iterable of shards"),  # a text is an iterable, but of letters
    ("shard_sampler", NoShards(), "at least one shard"),
    ("shard_sampler", {"a", "b"}, "an ordered iterable"),
    ("dataloader_factory", None, "a callable"),
    ("num_shard_prefetches", -1, "at least 0"),
    ("num_microbatch_prefetches", -2, "at least -1"),
    ("dp_rank", -1, "at least 0"),
    ("profiler", "simple", "start(name) and stop(name)"),
    ("device", "gpu", "a torch device"),
    ("multiprocessing", "false", "true or false"),
    ("memory_limit_bytes", 1000, "at least 1048576"),
    ("zero_copy", None, "true or false"),
    ("max_worker_restarts", -1, "at least 0"),
    ("on_shard_error", "ignore", "raise"),
    ("max_skipped_shards", -1, "at least 0"),
    ("stall_warning_s", 0, "greater than 0"),
    ("stall_timeout_s", -1, "greater than 0"),
    ("replica_group", [0], "torch.distributed to be initialised"),
    ("check_ranks_every", 0, "at least 1"),
    ("check_ranks_every", 5, "torch.distributed to be initialised"),
    ("commit", "later", "one of"),
    ("max_outstanding", 0, "at least 1"),
    ("epochs_ahead", 2, "from 0 to 1"),
    ("mesh", [[0, 1]], "a torch DeviceMesh"),
    ("dp_dims", "dp", "None without a mesh"),
    ("share_workers", "yes", "true or false"),
    ("start_method", "forkserver", "'template', 'spawn', 'fork'"),
    ("trace", 5, "path"),
    ("workers", "fibers", "'processes', 'threads', or fkat_data.ray.Actors(...)"),
    ("num_workers_per_shard", 0, "at least 1"),
]


def test_every_argument_is_among_those_that_are_checked():
    assert set(inspect.signature(ShardedDataLoader).parameters) == {argument for argument, *_ in BAD}


@pytest.mark.parametrize(("argument", "value", "expected"), BAD)
def test_every_argument_is_checked_by_name_and_value(argument, value, expected):
    with pytest.raises(ConfigurationError) as caught:
        ShardedDataLoader(**{**GOOD, argument: value})
    assert str(caught.value).startswith(argument)
    assert expected in str(caught.value)
    if not isinstance(value, (list, set, ShardSampler)):
        assert repr(value) in str(caught.value)


SPLIT = ["list-a-2", "list-b-2", "list-c-2", "list-d-2"]


def split(dp_rank):
    return DistributedDataParallelShardSampler(SPLIT, 2, dp_rank)


@pytest.mark.parametrize("around", [lambda inside: inside, lambda inside: ShuffledShardSampler(inside, seed=3)])
@pytest.mark.parametrize("dp_rank", [0, 1])
def test_a_loader_has_the_rank_of_its_sampler(dp_rank, around):
    assert epoch(make(around(split(dp_rank)))) == epoch(make(around(split(dp_rank)), dp_rank=dp_rank))


@pytest.mark.parametrize(("dp_rank", "of_sampler"), [(0, 1), (1, 0), (5, 1)])
def test_another_rank_than_the_samplers_is_refused(dp_rank, of_sampler):
    with pytest.raises(ConfigurationError, match=rf"dp_rank = {dp_rank}: expected {of_sampler}, as its shard_sampler"):
        make(split(of_sampler), dp_rank=dp_rank)


def test_a_sampler_that_splits_nothing_says_nothing():
    assert make(SPLIT).local_state_dict()["fingerprint"]["dp_rank"] == 0
    assert make(ShuffledShardSampler(SPLIT), dp_rank=3).local_state_dict()["fingerprint"]["dp_rank"] == 3


# --- iteration ---------------------------------------------------------------------------------------------------


@both_modes
def test_each_loop_is_one_epoch(multiprocessing):
    with make(["list-a-2", "map-b-3"], multiprocessing=multiprocessing) as loader:
        first, second = epoch(loader), epoch(loader)
    assert len(first) == len(second) == 4
    assert first != second  # other draws


@pytest.mark.parametrize(
    ("multiprocessing", "num_shards_ahead", "num_microbatches_ahead"),
    [(False, 1, 2), (True, 0, 0), (True, 0, sys.maxsize), (True, 1, -1), (True, 2, 2)],
)
def test_a_loop_that_is_left_is_followed_by_a_whole_epoch(multiprocessing, num_shards_ahead, num_microbatches_ahead):
    options = {"num_shard_prefetches": num_shards_ahead, "num_microbatch_prefetches": num_microbatches_ahead}
    whole = [epoch(loader) for loader in [make()] for _ in range(4)]
    with make(multiprocessing=multiprocessing, **options) as loader:
        for left in (1, 3):
            number = loader.epoch
            for count, microbatch in enumerate(loader, start=1):
                assert plain(microbatch) == whole[number][count - 1]
                if count == left:
                    break
            assert bounded(lambda: epoch(loader), loader) == whole[number + 1]


@both_modes
def test_a_newer_iterator_replaces_the_older(multiprocessing):
    whole = [epoch(loader) for loader in [make()] for _ in range(2)]
    with make(multiprocessing=multiprocessing) as loader:
        older = begun(loader, 1)
        newer = iter(loader)
        for _ in range(2):
            with pytest.raises(StaleIteratorError):
                next(older)
        assert [plain(microbatch) for microbatch in newer] == whole[1]


def test_an_iterator_that_is_over_stays_over():
    with make() as loader:
        iterator = iter(loader)
        list(iterator)
        assert list(iterator) == []
        iter(loader)
        assert list(iterator) == []


@both_modes
def test_an_epoch_of_empty_shards_is_empty(multiprocessing):
    with make(["list-a-0", "stream-b-0"], multiprocessing=multiprocessing) as loader:
        assert epoch(loader) == epoch(loader) == []
        assert loader.epoch == 2


@both_modes
def test_load_batch_sync_goes_through_one_epoch_after_the_other(multiprocessing):
    whole = [epoch(loader) for loader in [make()] for _ in range(2)]
    with make(multiprocessing=multiprocessing) as loader:
        for number in range(2):
            got = []
            for _ in whole[number]:
                loader.load_batch()
                got.append(plain(loader.load_batch_sync()))
            with pytest.raises(StopIteration):
                loader.load_batch_sync()
            assert got == whole[number]


@both_modes
def test_load_batch_and_prefetch_shards_begin_an_epoch_and_change_no_order(multiprocessing):
    whole = [epoch(loader) for loader in [make()] for _ in range(2)]
    with make(multiprocessing=multiprocessing) as loader:
        loader.load_batch()
        loader.prefetch_shards(3)
        got = []
        for count, microbatch in enumerate(loader):
            got.append(plain(microbatch))
            loader.load_batch()
            if count % 2:
                loader.prefetch_shards(1)
        loader.prefetch_shards(100)  # more than there are, of the next epoch
        assert [got, epoch(loader)] == whole


def settled(folder):
    """The names that were written down, once nothing more comes."""
    before, now, quiet_s, patience = None, set(), 0.0, Patience()
    while (not now or now != before or quiet_s < 0.5) and not patience.is_over():
        quiet_s = quiet_s + 0.05 if now == before else 0.0
        before = now
        time.sleep(0.05)
        now = {path.name for path in folder.iterdir()}
    return sorted(now)


@pytest.mark.parametrize("num_shards_ahead", [0, 2])
def test_as_many_shards_are_in_work_ahead_as_was_said(remote, num_shards_ahead, tmp_path):
    def factory(shard):
        (tmp_path / shard).touch()
        yield from range(3)

    shards = ["0", "1", "2", "3", "4", "5"]
    with remote(shards, factory, num_shard_prefetches=num_shards_ahead) as loader:
        next(iter(loader))
        # Shards that share a worker are made one after the other, each as far as memory allows.
        assert settled(tmp_path) == shards[: 1 + num_shards_ahead]


@pytest.mark.parametrize(("num_microbatches_ahead", "kind"), [(0, list), (3, list), (1, iter)])
def test_no_more_microbatches_are_made_ahead_than_was_said(remote, num_microbatches_ahead, kind, tmp_path):
    class Shard:
        def __len__(self):
            return 9

        def __getitem__(self, index):
            (tmp_path / str(index)).touch()
            return torch.tensor([index])

    def factory(shard):
        return DataLoader(Shard(), batch_size=None) if kind is list else map(Shard().__getitem__, range(9))

    one_more = kind is iter  # a microbatch is delivered when it is known whether it is the last
    with remote(["0"], factory, num_microbatch_prefetches=num_microbatches_ahead) as loader:
        microbatches = iter(loader)
        for delivered in (1, 2, 5):
            while loader.step < delivered:
                next(microbatches)
            assert len(settled(tmp_path)) == min(9, delivered + max(num_microbatches_ahead, one_more))


@pytest.mark.parametrize("count", [-1, None, "1", 1.0])
def test_prefetch_shards_takes_a_number_of_shards(count):
    with pytest.raises(ConfigurationError, match="count"):
        make().prefetch_shards(count)


# --- devices -----------------------------------------------------------------------------------------------------


@both_modes
def test_microbatches_are_delivered_to_the_device_of_their_time_and_the_rest_left_as_it_is(multiprocessing):
    with make(["skip-a-6"], multiprocessing=multiprocessing, device="meta") as loader:
        kinds = []
        for count, microbatch in enumerate(loader):
            kinds.append(microbatch["sample"].device.type)
            assert microbatch["text"].startswith("skip-a-6")
            loader.set_device((None, "cpu", "meta")[count % 3])
        assert (len(kinds), kinds[0], set(kinds)) == (6, "meta", {"cpu", "meta"})
    with pytest.raises(ConfigurationError, match="device"):
        loader.set_device("nowhere")


# --- the end -----------------------------------------------------------------------------------------------------


def test_a_loader_that_is_dropped_ends_its_workers(remote):
    loader = remote(num_shard_prefetches=2)
    next(iter(loader))
    assert len(worker_pids()) == 2
    reference = weakref.ref(loader)
    del loader
    gc.collect()
    assert reference() is None
    wait_until(lambda: not worker_pids() and not parent_pids())


def number_of_process(shard):
    return [torch.tensor(os.getpid())]


def test_the_constructor_does_not_wait_for_the_workers(remote):
    def attempt():
        began = time.monotonic()
        loader = remote(["a"], number_of_process, num_shard_prefetches=2)
        took = time.monotonic() - began
        next(iter(loader))
        whole = time.monotonic() - began
        loader.close()
        return took / whole

    check_in_time(0.5, attempt)


def test_workers_survive_across_epochs(remote):
    with remote(["a", "b"], number_of_process) as loader:
        pids = {int(pid) for _ in range(3) for pid in loader}
        assert len(pids) == 1
        assert pids != {os.getpid()}


def test_statistics_count_what_the_caller_received(remote):
    def factory(shard):
        return [torch.zeros(10_000, dtype=torch.uint8) for _ in range(3)]

    with remote(["a"], factory) as loader:
        assert loader.statistics().delivered == 0
        assert loader.statistics().verdict.limit == "none"
        kept = list(loader)
        statistics = loader.statistics()
        assert statistics.delivered == 3
        assert 30_000 <= statistics.delivered_bytes < 31_000
        assert statistics.held_bytes >= 30_000
        assert statistics.num_segments == 3
        kept.clear()
        assert loader.statistics().held_bytes == 0


# --- microbatches of every kind, through a real process ----------------------------------------------------------


def test_microbatches_of_every_size_and_kind_come_through_a_process(remote):
    def factory(shard):
        rng = np.random.default_rng(0)
        yield None
        yield "text"
        yield ["long text " * 5000, "é" * 40_000]  # an envelope longer than the socket's share
        yield {"array": rng.random((100, 100)), "text": "x" * 30_000, "tensor": torch.arange(5000)}
        yield [torch.tensor(index) for index in range(3000)]  # many small parts: a long envelope too
        yield rng.integers(0, 9, 3, dtype=np.uint8)
        yield torch.empty(0, 4)
        yield torch.arange(256, dtype=torch.float64)  # right at the bound of what travels in the message
        yield torch.arange(257, dtype=torch.float64)
        yield torch.arange(3_000_000, dtype=torch.int32)
        yield [{"nested": [torch.ones(2, 2).T, (1, b"x" * 100_000)]}]

    expected = list(factory(""))
    for zero_copy in (True, False):
        with remote(["a"], factory, zero_copy=zero_copy) as loader:
            for _ in range(2):
                assert [*map(digest, list(loader))] == [*map(digest, expected)]
            if not zero_copy:
                assert loader.statistics().held_bytes == 0


class SharedLoader(ShardedDataLoader):
    pass


@pytest.mark.parametrize("copied_by", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_and_its_iterators_are_not_copied_by_accident(copied_by):
    loader = SharedLoader(1, ["0"], range, multiprocessing=False)
    for refused, name in ((loader, "^a SharedLoader"), (iter(loader), "^an iterator of a SharedLoader")):
        with pytest.raises(TypeError, match=f"{name} cannot be pickled or copied"):
            copied_by(refused)


def test_the_shards_of_the_epoch_are_known_before_it_begins():
    sampler = ShuffledShardSampler(["a", "b", "c"], seed=3)
    with ShardedDataLoader(0, sampler, lambda shard: [shard], multiprocessing=False) as loader:
        for epoch in range(2):
            assert loader.shards() == list(sampler.shards(epoch)) == list(loader)
    with ShardedDataLoader(0, iter(["a"]), lambda shard: [shard], multiprocessing=False) as loader:
        assert loader.shards() is None
