"""torch.distributed.checkpoint: it takes a state apart, and reads the parts that the resuming loader shows to it."""

from itertools import chain, islice, repeat

import pytest
from elastic_examples import inside, outside, rank_loader, rest
from loader_examples import make
from walks import gathered

from fkat_data.mixing import DictDataLoader, RoundRobin

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
