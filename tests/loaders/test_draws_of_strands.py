"""What the workers of an iterable dataset draw: each has numbers of its own, which it keeps wherever it goes on."""

import json
import random
from collections import defaultdict
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info
from walks import saved

from fkat_data import DataLoader
from fkat_data.loaders.strand_plan import StrandPlan
from fkat_data.plan.state import unsealed

# A machine may have fewer cores than torch wants for that many workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

OF_RANKS = ("strand_numbers", "strand_ranks", "all_strands", "strands_per_rank")


def drawn():
    return random.random(), float(np.random.random_sample()), float(torch.rand(()))


class Drawing(IterableDataset):
    """Of each worker, some samples with draws, one of them from before the first; the second worker has the most."""

    def __init__(self, *, counts_all=False):
        self.counts_workers_of_all_ranks = counts_all

    def __iter__(self):
        info = get_worker_info()
        number = info.id if info else 0
        first = drawn()
        return self.samples(number, first)

    def samples(self, number, first):
        for index in range(3 + number % 2 * 2):
            yield number, index, first, drawn()


class DrawingWithState(Drawing):
    """Has a state."""

    next = 0

    def samples(self, number, first):
        del first  # a resume draws it again
        while self.next < 3 + number % 2 * 2:
            self.next += 1
            yield number, self.next - 1, drawn()
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def with_draw(samples):
    return [*samples, drawn()]


def rows_of(samples):
    return [(*sample, drawn()) for sample in samples for _ in range(2)]


KINDS = {
    "plain": {"dataset": Drawing},
    "with a state": {"dataset": DrawingWithState},
    "windows": {"dataset": Drawing, "window_fn": rows_of, "window_size": 2},
}


def loader_of(dataset=Drawing, *, num_workers=2, state=None, deal=None, **options):
    own = dataset(counts_all=True) if deal else dataset()
    loader = DataLoader(own, 1, seed=3, num_workers=num_workers, collate_fn=with_draw, **options)
    if deal and deal[0] > 1:
        loader.deal_out(*deal)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def epochs_of(loader, count=2):
    with loader:
        return [list(loader) for _ in range(count)]


def draws_in(value):
    """Return all floating point numbers in it, sorted by the generator: python's, NumPy's, torch's."""
    if isinstance(value, tuple) and value and isinstance(value[0], float):
        return [value]
    return [draws for each in value for draws in draws_in(each)] if isinstance(value, list | tuple) else []


def strand_of(microbatch):
    return microbatch[0][0]


def streams_of(loader, dp_rank, epoch):
    """Return where the draws of each of a rank's strands come from, by the strand's number."""
    state = unsealed(loader.local_state_dict())
    plan = StrandPlan(state["num_strands"], dp_rank, None, {name: state[name] for name in OF_RANKS})
    plan.load_plan_state(state["epoch"], state)
    return {number: plan.origin(epoch, index)[:2] for index, number in enumerate(state["strand_numbers"])}


@given(st.integers(1, 3), st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_each_strand_has_a_stream_of_its_own_on_whatever_ranks(num_workers, trip):
    num_strands = num_workers * trip[0]
    state, first = None, None
    options = {"num_workers": num_workers, "start_method": "spawn"}  # none starts, nor what workers are forked from
    for num_ranks in (min(number, num_strands) for number in trip):
        loaders = [loader_of(state=state, deal=(num_ranks, rank), **options) for rank in range(num_ranks)]
        found = {}
        for rank, loader in enumerate(loaders):
            found |= streams_of(loader, rank, epoch=1)
            before = streams_of(loader, rank, epoch=0)
            assert before == {number: found[number] for number in before}
        first = first or found
        assert len({*found.values()}) == num_strands
        assert found == first
        # The first worker of each rank that began draws what it drew as the only one.
        assert all(found[rank * num_workers] == (rank, 0) for rank in range(trip[0]))
        state = saved(loaders)


@pytest.mark.long
def test_each_worker_draws_numbers_of_its_own_and_every_resume_draws_them_again(processes, some):
    for kind in some(KINDS, 1):
        check_draws_and_resumes(kind, some)


def check_draws_and_resumes(kind, some):
    whole = epochs_of(loader_of(**KINDS[kind]))
    for epoch in whole:
        by_strand = defaultdict(set)
        for microbatch in epoch:
            by_strand[strand_of(microbatch)].update(draws_in(microbatch))
        for place in range(3):  # python's, NumPy's, torch's
            ours, others = ({draws[place] for draws in by_strand[number]} for number in (0, 1))
            assert ours
            assert not ours & others
    alone = epochs_of(loader_of(**KINDS[kind], num_workers=1))
    assert alone == [[each for each in epoch if strand_of(each) == 0] for epoch in whole]
    loader, found = loader_of(**KINDS[kind]), []
    for cut in some(range(1, len(whole[0]) + 1), 3):
        found += islice(loader, cut - len(found))
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
        loader = loader_of(**KINDS[kind], num_workers=cut % 3, state=state)
    if len(found) < len(whole[0]):
        found += loader
    assert found == whole[0]
    rest = list(loader)
    assert (rest or list(loader)) == whole[1]  # where rows are made, an epoch's end shows behind its last
    loader.close()


def by_strands(microbatches):
    found = defaultdict(list)
    for microbatch in microbatches:
        found[strand_of(microbatch)].append(microbatch)
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", ["with a state", "windows"])
def test_a_strand_draws_the_same_whichever_rank_takes_it_over(processes, kind):
    epochs = [[], []]
    for rank in range(2):
        for epoch, found in zip(epochs, epochs_of(loader_of(**KINDS[kind], deal=(2, rank))), strict=True):
            epoch.extend(found)
    whole = [by_strands(epoch) for epoch in epochs]
    state, found = None, []
    for counts in ((3, 1), (1, 2, 0), (None,)):
        ranks = len(counts)
        loaders = [loader_of(**KINDS[kind], deal=(ranks, rank), state=state) for rank in range(ranks)]
        for loader, count in zip(loaders, counts, strict=True):
            found += islice(loader, count)
        state = saved(loaders)
        for loader in loaders[: None if None not in counts else 0]:
            loader.close()
    following = list(loaders[0])
    loaders[0].close()
    assert by_strands(found) == whole[0]
    assert by_strands(following) == whole[1]
