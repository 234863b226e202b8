"""The commonest checkpoint of DDP: rank 0 saves its own state, and every rank of any number loads it.

What a ``DistributedSampler`` gives a rank follows from its arguments, so one rank's state is of all: they are in step.
"""

import json
import re
from collections import Counter
from itertools import chain, cycle, islice
from pathlib import Path

import pytest
import rank_zero_saves
import torch
from drop_in_examples import Counting, Remembering
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler
from walks import at_state

from fkat_data import DataLoader, StateMismatchError
from fkat_data.datasets import DictDataset, PackedDataset, TokenBudgetBatchSampler
from fkat_data.mixing import DictBatchSampler, DictDataLoader, RoundRobin, Weighted


def list_of(samples):
    return samples if isinstance(samples, list) else [samples]


class Renamed(DistributedSampler):
    """A subclass whose order is torch's."""


def ranks_of(num_samples, num_ranks, form, *, size=2, whole_only=False, kind=DistributedSampler, epoch=0, **of_sampler):
    """Return the loader of each rank, as people write it."""
    loaders = []
    for rank in range(num_ranks):
        sampler = kind(range(num_samples), num_ranks, rank, **of_sampler)
        sampler.set_epoch(epoch)
        arguments = {
            "batches": lambda sampler=sampler: {"batch_size": size, "sampler": sampler, "drop_last": whole_only},
            "a batch sampler": lambda sampler=sampler: {"batch_sampler": BatchSampler(sampler, size, whole_only)},
            "items": lambda sampler=sampler: {"batch_size": None, "sampler": sampler},
        }[form]()
        loaders.append(DataLoader(range(num_samples), collate_fn=list_of, **arguments))
    return loaders


def saved_by(loader):
    return json.loads(json.dumps(loader.state_dict()))


def model_of(left, order, num_ranks, size, *, drop_last, is_even):
    """Return what torch's class gives each rank of what is left of an order, in batches."""
    num_own = len(left) // num_ranks if is_even else -(-len(left) // num_ranks)
    dealt = list(islice(chain(left, cycle(order)), num_own * num_ranks))
    own = [dealt[rank::num_ranks] for rank in range(num_ranks)]
    batches = [[part[first : first + size] for first in range(0, num_own, size)] for part in own]
    return [[batch for batch in part if len(batch) == size or not drop_last] for part in batches]


@settings(max_examples=80)
@given(
    num_samples=st.integers(1, 70),
    form=st.sampled_from(["batches", "a batch sampler", "items"]),
    legs=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6), st.integers(1, 4)), min_size=2, max_size=5),
    drop_last=st.booleans(),
    of_sampler=st.fixed_dictionaries({"shuffle": st.booleans(), "drop_last": st.booleans(), "seed": st.integers(0, 3)}),
    begun_epochs=st.integers(0, 2),
    tells=st.booleans(),
    who=st.integers(0, 3),
)
def test_the_state_of_one_rank_goes_on_on_any_number_of_ranks_as_a_plain_list_says(
    num_samples, form, legs, drop_last, of_sampler, begun_epochs, tells, who
):
    """A leg is so many ranks, steps until they stop, and samples of a batch; the last one goes on to the end."""
    epoch = begun_epochs if tells else 0
    kind = Renamed if who == 3 else DistributedSampler
    whole = DistributedSampler(range(num_samples), 1, 0, **of_sampler)
    whole.set_epoch(epoch)
    order = left = list(whole)
    state = None
    for leg, (num_ranks, num_steps, size) in enumerate(legs):
        how = {"size": size, "whole_only": drop_last, "kind": kind, "epoch": epoch}
        loaders = ranks_of(num_samples, num_ranks, form, **how, **of_sampler)
        num_in_batch, drops = (1, False) if form == "items" else (size, drop_last)
        expected = model_of(left, order, num_ranks, num_in_batch, drop_last=drops, is_even=of_sampler["drop_last"])
        if state is None:
            for loader in loaders:
                for _ in range(begun_epochs):
                    list(loader)
        else:
            for loader in loaders:
                loader.load_state_dict(state)
        if loaders[0].epoch > begun_epochs:
            assert not expected[0]
            return
        before, is_last = loaders[0].step, leg == len(legs) - 1
        assert {(loader.epoch, loader.step) for loader in loaders} == {(begun_epochs, before)}
        assert {len(loader) for loader in loaders} == {before + len(expected[0])}
        found = [list(islice(loader, None if is_last else num_steps)) for loader in loaders]
        assert found == [batches[: None if is_last else num_steps] for batches in expected]
        if loaders[0].epoch > begun_epochs:
            return
        left = left[num_steps * num_in_batch * num_ranks :]
        state = saved_by(loaders[who % num_ranks])


@pytest.mark.parametrize("kind", [DistributedSampler, Renamed])
def test_the_epoch_behind_the_one_that_went_on_is_that_of_the_present_ranks(kind):
    begun = ranks_of(31, 2, "batches", kind=kind)
    had = [batch for loader in begun for batch in islice(loader, 3)]
    resumed = [at_state(loader, saved_by(begun[0])) for loader in ranks_of(31, 3, "batches", kind=kind)]
    had += [batch for loader in resumed for batch in loader]
    assert set(chain.from_iterable(had)) == set(range(31))
    for loader in resumed:
        loader.sampler.set_epoch(1)
    fresh = ranks_of(31, 3, "batches", kind=kind, epoch=1)
    assert [list(loader) for loader in resumed] == [list(loader) for loader in fresh]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_set_epoch_may_be_called_after_the_load_and_has_to_name_the_epoch(num_ranks):
    begun = ranks_of(40, 2, "batches", epoch=5)
    had = [batch for loader in begun for batch in islice(loader, 2)]
    state = saved_by(begun[0])
    late = ranks_of(40, num_ranks, "batches")
    for loader in late:
        loader.load_state_dict(state)
        loader.sampler.set_epoch(5)
    assert set(chain.from_iterable(chain(had, *late))) == set(range(40))
    with pytest.raises(StateMismatchError, match=r"sampler\.epoch.*saved 5, expected 0.*set_epoch\(5\)"):
        list(at_state(ranks_of(40, num_ranks, "batches")[1], state))
    in_order = ranks_of(40, num_ranks, "batches", shuffle=False)
    begun = ranks_of(40, 2, "batches", shuffle=False, epoch=5)
    had = [batch for loader in begun for batch in islice(loader, 2)]
    rest = [at_state(loader, saved_by(begun[0])) for loader in in_order]  # in order, no epoch differs from another
    assert set(chain.from_iterable(chain(had, *rest))) == set(range(40))


@pytest.mark.parametrize("change", [{"seed": 1}, {"shuffle": False}, {"drop_last": True}])
def test_another_order_on_another_rank_is_named(change):
    begun = ranks_of(41, 2, "batches")[0]
    next(iter(begun))
    loader = at_state(ranks_of(41, 2, "batches", **change)[1], saved_by(begun))
    with pytest.raises(StateMismatchError, match=f"'sampler.{next(iter(change))}'"):
        next(iter(loader))
    with pytest.raises(StateMismatchError, match="num_samples"):
        next(iter(at_state(ranks_of(43, 2, "batches")[1], saved_by(begun))))


def test_a_state_of_another_rank_may_be_saved_again_before_and_behind_a_batch():
    whole = [list(loader) for loader in ranks_of(40, 2, "batches")]
    begun = ranks_of(40, 2, "batches")[0]
    list(islice(begun, 3))
    second = at_state(ranks_of(40, 2, "batches")[1], saved_by(begun))
    again = at_state(ranks_of(40, 2, "batches")[1], saved_by(second))
    assert list(islice(again, 2)) == whole[1][3:5]
    first = at_state(ranks_of(40, 2, "batches")[0], saved_by(again))
    assert list(first) == whole[0][5:]


def test_each_rank_may_still_load_its_own_state_or_a_merged_one_of_ranks_out_of_step():
    begun = ranks_of(60, 2, "batches")
    had = [list(islice(loader, count)) for loader, count in zip(begun, (2, 6), strict=True)]
    whole = [list(loader) for loader in ranks_of(60, 2, "batches")]
    for rank, loader in enumerate(ranks_of(60, 2, "batches")):
        assert had[rank] + list(at_state(loader, saved_by(begun[rank]))) == whole[rank]
    merged = DataLoader.merge_state_dicts([loader.local_state_dict() for loader in begun])
    rest = [list(at_state(loader, merged)) for loader in ranks_of(60, 3, "batches")]
    assert Counter(chain.from_iterable(chain(*had, *rest))) - Counter({44: 1}) == Counter(range(60))  # one fills up


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_mixture_of_such_loaders_goes_on_from_one_ranks_state_as_well(num_ranks):
    def mixture(size, rank):
        sources = {}
        for name, samples in (("a", range(40)), ("b", range(100, 124))):
            sampler = DistributedSampler(samples, size, rank, seed=4)
            sources[name] = DataLoader(samples, 2, sampler=sampler, collate_fn=list)
        return DictDataLoader(sources, Weighted({"a": 2, "b": 1}, seed=3), key=None)

    begun = [mixture(2, rank) for rank in range(2)]
    had = [batch for loader in begun for _, batch in islice(loader, 7)]
    state = json.loads(json.dumps(begun[1].state_dict()))
    for rank in range(num_ranks):
        had += [batch for _, batch in at_state(mixture(num_ranks, rank), state)]
    seen = list(chain.from_iterable(had))
    assert set(seen) == {*range(40), *range(100, 124)}
    assert len(seen) < 64 + 2 * num_ranks


def parts(num_ranks, rank):
    """A loader over a dataset that knows its rank, and one with such a batch sampler."""
    lengths = [1 + index % 5 for index in range(60)]
    documents = [torch.full((length,), index) for index, length in enumerate(lengths)]
    ranks = {"rank": rank, "world_size": num_ranks}
    packed = PackedDataset(documents, 8, 30, lengths=lengths, pad_value=-1, seed=3, **ranks)
    sampler = TokenBudgetBatchSampler(lengths, 16, 30, seed=3, **ranks)
    return [
        DataLoader(packed, 2, collate_fn=documents_of),
        DataLoader(range(60), batch_sampler=sampler, collate_fn=list),
    ]


def documents_of(sequences):
    return [index for each in sequences for index in each["tokens"].unique().tolist() if index >= 0]


@pytest.mark.parametrize("which", [0, 1], ids=["packed", "batches by tokens"])
def test_one_rank_of_what_deals_itself_out_by_arguments_says_where_as_many_go_on(which):
    begun = [parts(2, rank)[which] for rank in range(2)]
    had = [sample for loader in begun for batch in islice(loader, 2) for sample in batch]
    for saver in begun:
        resumed = [at_state(parts(2, rank)[which], saved_by(saver)) for rank in range(2)]
        rest = [sample for loader in resumed for batch in loader for sample in batch]
        assert sorted(set(had + rest)) == list(range(60))
        assert not which or len(had + rest) == 60
        with pytest.raises(StateMismatchError, match="merge_state_dicts"):
            parts(3, 0)[which].load_state_dict(saved_by(saver))


def test_parts_that_each_rank_has_shuffled_by_a_seed_of_its_own_are_refused_at_the_load():
    def shuffled(num_ranks, rank, **seed):
        lengths = [3] * 40
        dataset = PackedDataset(
            [torch.full((3,), i) for i in range(40)], 6, lengths=lengths, seed=3, rank=rank, world_size=num_ranks
        )
        return DataLoader(dataset, 2, shuffle=True, collate_fn=documents_of, **seed)

    begun = shuffled(2, 0)
    next(iter(begun))
    with pytest.raises(StateMismatchError, match=r"'seed'.*the same seed="):
        shuffled(2, 1).load_state_dict(begun.state_dict())
    begun = shuffled(2, 0, seed=4)
    had, rest = next(iter(begun)), []
    for rank in range(2):
        rest += at_state(shuffled(2, rank, seed=4), begun.state_dict())
    had += next(iter(shuffled(2, 1, seed=4)))
    assert sorted(chain(had, *rest)) == list(range(40))


# --- what only its own rank knows ----------------------------------------------------------------------------------


class Halves(DistributedSampler):
    """A subclass with an order of its own."""

    def __iter__(self):
        size = len(self.dataset) // self.num_replicas
        return iter(range(self.rank * size, (self.rank + 1) * size))


class OwnRanks(Sampler):
    def __init__(self, num_ranks, rank):
        self.num_ranks, self.rank = num_ranks, rank

    def __len__(self):
        return 40 // self.num_ranks

    def __iter__(self):
        return iter(range(self.rank, 40, self.num_ranks))


class Pairs(BatchSampler):
    def __iter__(self):
        indices = list(self.sampler)
        return iter([indices[first : first + 2] for first in range(0, len(indices), 2)])


class Labelled:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"index": index}


def mixed(num_ranks, rank):
    samplers = {name: BatchSampler(DistributedSampler(range(20), num_ranks, rank), 2, False) for name in "ab"}
    return {"batch_sampler": DictBatchSampler(RoundRobin(["a", "b"]), samplers)}


OF_ONE_RANK = {
    "a subclass with its own order": lambda num_ranks, rank: {"sampler": Halves(range(40), num_ranks, rank)},
    "a sampler with a rank": lambda num_ranks, rank: {"sampler": OwnRanks(num_ranks, rank)},
    "a batch sampler of the user's": lambda num_ranks, rank: {
        "batch_sampler": Pairs(DistributedSampler(range(40), num_ranks, rank), 2, False)
    },
    "a mixture's batch sampler": mixed,
    "an iterable dataset": lambda num_ranks, rank: {"dp_rank": rank},
}


def of_one_rank(name, num_ranks, rank):
    datasets = {
        "an iterable dataset": lambda: Counting(40),
        "a mixture's batch sampler": lambda: DictDataset({"a": Labelled(), "b": Labelled()}),
    }
    dataset = datasets.get(name, lambda: range(40))()
    return DataLoader(dataset, collate_fn=list, seed=3, **OF_ONE_RANK[name](num_ranks, rank))


@pytest.mark.parametrize("name", OF_ONE_RANK)
def test_a_state_that_is_of_no_other_rank_is_refused_when_it_is_loaded(name):
    begun = [of_one_rank(name, 2, rank) for rank in range(2)]
    at_start = saved_by(begun[0])
    rests = [list(of_one_rank(name, 2, rank))[2:] for rank in range(2)]
    for loader in begun:
        list(islice(loader, 2))
    for saver, other in ((0, 1), (1, 0)):
        loader = of_one_rank(name, 2, other)
        with pytest.raises(StateMismatchError) as raised:
            loader.load_state_dict(saved_by(begun[saver]))
        text = str(raised.value)
        assert re.search(rf"this is the state of rank {saver}( of 2)?, and this process is rank {other}", text)
        assert "save state_dict() on every rank" in text
        assert "merge_state_dicts" in text
        assert (loader.epoch, loader.step) == (0, 0)  # nothing has changed
    if name != "an iterable dataset":
        with pytest.raises(StateMismatchError, match=r"of rank 0( of 2)?, and this process is rank 0 of 1"):
            of_one_rank(name, 1, 0).load_state_dict(saved_by(begun[0]))
    for rank in range(2):
        assert numbers(at_state(of_one_rank(name, 2, rank), saved_by(begun[rank]))) == numbers(rests[rank])
    if name != "a mixture's batch sampler":  # which has a state of its own
        at_state(of_one_rank(name, 2, 1), at_start)


def numbers(batches):
    return [[int(each[0]) if isinstance(each, tuple) else each for each in batch] for batch in batches]


def test_the_state_of_an_iterable_dataset_that_has_one_is_of_no_other_rank_even_at_the_start():
    saver = DataLoader(Remembering(20), dp_rank=0, seed=3)
    with pytest.raises(StateMismatchError, match="this is the state of rank 0, and this process is rank 1"):
        DataLoader(Remembering(20), dp_rank=1, seed=3).load_state_dict(saver.state_dict())


def test_ranks_that_share_their_data_share_a_state_of_an_iterable_dataset():
    saver = DataLoader(Counting(20), dp_rank=0, seed=3)
    next(iter(saver))
    other = at_state(DataLoader(Counting(20), dp_rank=0, seed=3), saved_by(saver))
    assert len(list(other)) == 19


def test_a_mixture_of_a_ranks_own_parts_is_not_dealt_out_again():
    whole = list(of_one_rank("a mixture's batch sampler", 2, 0))
    loader = of_one_rank("a mixture's batch sampler", 2, 0)
    loader.deal_out(2, 0)
    assert list(loader) == whole


def test_an_epoch_with_a_sampler_of_one_rank_does_not_go_on_in_a_shuffle():
    begun = ranks_of(40, 2, "batches")[0]
    next(iter(begun))
    loader = at_state(DataLoader(range(40), 2, shuffle=True), begun.state_dict())
    with pytest.raises(StateMismatchError, match=r"DistributedSampler\(dataset, 1, 0\)"):
        next(iter(loader))
    random = DataLoader(range(40), 2, sampler=RandomSampler(range(40)))
    with pytest.raises(StateMismatchError):
        next(iter(at_state(random, begun.state_dict())))


# --- with real ranks -------------------------------------------------------------------------------------------


def run(prepared, folder, num_ranks, last_step, num_workers=0):
    program = Path(rank_zero_saves.__file__)
    for rank in prepared.run_ranks(num_ranks, program, folder, last_step, num_workers, folder=folder):
        assert rank.returncode == 0, rank.stderr
    files = sorted(folder.glob("seen-*.json"))
    return [sample for file in files for batch in json.loads(file.read_text()) for sample in batch]


@pytest.mark.parametrize("counts", [(2, 2, 2), (2, 3, 1), (1, 2, 1)])
def test_the_plainest_script_of_ddp_goes_on_wherever_rank_0_has_saved(processes, prepared, tmp_path, counts):
    first, second, third = counts
    run(prepared, tmp_path, first, 4)
    run(prepared, tmp_path, second, 7)
    seen = run(prepared, tmp_path, third, 0)
    assert set(seen) == set(range(rank_zero_saves.NUM_SAMPLES))
    assert len(seen) < rank_zero_saves.NUM_SAMPLES + third


def test_a_worker_makes_what_is_left_after_rank_0_has_saved(processes, prepared, tmp_path):
    run(prepared, tmp_path, 2, 4, num_workers=1)
    seen = run(prepared, tmp_path, 1, 0, num_workers=1)
    assert sorted(seen) == list(range(rank_zero_saves.NUM_SAMPLES))
