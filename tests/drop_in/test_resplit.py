"""A state of some ranks on another number of them, again and again within an epoch: every sample is delivered once.

What fills up the last round, or is left out of it, is the only exception, and the last layout's own.
"""

import json
from collections import Counter
from itertools import chain, islice, pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler

from fkat_data import DataLoader, StateMismatchError


class Uneven(Sampler):
    """Batches of many sizes, as a token budget makes them."""

    def __init__(self, num_samples):
        self.ends = [0]
        while self.ends[-1] < num_samples:
            self.ends.append(min(num_samples, self.ends[-1] + 1 + len(self.ends) % 3))

    def __len__(self):
        return len(self.ends) - 1

    def __iter__(self):
        return (list(range(*pair)) for pair in pairwise(self.ends))


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
        "of many sizes": lambda: {"batch_sampler": Uneven(num_samples)},
        "torch's ranks": lambda: {**batches, "sampler": DistributedSampler(samples, num_ranks, rank, seed=4)},
        "torch's even ranks": lambda: {
            **batches,
            "sampler": DistributedSampler(samples, num_ranks, rank, shuffle=False, drop_last=True),
        },
    }[kind]()


KINDS = ["in order", "shuffled", "items", "drawn", "random", "a generator", "of many sizes"]
OF_RANKS = ["torch's ranks", "torch's even ranks"]
KINDS += OF_RANKS
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
        states = [json.loads(json.dumps(loader.local_state_dict())) for loader in self.loaders]
        return json.loads(json.dumps(DataLoader.merge_state_dicts(states)))


def list_of(samples):
    return samples if isinstance(samples, list) else [samples]


def flat(of_ranks):
    return [sample for batches in of_ranks for batch in batches for sample in batch]


def check_trip(kind, num_samples, size, trip, *, drop_last=False, even_batches=True, split_batches=False):
    """Deliver an epoch on one number of ranks after another, and look at what came.

    Args:
        trip: For each number of ranks, how many microbatches each rank delivers before they stop; the last one goes on to
            the end.
    """
    how = {"drop_last": drop_last, "even_batches": even_batches, "split_batches": split_batches}
    delivered, state, has_ended = [], None, False
    for counts in trip[:-1]:
        job = Job(kind, num_samples, size, len(counts), state, **how)
        again = Job(kind, num_samples, size, len(counts), job.save(), **how)
        assert again.places == job.places
        delivered.append(flat(again.deliver(counts)))
        has_ended = has_ended or any(loader.epoch for loader in again.loaders)
        state = again.save()
        if all(loader.epoch for loader in again.loaders):
            return  # an epoch that no other ranks go on with
    num_ranks = len(trip[-1])
    last = Job(kind, num_samples, size, num_ranks, state, **how)
    if num_ranks != len(counts):
        assert len(set(last.places)) == 1
    before = Counter(chain.from_iterable(delivered))
    lengths = [len(loader) for loader in last.loaders]
    rest = last.deliver([10**6] * num_ranks)
    for (epoch, step), batches, length in zip(last.places, rest, lengths, strict=True):
        assert epoch or step + len(batches) == length
    assert {(loader.epoch, loader.step) for loader in last.loaders} == {(1, 0)}
    whole = list(range(num_samples))
    if kind in ("drawn", "random", "a generator") and drop_last:
        # torch's class leaves out the last batch before anything is dealt out.
        whole = sorted(flat([Job(kind, num_samples, size, 1, **how).deliver([10**6])[0]]))
    found = before + Counter(flat(rest))
    missing, repeated = [sample for sample in whole if sample not in found], found - Counter(whole)
    if kind in OF_RANKS:
        is_dropped = drop_last or kind == "torch's even ranks"
        round_size, is_even = num_ranks * (size if drop_last else 1), True
    elif kind == "of many sizes":
        round_size, is_even, is_dropped = 4 * num_ranks, even_batches, False
    else:
        own_size = 1 if kind == "items" else size
        round_size = own_size * (1 if split_batches else num_ranks)
        is_even, is_dropped = even_batches, drop_last and kind != "items"
    assert len(missing) < round_size if is_dropped else not missing, missing
    if not has_ended:
        if not is_even or (num_ranks == 1 and kind not in OF_RANKS):
            assert not repeated
        assert sum(before.values()) == len(before)
        assert sum(repeated.values()) < round_size
        sizes = {len(batches) for batches in rest}
        if is_even and num_ranks != len(counts):
            assert len(sizes) == 1
            if not is_dropped and kind not in ("of many sizes", *OF_RANKS) and num_ranks > 1:
                assert sum(map(len, flat_batches(rest))) % round_size == 0
    # The next epoch is that of ranks that have had none of this one.
    fresh = Job(kind, num_samples, size, num_ranks, **how)
    fresh.deliver([10**6] * num_ranks)
    assert [list(loader) for loader in last.loaders] == [list(loader) for loader in fresh.loaders]


def flat_batches(of_ranks):
    return [batch for batches in of_ranks for batch in batches]


COUNTS = st.lists(st.integers(0, 6), min_size=1, max_size=4)


@settings(max_examples=150)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 50),
    st.integers(1, 4),
    st.lists(COUNTS, min_size=2, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_every_sample_comes_once_whatever_ranks_an_epoch_has(kind, num_samples, size, trip, is_even, drop_last):
    check_trip(kind, num_samples, size, trip, even_batches=is_even, drop_last=drop_last)


@settings(max_examples=60)
@given(
    st.sampled_from(SPLIT_KINDS),
    st.integers(1, 60),
    st.lists(COUNTS, min_size=2, max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_every_sample_comes_once_where_ranks_split_batches(kind, num_samples, trip, is_even, drop_last):
    check_trip(kind, num_samples, 12, trip, split_batches=True, even_batches=is_even, drop_last=drop_last)
