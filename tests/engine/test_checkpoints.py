"""torch.distributed.checkpoint: it takes a state apart, and reads the parts that the resuming loader shows to it."""

from itertools import chain, islice, repeat

import pytest
from drop_in_examples import Counted
from elastic_examples import inside, outside, rank_loader, rest
from loader_examples import make
from walks import gathered

from fkat_data import DataLoader
from fkat_data.mixing import DictDataLoader, RoundRobin, Weighted

# The import of torch.distributed.checkpoint takes longer than the tests: the fast lane leaves both out.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:torch.distributed is .*:UserWarning")]


def through(saved, shown, folder):
    """What a checkpoint of one state gives to a loader that shows another."""
    from torch.distributed import checkpoint

    checkpoint.save({"loader": saved}, checkpoint_id=folder)
    target = {"loader": shown}
    checkpoint.load(target, checkpoint_id=folder)
    return target["loader"]


class Ranks:
    """The loaders of all ranks, which take turns in one epoch."""

    def __init__(self, sampler, dp_size):
        self.loaders = [rank_loader(sampler, dp_size, rank) for rank in range(dp_size)]
        self.left = [rest(loader, 1) for loader in self.loaders]

    def advance(self, num_microbatches=99):
        """The next microbatches of each rank, as texts."""
        return [text for part in self.left for text in islice(part, num_microbatches)]

    def state(self):
        return gathered(self.loaders)


@pytest.mark.parametrize("sampler", [inside, outside])
@pytest.mark.parametrize("worlds", [(2, 1), (2, 2), (2, 4), (4, 2), (1, 3, 2), (2, 4, 4, 1), (3, 3, 5)])
def test_any_number_of_ranks_resumes_from_any_other_and_delivers_each_microbatch_once(tmp_path, sampler, worlds):
    whole = sorted(Ranks(sampler, worlds[0]).advance())
    ranks = Ranks(sampler, worlds[0])
    delivered = ranks.advance(2)
    for number, dp_size in enumerate(worlds[1:]):
        fresh = Ranks(sampler, dp_size)
        state = through(ranks.state(), fresh.state(), tmp_path / str(number))
        for loader in fresh.loaders:
            loader.load_state_dict(state)
        ranks = fresh
        delivered += ranks.advance(1)
    assert sorted([*delivered, *ranks.advance()]) == whole


def failing(shard):
    if shard.startswith("bad"):
        raise ValueError(shard)
    return [shard + str(index) for index in range(4)]


class OwnSampler:
    """Keeps a state that grows."""

    def __init__(self):
        self.past = []

    def __iter__(self):
        self.past.append({"loop": len(self.past)})
        return iter([f"{len(self.past)}-{index}" for index in range(3)])

    def state_dict(self):
        return {"past": list(self.past)}

    def load_state_dict(self, state):
        self.past = list(state["past"])


@pytest.mark.parametrize(
    ("make_loader", "num_before"),
    [
        (lambda: make(["bad-a", "b", "bad-c", "d"], failing, on_shard_error="skip", max_skipped_shards=2), 6),
        (lambda: make(OwnSampler(), failing), 14),
        (
            lambda: DictDataLoader(
                {"one": make(["a", "b"], failing), "two": make(OwnSampler(), failing)},
                RoundRobin(["one", "two"]),
                key=None,
            ),
            30,
        ),
    ],
    ids=["skipped shards", "own sampler", "mixture"],
)
def test_what_a_fresh_loader_has_not_yet_is_read_too(tmp_path, make_loader, num_before):
    loader = make_loader()
    list(islice(chain.from_iterable(repeat(loader)), num_before))
    fresh = make_loader()
    state = loader.state_dict()
    fresh.load_state_dict(through(state, fresh.state_dict(), tmp_path))
    assert fresh.state_dict() == state
    loader.load_state_dict(state)
    assert [list(fresh) for _ in range(2)] == [list(loader) for _ in range(2)]


def test_weights_that_were_set_are_read_too(tmp_path):
    def made():
        sources = {name: DataLoader(range(9), 1, seed=1, collate_fn=list) for name in "ab"}
        return DictDataLoader(sources, Weighted({"a": 1, "b": 1}), key=None)

    loader, fresh = made(), made()
    iterator = iter(loader)
    next(iterator)
    loader.set_weights({"a": 1, "b": 99})
    state = loader.state_dict()
    fresh.load_state_dict(through(state, fresh.state_dict(), tmp_path))
    assert fresh.state_dict() == state
    assert list(fresh) == list(iterator)


def rows_of(samples):
    return [(sample, row) for sample in samples for row in range(sample % 3)]


class Indices(Counted):
    def __getitem__(self, index):
        return index


class Broken(Indices):
    def __getitem__(self, index):
        if index % 7 == 3:
            raise OSError(index)
        return index


DATA_LOADERS = {
    "windows": lambda: DataLoader(
        range(60), 3, shuffle=True, seed=1, window_fn=rows_of, window_size=8, collate_fn=list
    ),
    "skipped samples": lambda: DataLoader(
        Broken(60), 3, shuffle=True, seed=1, on_sample_error="skip", window_size=8, collate_fn=list
    ),
    "own sampler": lambda: DataLoader(Indices(60), 1, sampler=OwnSampler(), seed=1, collate_fn=list),
    "shuffled": lambda: DataLoader(range(60), 3, shuffle=True, seed=1, collate_fn=list),
}


@pytest.mark.parametrize("kind", DATA_LOADERS)
@pytest.mark.parametrize("num_shown", [0, 4])
def test_a_data_loader_resumes_whatever_the_loader_shows_that_reads_the_checkpoint(tmp_path, kind, num_shown):
    loader, shown, resumed = (DATA_LOADERS[kind]() for _ in range(3))
    list(islice(chain.from_iterable(repeat(loader)), 8))
    list(islice(chain.from_iterable(repeat(shown)), num_shown))
    state = loader.state_dict()
    resumed.load_state_dict(state)
    shown.load_state_dict(through(state, shown.state_dict(), tmp_path))
    assert [list(shown) for _ in range(2)] == [list(resumed) for _ in range(2)]


@pytest.mark.parametrize("kind", ["windows", "skipped samples", "shuffled"])
def test_ranks_of_a_data_loader_go_on_as_others_again_and_again(tmp_path, kind):
    """Ranks are not in step, and their number has changed before: a fresh loader shows neither."""

    def ranks_of(count):
        loaders = [DATA_LOADERS[kind]() for _ in range(count)]
        for rank, loader in enumerate(loaders):
            loader.deal_out(count, rank)
        return loaders

    def saved(loaders):
        return DataLoader.merge_state_dicts([loader.local_state_dict() for loader in loaders])

    ranks, had = ranks_of(3), []
    for number, count in enumerate((2, 2, 1)):
        for rank, loader in enumerate(ranks):
            had += islice(loader, 1 + rank % 2)
        fresh = ranks_of(count)
        state = through(saved(ranks), saved(fresh), tmp_path / str(number))
        for loader in fresh:
            loader.load_state_dict(state)
        ranks = fresh
    rows = list(chain.from_iterable([*had, *ranks[0]]))
    assert sorted(rows) == sorted(chain.from_iterable(DATA_LOADERS[kind]()))
