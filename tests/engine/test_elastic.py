import functools
from pathlib import Path

import pytest
import torch
from elastic_examples import SHARDS, dropping, inside, outside, rank_loader, rest, written
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreters import run_python
from loader_examples import epoch, make, same_state
from walks import at_state
from walks import gathered as merged

from fkat_data import DistributedDataParallelShardSampler, ShardedDataLoader
from fkat_data.errors import StateMismatchError
from fkat_data.samplers import ShardSampler

NUM_EPOCHS = 2


def ranks(sampler, dp_size, state=None):
    loaders = [rank_loader(sampler, dp_size, rank) for rank in range(dp_size)]
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(state)
    return loaders


def advance(loader, count):
    """The next microbatches of a loader up to the end of the last epoch, as texts, with their epochs."""
    found = []
    while len(found) < count and loader.epoch < NUM_EPOCHS:
        for microbatch in loader:
            # After an epoch's last microbatch the loader is at the start of the next.
            found.append((loader.epoch if loader.step else loader.epoch - 1, written(microbatch)))
            if len(found) == count:
                break
    return found


@functools.cache
def whole(sampler, dp_size):
    """What the ranks deliver when nothing stops them; random draws are included: equal texts are equal bits."""
    return [item for loader in ranks(sampler, dp_size) for item in advance(loader, 1000)]


def uninterrupted(sampler, dp_size, number):
    """What they deliver in an epoch, together."""
    return sorted(text for epoch, text in whole(sampler, dp_size) if epoch == number)


@pytest.mark.long
@pytest.mark.parametrize("sampler", [outside, inside, dropping])
@given(worlds=st.lists(st.integers(1, 4), min_size=2, max_size=5), data=st.data())
@settings(max_examples=15, deadline=None)
def test_over_any_re_splits_the_microbatches_are_those_of_a_run_that_nothing_stopped(sampler, worlds, data):
    loaders, ledger = ranks(sampler, worlds[0]), []
    began_with = {0: worlds[0]}  # ranks when the first microbatch of an epoch was delivered
    for dp_size in worlds[1:]:
        for loader, count in zip(loaders, data.draw(st.lists(st.integers(0, 9), max_size=4)), strict=False):
            delivered = advance(loader, count)
            for number, _ in delivered:
                began_with.setdefault(number, len(loaders))
            ledger += delivered
        if not any(number == 0 for number, _ in ledger):
            began_with[0] = dp_size
        state = merged(loaders)
        loaders = ranks(sampler, dp_size, state)
        assert len({loader.epoch for loader in loaders}) == 1 or dp_size == state["dp_size"]
        assert len({loader.step for loader in loaders}) == 1 or dp_size == state["dp_size"]
        again = ranks(sampler, dp_size, merged(loaders))
        assert same_state(merged(again), merged(loaders))
    for loader in loaders:
        delivered = advance(loader, 1000)
        for number, _ in delivered:
            began_with.setdefault(number, len(loaders))
        ledger += delivered
    for number in range(NUM_EPOCHS):
        assert sorted(text for epoch, text in ledger if epoch == number) == uninterrupted(
            sampler, began_with[number], number
        )


def stopped(sampler=inside, dp_size=3, counts=(2, 5, 0)):
    loaders = ranks(sampler, dp_size)
    for loader, count in zip(loaders, counts, strict=True):
        advance(loader, count)
    return merged(loaders)


def test_a_rank_for_which_nothing_is_left_has_one_empty_epoch_and_then_the_next():
    shards = ["list-a-2", "list-b-2"]

    def sampler(dp_size, dp_rank):
        return DistributedDataParallelShardSampler(shards, dp_size, dp_rank)

    (loader,) = ranks(sampler, 1)
    advance(loader, 3)
    first, second = ranks(sampler, 2, merged([loader]))
    assert [(own.epoch, own.step) for own in (first, second)] == [(0, 3), (0, 3)]
    # ... also once more, when it was saved before it was iterated
    first, second = ranks(sampler, 2, merged([first, second]))
    assert [len(epoch(own)) for own in (first, second)] == [1, 0]
    assert [own.epoch for own in (first, second)] == [1, 1]
    assert [len(epoch(own)) for own in (first, second)] == [2, 2]


class Lists:
    """A factory that knows how many microbatches a shard has."""

    def __call__(self, shard):
        return [f"{shard}/{index}" for index in range(self.num_microbatches(shard))]

    def num_microbatches(self, shard):
        return int(shard.rsplit("-", 1)[1])


def test_the_step_and_the_length_go_on_from_the_largest_of_the_ranks_before():
    for rank in range(2):
        loader = at_state(make(inside(2, rank), Lists(), dp_rank=rank), stopped())
        assert (loader.epoch, loader.step) == (0, 5)
        length = len(loader)
        assert [loader.step for _ in loader] == [*range(6, length), 0]
        loader.load_state_dict(stopped())
        assert len(loader) == length
        next(iter(loader))
        loader.load_state_dict(loader.local_state_dict())
        assert (loader.step, len(loader)) == (6, length)


class Secretive(ShardSampler):
    """A user's sampler that can be asked for any rank's shards, and does not say whose it gives."""

    def __init__(self, inside):
        self.inside = inside
        self.dp_size = inside.dp_size

    def shards(self, epoch):
        return self.inside.shards(epoch)

    def for_rank(self, dp_size, dp_rank):
        return Secretive(self.inside.for_rank(dp_size, dp_rank))


class OwnSplit(ShardSampler):
    """A user's sampler: split over ranks, by nobody knows whom."""

    def shards(self, epoch):
        return SHARDS[:3]


@pytest.mark.parametrize(
    ("change", "loader", "field"),
    [
        (lambda state: state, lambda: make(SHARDS[:4]), "dp_size"),
        (lambda state: state, lambda: make(OwnSplit()), "dp_size"),
        (lambda state: state, lambda: rank_loader(outside, 2, 0), "fingerprint.shards"),
        (lambda state: state, lambda: rank_loader(inside, 2, 0, seed=8), "fingerprint.seed"),
        (lambda state: state, lambda: make(Secretive(inside(2, 1)), dp_rank=0), "dp_rank"),
        (lambda state: state, lambda: make(inside(2, 0, SHARDS[:2])), "dp_size"),
        (
            lambda state: {**state, "fingerprint": {**state["fingerprint"], "all_rank_dp_ranks": [0, 1, 1]}},
            None,
            "all_rank_indices",
        ),
        (lambda state: ranks(inside, 3)[1].local_state_dict(), None, "fingerprint.all_rank_dp_ranks"),
    ],
)
def test_what_cannot_be_split_anew_is_refused_by_the_field_that_says_so(change, loader, field):
    loader = loader() if loader else rank_loader(inside, 2, 0)
    before = loader.local_state_dict()
    with pytest.raises(StateMismatchError) as caught:
        loader.load_state_dict(change(stopped()))
    assert caught.value.field == field
    assert loader.local_state_dict() == before


def test_replicas_of_a_rank_count_once():
    loaders = ranks(inside, 2)
    advance(loaders[0], 3)
    local = [own.local_state_dict() for own in loaders for _ in range(2)]
    state = ShardedDataLoader.merge_state_dicts(local)
    assert state["dp_size"] == 4
    left = [list(rest(own, 1)) for own in ranks(inside, 3, state)]
    assert left == [list(rest(own, 1)) for own in ranks(inside, 3, merged(loaders))]


# --- with real ranks -------------------------------------------------------------------------------------------


PROGRAM = Path(__file__).parent / "elastic_examples.py"


def ledger_of(folder):
    return sorted(torch.load(folder / "checkpoint.pt", weights_only=True)["ledger"])


def test_real_ranks_go_on_as_three_and_as_one(processes, prepared, tmp_path):
    for num_ranks, stop_after in ((2, 3), (3, 1), (1, 0)):
        job = {"TORCHELASTIC_RUN_ID": num_ranks, "TORCHELASTIC_RESTART_COUNT": 0}
        for rank in prepared.run_ranks(num_ranks, PROGRAM, tmp_path, stop_after, 0, folder=tmp_path, **job):
            assert rank.returncode == 0, rank.stderr
    assert ledger_of(tmp_path) == sorted([*uninterrupted(inside, 2, 0), *uninterrupted(inside, 1, 1)])


def test_an_elastic_restart_after_a_killed_rank_delivers_each_microbatch_once(processes, tmp_path):
    torchrun = ["-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1"]
    run_python(*torchrun, PROGRAM, tmp_path, 0, 7, OMP_NUM_THREADS="1")
    assert ledger_of(tmp_path) == sorted([*uninterrupted(inside, 2, 0), *uninterrupted(inside, 2, 1)])
    assert {path.name for path in tmp_path.glob("resumed-*")} == {"resumed-0-in-round-1", "resumed-1-in-round-1"}


def test_an_epoch_of_which_nothing_was_delivered_is_as_new_to_other_ranks():
    """A rank has passed its first shards, which are empty, and then an error came, or its microbatch was taken back."""
    shards = ["map-a-0", "map-b-3", "map-c-4", "map-d-5"]

    def sampler(dp_size, dp_rank):
        return DistributedDataParallelShardSampler(shards, dp_size, dp_rank, drop_last=False)

    first, second = ranks(sampler, 2)
    next(iter(first))
    assert first.take_back()
    (loader,) = ranks(sampler, 1, merged([first, second]))
    (fresh,) = ranks(sampler, 1)
    assert epoch(loader) == epoch(fresh)
