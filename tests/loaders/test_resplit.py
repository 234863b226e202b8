"""A state of some ranks on another number of them, again and again within an epoch: every sample is delivered once.

What fills up the last round, or is left out of it, is the only exception, and the last layout's own.
"""

import json
import pickle
from collections import Counter
from itertools import chain, islice, product
from pathlib import Path

import pytest
import ranks_of_a_trip
import torch
from drop_in_examples import Uneven
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler
from walks import at_state, gathered

from fkat_data import DataLoader, StateMismatchError


def options_of(kind, num_samples, size, drop_last, num_ranks, rank):
    """Arguments of a loader whose samples come in this kind of order."""
    samples = range(num_samples)
    batches = {"batch_size": size, "drop_last": drop_last}
    generator = torch.Generator().manual_seed(5)
    return {
        "in order": lambda: batches,
        "shuffled": lambda: {**batches, "shuffle": True},
        "items": lambda: {"batch_size": None, "shuffle": True},
        "drawn": lambda: {"batch_sampler": BatchSampler(samples, size, drop_last)},
        "random": lambda: {**batches, "sampler": RandomSampler(samples)},
        "a generator": lambda: {**batches, "sampler": RandomSampler(samples, generator=generator)},
        "of many sizes": lambda: {"batch_sampler": Uneven([1, 2, 3] * (num_samples // 6) + [1] * (num_samples % 6))},
        "torch's ranks": lambda: {**batches, "sampler": DistributedSampler(samples, num_ranks, rank, seed=4)},
        "torch's even ranks": lambda: {
            **batches,
            "sampler": DistributedSampler(samples, num_ranks, rank, shuffle=False, drop_last=True),
        },
    }[kind]()


KINDS = ["in order", "shuffled", "items", "drawn", "random", "a generator", "of many sizes"]
OF_RANKS = ["torch's ranks", "torch's even ranks"]
KINDS += OF_RANKS
# The loader knows what is left of these in batches of any size.
RAMPED = ["in order", "shuffled", *OF_RANKS]
SPLIT_KINDS = ["in order", "shuffled", "drawn", "random", "a generator"]


class Job:
    """Ranks of one job, one after the other in this process."""

    def __init__(self, kind, num_samples, size, num_ranks, state=None, *, drop_last=False, **how):
        self.loaders = []
        for rank in range(num_ranks):
            options = options_of(kind, num_samples, size, drop_last, num_ranks, rank)
            self.loaders.append(DataLoader(range(num_samples), seed=7, collate_fn=list_of, **options))
            if kind not in OF_RANKS:
                self.loaders[-1].deal_out(num_ranks, rank, **how)
            if state is not None:
                self.loaders[-1].load_state_dict(state)
        self.state = state
        self.places = [(loader.epoch, loader.step) for loader in self.loaders]

    def deliver(self, counts):
        """Return what each rank delivers of the first epoch, so many microbatches at most."""
        return [
            list(islice(loader, count)) if loader.epoch == 0 else []
            for loader, count in zip(self.loaders, counts, strict=True)
        ]

    def save(self):
        """Return the state of all ranks, as a file would have it."""
        return json.loads(json.dumps(gathered(self.loaders)))


def list_of(samples):
    return samples if isinstance(samples, list) else [samples]


def flat(of_ranks):
    return [sample for batches in of_ranks for batch in batches for sample in batch]


def trip_to_the_last(kind, num_samples, sizes, trip, how):
    """Return what the ranks before the last ones deliver, their state, None where all came
    to the end, and whether one of them did.
    """
    delivered, state, has_ended = [], None, False
    for counts, size in zip(trip[:-1], sizes, strict=False):
        job = Job(kind, num_samples, size, len(counts), state, **how)
        again = Job(kind, num_samples, size, len(counts), job.save(), **how)
        assert again.places == job.places
        delivered.append(flat(again.deliver(counts)))
        has_ended = has_ended or any(loader.epoch for loader in again.loaders)
        state = again.save()
        if all(loader.epoch for loader in again.loaders):
            return delivered, None, True
    return delivered, state, has_ended


def last_round(kind, size, num_ranks, how):
    """Return the samples of a round, and whether the last one is filled up or left out."""
    if kind in OF_RANKS:
        is_dropped = how["drop_last"] or kind == "torch's even ranks"
        return num_ranks * (size if how["drop_last"] else 1), True, is_dropped
    if kind == "of many sizes":
        return 4 * num_ranks, how["even_batches"], False
    size = (1 if kind == "items" else size) * (1 if how["split_batches"] else num_ranks)
    return size, how["even_batches"] and num_ranks > 1, how["drop_last"] and kind != "items"


def check_trip(kind, num_samples, size, trip, *, drop_last=False, even_batches=True, split_batches=False, ramp=0):
    """Deliver an epoch on one number of ranks after another, and look at what came.

    Args:
        trip: For each number of ranks, how many microbatches each rank delivers before they stop; the last one goes on to
            the end.
        ramp: By how much, in sizes of the first ones, batches are larger each time.
    """
    sizes = [size * (1 + leg * (ramp if kind in RAMPED else 0)) for leg in range(len(trip))]
    how = {"drop_last": drop_last, "even_batches": even_batches, "split_batches": split_batches}
    num_before, num_ranks = len(trip[-2]), len(trip[-1])
    delivered, state, has_ended = trip_to_the_last(kind, num_samples, sizes, trip, how)
    size = sizes[-1]
    if state is None:  # nothing of the epoch was left for others
        return
    last = Job(kind, num_samples, size, num_ranks, state, **how)
    assert len(set(last.places)) == 1 or num_ranks == num_before
    before = Counter(chain.from_iterable(delivered))
    lengths = [len(loader) for loader in last.loaders]
    rest = last.deliver([10**6] * num_ranks)
    for (epoch, step), batches, length in zip(last.places, rest, lengths, strict=True):
        assert epoch or step + len(batches) == length
    assert {(loader.epoch, loader.step) for loader in last.loaders} == {(1, 0)}
    # torch's class leaves out the last batch before anything is dealt out.
    whole = set(flat(Job(kind, num_samples, size, 1, **how).deliver([10**6]))) if drop_last else set(range(num_samples))
    found = before + Counter(flat(rest))
    round_size, is_even, is_dropped = last_round(kind, size, num_ranks, how)
    missing, repeated = whole - set(found), found - Counter(set(found))
    assert len(missing) < round_size if is_dropped or has_ended else not missing
    if not has_ended:
        assert sum(repeated.values()) < (round_size if is_even else 1)
        assert set(before.values()) <= {1}
        if is_even and num_ranks != num_before:
            assert len({len(batches) for batches in rest}) == 1
    # The next epoch is that of ranks that have had none of this one.
    fresh = Job(kind, num_samples, size, num_ranks, **how)
    fresh.deliver([10**6] * num_ranks)
    assert [list(loader) for loader in last.loaders] == [list(loader) for loader in fresh.loaders]


@pytest.mark.long
@settings(max_examples=90)
@given(
    st.one_of(
        st.tuples(st.sampled_from(KINDS), st.integers(1, 4), st.just(False)),
        st.tuples(st.sampled_from(SPLIT_KINDS), st.just(12), st.just(True)),
    ),
    st.integers(1, 60),
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=2, max_size=5),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
def test_every_sample_comes_once_whatever_ranks_and_batches_an_epoch_has(
    dealing, num_samples, trip, is_even, drop_last, ramp
):
    kind, size, is_split = dealing
    how = {"even_batches": is_even, "drop_last": drop_last, "split_batches": is_split, "ramp": ramp}
    check_trip(kind, num_samples, size, trip, **how)


def test_batches_of_another_size_are_refused_where_only_the_sampler_knows_what_is_left():
    for kind in ("drawn", "random", "a generator"):
        job = Job(kind, 50, 2, 1)
        job.deliver([3])
        with pytest.raises(StateMismatchError, match=r"batch_size.*saved 2, expected 3; finish the epoch"):
            Job(kind, 50, 3, 1, job.save())
        job.deliver([100])
        assert Job(kind, 50, 3, 1, job.save()).places == [(2, 0)]


@pytest.mark.long
@pytest.mark.parametrize(("is_even", "drop_last", "is_split"), list(product((False, True), repeat=3)))
def test_every_re_split_of_a_small_epoch(is_even, drop_last, is_split, some):
    """Two ranks at any places, then three, then one."""
    how = {"even_batches": is_even, "drop_last": drop_last, "split_batches": is_split}
    trips = product((1, 5, 12, 13), product(range(3), repeat=2), ([0, 0, 0], [1, 0, 1]))
    for num_samples, first, second in some(trips, 24):
        check_trip("in order", num_samples, 6 if is_split else 1, [list(first), second, [0]], **how)


def test_ranks_in_step_have_a_state_that_says_so_and_goes_on_from_the_next_batch():
    job = Job("shuffled", 50, 2, 4)
    (whole,) = Job("shuffled", 50, 2, 1).deliver([100])
    job.deliver([3] * 4)
    state = job.save()
    assert state["place"][0]["gathered"]
    three = Job("shuffled", 50, 2, 3, state)
    assert three.places == [(0, 3)] * 3
    assert [len(loader) for loader in three.loaders] == [3 + 5] * 3
    steps = [[loader.step for _ in loader] for loader in three.loaders]
    assert steps == [[4, 5, 6, 7, 0]] * 3
    assert [len(loader) for loader in three.loaders] == [9] * 3
    # The epoch knows no ranks: what three get, round by round, are the batches that one would have got.
    rounds = zip(*Job("shuffled", 50, 2, 3, state).deliver([4] * 3), strict=True)
    assert list(chain.from_iterable(rounds)) == whole[12:24]


def test_the_state_of_one_rank_is_refused_on_another_number_with_the_way_out():
    job = Job("shuffled", 50, 2, 2)
    job.deliver([3, 3])
    for ranks in (1, 3):
        with pytest.raises(StateMismatchError, match=r"num_ranks.*merge_state_dicts\(\).*each rank's local_state_dict"):
            Job("shuffled", 50, 2, ranks, job.loaders[0].local_state_dict())
    for newer in (job.save(), job.save()["place"][0], {"all_rank_states": [job.save()["place"][0]] * 2}):
        with pytest.raises(StateMismatchError, match="version"):
            Job("shuffled", 50, 2, 3, {**newer, "version": 99})
    part = DataLoader.merge_state_dicts([loader.local_state_dict() for loader in Job("shuffled", 50, 2, 3).loaders][:2])
    with pytest.raises(StateMismatchError, match="<2 of 3 ranks>"):
        Job("shuffled", 50, 2, 2, part)


def test_another_order_is_noticed_on_another_number_of_ranks():
    def loader(seed):
        sampler = RandomSampler(range(50), generator=torch.Generator().manual_seed(seed))
        return DataLoader(range(50), 2, sampler=list(sampler), seed=1, collate_fn=list)

    ranks = [loader(3), loader(3)]
    for rank, own in enumerate(ranks):
        own.deal_out(2, rank)
        list(islice(own, 4))
    for num_samples, seed in ((42, 3), (0, 4)):
        again = at_state(loader(seed), gathered(ranks))
        if num_samples:
            assert len(flat([list(again)])) == 50 - 16
        else:
            with pytest.raises(StateMismatchError, match="gives other samples"):
                list(again)


def test_another_order_of_a_distributed_sampler_is_named():
    job = Job("torch's ranks", 50, 2, 2)
    job.deliver([3, 3])
    sampler = DistributedSampler(range(50), 1, 0, seed=4)
    loader = at_state(DataLoader(range(50), 2, sampler=sampler, seed=7, collate_fn=list), job.save())
    sampler.set_epoch(1)
    with pytest.raises(StateMismatchError, match=r"sampler\.epoch"):
        next(iter(loader))


class OwnRanks(Sampler):
    """A sampler of the user's that knows its rank."""

    def __init__(self, num_ranks, rank):
        self.num_ranks, self.rank = num_ranks, rank

    def __len__(self):
        return 20

    def __iter__(self):
        return iter(range(self.rank, 20 * self.num_ranks, self.num_ranks))


def test_a_sampler_that_cannot_be_asked_for_another_rank_is_refused():
    loaders = [DataLoader(range(40), 2, sampler=OwnRanks(2, rank), seed=1) for rank in range(2)]
    for loader in loaders:
        next(iter(loader))
    with pytest.raises(StateMismatchError, match="cannot be asked for another rank's"):
        DataLoader(range(40), 2, sampler=OwnRanks(1, 0), seed=1).load_state_dict(gathered(loaders))


def test_a_rank_that_gets_nothing_has_one_empty_iteration():
    for kind in ("in order", "drawn"):
        job = Job(kind, 9, 1, 2, even_batches=False)
        job.deliver([4, 4])
        first, second = Job(kind, 9, 1, 2, Job(kind, 9, 1, 1, job.save()).save(), even_batches=False).loaders
        assert [list(first), list(second)] == [[[8]], []]
        assert [(loader.epoch, loader.step) for loader in (first, second)] == [(1, 0), (1, 0)]
        assert [len(list(loader)) for loader in (first, second)] == [5, 4]


def test_a_copy_has_what_this_rank_was_to_get_after_the_re_split():
    job = Job("drawn", 40, 2, 2)
    job.deliver([3, 3])
    loader = Job("drawn", 40, 2, 1, job.save()).loaders[0]
    rest = iter(loader)
    begun = [next(rest), next(rest)]
    copied = pickle.loads(pickle.dumps(loader))
    assert (copied.step, list(copied)) == (3, [*begun, *rest])


def test_the_rest_of_an_epoch_that_others_began_may_be_left():
    job = Job("shuffled", 40, 2, 2)
    job.deliver([3, 3])
    loader = Job("shuffled", 40, 2, 1, job.save()).loaders[0]
    loader.end_epoch()
    assert (loader.epoch, loader.step, len(loader)) == (1, 0, 20)


@pytest.mark.parametrize("damage", [{"resplits": 3}, {"resplits": [{}]}, {"resplits": [{"epochs": [0], "counts": []}]}])
def test_a_damaged_record_of_a_re_split_is_named(damage):
    loader = Job("shuffled", 40, 2, 1).loaders[0]
    with pytest.raises(StateMismatchError, match="resplits"):
        loader.load_state_dict({**loader.state_dict()["place"][0], **damage})


# --- with real ranks -------------------------------------------------------------------------------------------


PROGRAM = Path(__file__).parent / "ranks_of_a_trip.py"


@pytest.mark.parametrize("kinds", [list(ranks_of_a_trip.KINDS)[:-1], ["an iterable dataset"]])
def test_real_ranks_go_from_four_to_two_to_three_to_one(processes, prepared, tmp_path, kinds):
    for num_ranks, num_steps in ((4, 3), (2, 4), (3, 3), (1, 0)):
        for rank in prepared.run_ranks(num_ranks, PROGRAM, tmp_path, num_steps, *kinds, folder=tmp_path):
            assert rank.returncode == 0, rank.stderr
    for kind in kinds:
        ledger = torch.load(tmp_path / f"{kind}.pt", weights_only=True)["ledger"]
        assert sorted(ledger) == list(range(ranks_of_a_trip.NUM_SAMPLES)), kind


class Ramp:
    """Batches of two, and of four from the sixth on."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        indices, number = iter(self.sampler), 0
        while batch := list(islice(indices, 2 if number < 5 else 4)):
            number += 1
            yield batch

    def __len__(self):
        return 5 + -(-(len(self.sampler) - 10) // 4)


def test_a_ramp_of_batch_sizes_goes_on_at_every_cut_and_on_other_ranks():
    def ramped(num_ranks=1, rank=0):
        sampler = Ramp(RandomSampler(range(61), generator=torch.Generator().manual_seed(3)))
        loader = DataLoader(range(61), batch_sampler=sampler, collate_fn=list)
        loader.deal_out(num_ranks, rank)
        return loader

    whole = list(ramped())
    assert [len(batch) for batch in whole] == [*[2] * 5, *[4] * 12, 3]
    for cut in range(1, len(whole)):
        begun, resumed = ramped(), ramped()
        had = list(islice(begun, cut))
        resumed.load_state_dict(begun.state_dict())
        assert had + list(resumed) == whole
    begun = [ramped(2, rank) for rank in range(2)]
    had = [batch for loader in begun for batch in islice(loader, 3)]
    state = DataLoader.merge_state_dicts([loader.local_state_dict() for loader in begun])
    for rank in range(3):
        resumed = at_state(ramped(3, rank), state)
        had += resumed
    assert sorted(chain.from_iterable(had)) == list(range(61))
