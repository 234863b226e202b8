from collections import Counter
from itertools import product

import pytest
from elastic_examples import rest, written
from loader_examples import make
from own_sampler_examples import CHANGING, FIXED, OTHERS, GloballyShuffled
from walks import at_state, gathered, recorded

from fkat_data import DistributedDataParallelShardSampler, ShuffledShardSampler

NUM_EPOCHS = 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("sampler", "wrap"),
    [
        *product(FIXED + CHANGING + OTHERS, [lambda sampler: sampler]),
        *product(FIXED + CHANGING, [ShuffledShardSampler]),
    ],
)
@pytest.mark.parametrize("num_shards_ahead", [0, 2])
def test_a_users_sampler_resumes_exactly_from_every_position(sampler, wrap, num_shards_ahead, some):
    options = {"num_shard_prefetches": num_shards_ahead}
    microbatches, states = recorded(make(wrap(sampler()), **options), written, NUM_EPOCHS)
    assert len(microbatches) == NUM_EPOCHS * 10
    for position, state in some(enumerate(states)):
        resumed = at_state(make(wrap(sampler()), **options), state)
        assert list(rest(resumed, NUM_EPOCHS)) == microbatches[position:], position
    # ... and in a loader that has already gone elsewhere
    for position in (0, 3, 1):
        resumed.load_state_dict(states[position])
        assert list(rest(resumed, NUM_EPOCHS)) == microbatches[position:], position


@pytest.mark.parametrize("sampler", FIXED + CHANGING)
def test_a_subclass_is_split_again_over_other_ranks_at_every_step(sampler):
    def ranks(dp_size):
        return [
            make(DistributedDataParallelShardSampler(sampler(), dp_size, dp_rank), dp_rank=dp_rank)
            for dp_rank in range(dp_size)
        ]

    whole = Counter(microbatch for loader in ranks(3) for microbatch in rest(loader, 1))
    loaders, delivered = ranks(3), Counter()
    microbatches = [rest(loader, 1) for loader in loaders]
    while delivered != whole:
        # First of all: an epoch of which nothing was delivered is not split again, but begins with the new ranks.
        delivered.update(text for own in microbatches if (text := next(own, None)) is not None)
        resumed = ranks(2)
        for loader in resumed:
            loader.load_state_dict(gathered(loaders))
        left = Counter(microbatch for loader in resumed for microbatch in rest(loader, 1))
        assert delivered + left == whole, delivered.total()
    assert whole.total() == 10


def test_workers_make_the_shards_of_a_subclass(remote):
    with remote(GloballyShuffled(), num_shard_prefetches=2) as loader:
        assert list(rest(loader, 2)) == list(rest(make(GloballyShuffled()), 2))
