import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from order_vectors import VECTORS, check, name

from fkat_data.streaming.order import EvenPartition, Grid, partitioned


def tensor(found, grid, workers):
    """Positions as the reference lays them out: nodes, ranks, workers, batches, samples."""
    num_batches = -(-found.num_rank_samples // found.grid.batch_size)
    num_batches += -num_batches % workers
    positions = found.positions(np.arange(num_batches * grid.global_batch_size))
    positions = positions.reshape(-1, workers, grid.num_nodes, grid.ranks_per_node, grid.batch_size)
    return positions.transpose(2, 3, 1, 0, 4)


@pytest.mark.parametrize("case", VECTORS["partition"], ids=name)
def test_partitions_are_the_references(case):
    grid = Grid(case["num_physical_nodes"], case["ranks_per_node"], case["batch_size"])

    def make():
        found = partitioned(
            case["algo"],
            case["num_samples"],
            case["num_canonical_nodes"],
            grid,
            case["drop_first"],
            case["initial_physical_nodes"],
        )
        return tensor(found, grid, case["workers_per_rank"])

    check(make, case)


GRIDS = st.builds(Grid, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))


@given(size=st.integers(1, 200), canonical=st.integers(1, 9), grid=GRIDS, steps=st.integers(0, 5))
def test_the_even_partition_shows_each_position_once_and_ranks_equally_many(size, canonical, grid, steps):
    drop = min(steps * grid.global_batch_size, -(-size // grid.num_ranks) * grid.num_ranks)
    made = EvenPartition(size, canonical, grid, drop)
    whole = EvenPartition(size, canonical, Grid(1, 1, 1))
    order = whole.positions(np.arange(size))
    assert sorted(order.tolist()) == list(range(size))
    num_batches = -(-made.num_rank_samples // grid.batch_size)
    positions = made.positions(np.arange(num_batches * grid.global_batch_size)).reshape(
        num_batches, grid.num_ranks, grid.batch_size
    )
    # All ranks read equally many samples, and batches.
    counts = (positions >= 0).sum(axis=(0, 2))
    assert set(counts.tolist()) == {made.num_rank_samples}
    # What is left is read, and at most a rank's worth of it twice.
    assert set(positions[positions >= 0].tolist()) >= set(order[drop:].tolist())
    assert counts.sum() - max(0, size - drop) in range(grid.num_ranks)
    # A full global batch is the same samples in any world.
    for step in range((size - drop) // grid.global_batch_size):
        first = drop + step * grid.global_batch_size
        assert sorted(positions[step].reshape(-1).tolist()) == sorted(
            order[first : first + grid.global_batch_size].tolist()
        )


@given(canonical=st.integers(1, 3), nodes=st.integers(1, 3), ranks=st.integers(1, 3))
def test_a_node_reads_its_own_canonical_nodes(canonical, nodes, ranks):
    rows = canonical * nodes
    grid = Grid(nodes, ranks, 2)
    positions = EvenPartition(rows * 12 * ranks, rows, grid).positions(np.arange(rows * 12 * ranks))
    found = positions.reshape(-1, nodes, ranks, 2)
    for node in range(nodes):
        assert {position // (12 * ranks) % nodes for position in found[:, node].reshape(-1).tolist()} == {node}
