"""Our own shuffles keep the contract."""

import pytest

from fkat_data.streaming.order import REFERENCE_SHUFFLES, BlockShuffle, ReferenceShuffle
from fkat_data.testing.contracts import ShuffleContract


class TestBlock(ShuffleContract):
    def make(self, unit_sizes, num_canonical_nodes, seed, epoch, block_size):
        return BlockShuffle(unit_sizes, num_canonical_nodes, seed, epoch, block_size)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", REFERENCE_SHUFFLES, scope="class")
class TestReferences(ShuffleContract):
    @pytest.fixture(autouse=True)
    def _algorithm(self, algorithm):
        self.algorithm = algorithm

    def make(self, unit_sizes, num_canonical_nodes, seed, epoch, block_size):
        return ReferenceShuffle(self.algorithm, unit_sizes, num_canonical_nodes, seed, epoch, block_size)
