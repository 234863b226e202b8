import numpy as np
import pytest

from fkat_data.streaming.order import BlockShuffle


def order_of(sizes, nodes=1, epoch=0, block_size=50, seed=7):
    made = BlockShuffle(np.array(sizes, np.int64), nodes, seed, epoch, block_size)
    return made.samples_at(np.arange(made.size))


def test_a_canonical_node_has_the_same_shards_in_every_epoch():
    sizes = [50] * 40
    for node in range(4):
        part = slice(node * 500, (node + 1) * 500)
        first, second = (set((order_of(sizes, 4, epoch)[part] // 50).tolist()) for epoch in (0, 1))
        assert first == second


@pytest.mark.parametrize("block_size", [512, 2048, 8192])
def test_a_shard_is_open_for_a_block_and_not_longer(block_size):
    size = 64
    order = order_of([size] * 1024, block_size=block_size)
    shards = order // size
    for shard in range(1024):
        open_for = np.flatnonzero(shards == shard)
        assert open_for[-1] - open_for[0] < 1.15 * block_size + size
