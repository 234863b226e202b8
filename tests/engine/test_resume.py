import io
import os
import signal
from itertools import count, islice

import numpy as np
import pytest
import torch
from drop_in_examples import Lazy
from loader_examples import MIXED, MapDataset, epoch, following, generators, make, plain, same_state
from own_sampler_examples import StatefulIterator
from own_workers import worker_pids
from torch.utils.data import DataLoader
from walks import at_state, begun, recorded, wait_until

from fkat_data import DistributedDataParallelShardSampler, ShuffledShardSampler
from fkat_data.errors import StaleIteratorError

NUM_EPOCHS = 2


def shuffled(seed=3):
    return ShuffledShardSampler(MIXED, seed)


@pytest.fixture(scope="module")
def uninterrupted():
    """What a run in process yields that nothing stops: its microbatches, and the state before each and at the end."""
    return recorded(make(shuffled()), plain, NUM_EPOCHS)


@pytest.mark.long
@pytest.mark.parametrize("num_shards_ahead", [0, 1, 3])
@pytest.mark.parametrize("num_microbatches_ahead", [-1, 0, 2])
def test_a_run_in_process_resumes_exactly_from_every_position(uninterrupted, num_shards_ahead, num_microbatches_ahead):
    microbatches, states = uninterrupted
    options = {"num_shard_prefetches": num_shards_ahead, "num_microbatch_prefetches": num_microbatches_ahead}
    for position, state in enumerate(states):
        loader = at_state(make(shuffled(), **options), state)
        assert following(loader, len(microbatches) - position) == microbatches[position:]


def test_every_state_of_an_epochs_end_is_the_next_epochs_start():
    # No empty shard at the end: the plan sees at the last microbatch that nothing follows.
    for shards in (["map-a-3"], ["stream-a-3"], ["list-a-2", "generator-b-2"], ["map-z-0", "skip-a-1"]):
        last = recorded(make(shards), plain)[1][-1]
        assert last["epoch"] == 1
        assert last["all_rank_indices"] == (torch.tensor(-1),)
        assert last["all_rank_microbatches"] == last["all_rank_steps"] == [0]


def test_a_state_before_empty_shards_at_the_end_resumes_in_the_next_epoch():
    shards = ["map-a-3", "map-y-0", "stream-z-0"]
    whole = following(make(shards), 6)
    assert epoch(at_state(make(shards), recorded(make(shards), plain)[1][-1])) == whole[2:4]


def test_the_state_is_the_same_whenever_and_how_often_it_is_taken_and_whatever_is_ahead():
    states = []
    for options in ({}, {"num_shard_prefetches": 3}, {"num_microbatch_prefetches": 0}, {"device": "meta"}):
        loader = make(**options)
        iterator = iter(loader)
        next(iterator)
        states.append(loader.state_dict())
        loader.load_batch()
        loader.prefetch_shards(2)
        states.append(loader.state_dict())
    assert all(same_state(state, states[0]) for state in states)


def test_a_state_loaded_while_an_iteration_runs_takes_effect_at_the_next(uninterrupted):
    microbatches, states = uninterrupted
    loader = make(shuffled())
    iterator = begun(loader, 1)
    loader.load_state_dict(states[3])
    with pytest.raises(RuntimeError, match="loaded a state"):
        next(iterator)
    assert following(loader, len(microbatches) - 3) == microbatches[3:]


def test_a_refused_state_changes_nothing(uninterrupted):
    microbatches, states = uninterrupted
    loader = make(shuffled())
    iterator = begun(loader, 1)
    foreign = {**states[3], "fingerprint": {**states[3]["fingerprint"], "seed": 8}}
    with pytest.raises(ValueError, match=r"fingerprint\.seed"):
        loader.load_state_dict(foreign)
    assert plain(next(iterator)) == microbatches[1]


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("fingerprint.seed", lambda: make(shuffled(), seed=8)),
        ("fingerprint.dp_rank", lambda: make(shuffled(), dp_rank=1)),
        ("fingerprint.num_shards", lambda: make(MIXED[:-1])),
        ("fingerprint.shards", lambda: make(shuffled(seed=4))),
    ],
)
def test_a_state_of_another_plan_is_refused_by_the_name_of_what_differs(uninterrupted, field, other):
    _, states = uninterrupted
    with pytest.raises(ValueError, match=field):
        other().load_state_dict(states[4])


def test_the_local_state_asks_nothing_of_a_worker(remote):
    with remote(["list-a-9"]) as loader:
        next(iter(loader))
        state = loader.local_state_dict()
        for pid in worker_pids():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not worker_pids())
        assert loader.local_state_dict() == state


@pytest.mark.long
@pytest.mark.parametrize("num_delivered", [0, 500])
def test_the_state_of_eight_ranks_is_small(num_delivered):
    shards = [f"s3://bucket/a-rather-long-prefix/list-{index:05d}-3" for index in range(4096)]
    ranks = [
        make(DistributedDataParallelShardSampler(ShuffledShardSampler(shards, seed=1), 8, rank), lambda shard: range(3))
        for rank in range(8)
    ]
    for loader in ranks:
        list(islice(loader, num_delivered))
    state = make().merge_state_dicts([loader.local_state_dict() for loader in ranks])
    sizes_bytes = []
    for content in ({"model": 1}, {"model": 1, "loader": state}):
        file = io.BytesIO()
        torch.save(content, file)
        sizes_bytes.append(len(file.getvalue()))
    assert sizes_bytes[1] - sizes_bytes[0] < 2000


class Counting(MapDataset):
    loaded = 0

    def __getitem__(self, index):
        type(self).loaded += 1
        return super().__getitem__(index)


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [4, None])
def test_a_resume_deep_in_a_map_style_shard_loads_nothing_that_it_steps_over(batch_size):
    def factory(shard):
        return DataLoader(Counting(shard), batch_size=batch_size, shuffle=True)

    loader = make(["map-a-4000"], factory)
    whole = epoch(loader)
    loader.load_state_dict({"all_rank_indices": [-1], "all_rank_microbatches": [len(whole) - 2]})
    Counting.loaded = 0
    assert epoch(loader) == whole[-2:]
    assert Counting.loaded == 2 * (batch_size or 1)


class DrawingFromAll(Lazy):
    def __iter__(self):
        for index in super().__iter__():
            yield index ^ (int(np.random.randint(2)) * int(torch.randint(2, ())))


def test_a_sampler_that_draws_as_it_goes_resumes_exactly():
    def factory(shard):
        return DataLoader(MapDataset(shard), batch_size=3, sampler=DrawingFromAll(500))

    whole = epoch(make(["map-a-500"], factory))
    for position in (0, 1, 2, 3, 31, 63, 64, 65, 130, 166):
        loader = make(["map-a-500"], factory)
        loader.load_state_dict({"all_rank_indices": [-1], "all_rank_microbatches": [position]})
        assert epoch(loader) == whole[position:]


def test_ranks_with_one_dp_rank_draw_alike_and_others_do_not():
    first, twin, other = (epoch(make(dp_rank=dp_rank)) for dp_rank in (1, 1, 2))
    assert first == twin
    assert first != other


@pytest.mark.parametrize("multiprocessing", [False, True])
def test_the_callers_generators_are_left_alone(multiprocessing):
    before = generators()
    loader = make(num_shard_prefetches=2, multiprocessing=multiprocessing)
    for _ in loader:
        loader.state_dict()
    loader.load_state_dict(loader.state_dict())
    next(iter(loader))
    loader.close()
    assert generators() == before


# --- users' own samplers ---------------------------------------------------------------------------------------


class Endless:
    def __iter__(self):
        for index in count():
            yield f"list-{index}-1"


class EndlessWithAState:
    """The loader iterates over this very object."""

    def __init__(self):
        self.first = 0

    def __iter__(self):
        while True:
            self.first += 1
            yield f"list-{self.first}-1"

    def state_dict(self):
        return {"first": self.first}

    def load_state_dict(self, state_dict):
        self.first = state_dict["first"]


def test_after_a_loop_that_was_left_a_stateful_iterators_next_epoch_does_not_hang_on_prefetching():
    lengths = set()
    for num_shards_ahead in (0, 1, 2, 3):
        loader = make(StatefulIterator(), num_shard_prefetches=num_shards_ahead)
        next(iter(loader))
        lengths.add(len(epoch(loader)))
    assert len(lengths) == 1


@pytest.mark.parametrize("sampler", [Endless, EndlessWithAState])
def test_an_endless_sampler_resumes_exactly(sampler):
    whole = following(make(sampler(), num_shard_prefetches=2), 40)
    for position in (0, 1, 17, 39):
        loader = make(sampler())
        begun(loader, position)
        resumed = at_state(make(sampler(), num_shard_prefetches=3), loader.state_dict())
        assert following(resumed, 40 - position) == whole[position:]


def test_a_shard_may_be_a_group_of_uris():
    seen = []

    def factory(shard):
        seen.append(shard)
        return [shard]

    assert list(make([["a", "b"], ["c"], "d"], factory)) == [["a", "b"], ["c"], "d"]
    assert seen == [["a", "b"], ["c"], "d"]


@pytest.mark.parametrize("num_shards_ahead", [0, 2])
def test_a_sampler_that_can_be_read_once_gives_one_epoch_and_then_says_so(num_shards_ahead):
    loader = make(iter(["list-a-2", "list-b-2"]), num_shard_prefetches=num_shards_ahead)
    assert len(epoch(loader)) == 4
    for _ in range(2):
        with pytest.raises(ValueError, match="can be read only once"):
            epoch(loader)
    loader = make(iter(["list-a-1", "list-b-1", "list-c-1"]))
    begun(loader, 1)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="can be read only once"):
        epoch(loader)


@pytest.mark.parametrize("shards", [MIXED, ["list-a-2"]])
def test_an_epoch_that_is_ended_after_a_load_is_one_that_was_left(shards):
    """At each place of it; where nothing was delivered, nothing changes."""
    for num_taken in range(len(epoch(make(shards))) + 1):
        left, loaded = make(shards), make(shards)
        list(islice(left, num_taken))
        state = left.state_dict()
        assert same_state(loaded.merge_state_dicts([left.local_state_dict()]), state)
        loaded.load_state_dict(state)
        loaded.end_epoch()
        assert (loaded.epoch, loaded.step) == (min(num_taken, 1), 0)
        left.end_epoch()
        expected = epoch(left)
        assert epoch(loaded) == expected
        assert expected == epochs(make(shards), 2)[min(num_taken, 1)]


def test_an_iterator_of_an_epoch_that_was_ended_is_stale():
    loader = make()
    iterator = iter(loader)
    loader.end_epoch()
    next(iterator)
    loader.end_epoch()
    with pytest.raises(StaleIteratorError):
        next(iterator)


def epochs(loader, count):
    return [epoch(loader) for _ in range(count)]
