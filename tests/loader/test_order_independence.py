"""One epoch has one digest, whatever the number of workers, the prefetches, and the time that anything takes."""

import hashlib
import random
import time

import pytest
from loader_examples import MIXED, make, mixed, plain

JITTER_S = 0.02


class Jittery:
    """Opens shards and makes microbatches of them, each after a time of its own."""

    def __init__(self, longest_s):
        self.longest_s = longest_s

    def __call__(self, shard):
        self.pause()
        product = mixed(shard)
        if hasattr(product, "dataset") and hasattr(product.dataset, "count"):
            product.collate_fn = self.collate
        return product

    def collate(self, samples):
        from torch.utils.data import default_collate

        self.pause()
        return default_collate(samples)

    def pause(self):
        # Not a global generator's draw: that would be the same each time.
        time.sleep(random.SystemRandom().uniform(0, self.longest_s))


def digest(loader):
    return hashlib.blake2b(repr([plain(microbatch) for microbatch in loader]).encode()).hexdigest()


def check(num_shards_ahead, num_microbatches_ahead, longest_s):
    whole = digest(make())
    options = {"num_shard_prefetches": num_shards_ahead, "num_microbatch_prefetches": num_microbatches_ahead}
    with make(MIXED, Jittery(longest_s), multiprocessing=True, **options) as loader:
        assert digest(loader) == whole


# One worker with nothing ahead, two and four.
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("num_shards_ahead", "num_microbatches_ahead"), [(0, 0), (1, 3), (3, -1)])
def test_an_epoch_has_one_digest(num_shards_ahead, num_microbatches_ahead):
    check(num_shards_ahead, num_microbatches_ahead, JITTER_S)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.parametrize("num_microbatches_ahead", [-1, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("num_shards_ahead", [0, 1, 2, 3, 4])
def test_an_epoch_has_one_digest_however_long_anything_takes(num_shards_ahead, num_microbatches_ahead, attempt):
    check(num_shards_ahead, num_microbatches_ahead, 0.3)
