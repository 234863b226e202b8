from itertools import product

import pytest
from order_vectors import VECTORS, name

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.epoch import World


def assert_is(world, expected):
    fields = ("num_nodes", "ranks_per_node", "workers_per_rank", "worker", "num_ranks", "rank", "worker_of_rank")
    assert [getattr(world, field) for field in fields] == [expected[field] for field in fields]


@pytest.mark.parametrize("case", VECTORS["world_replicate"], ids=name)
def test_replicated_worlds_are_the_references(case):
    world = World(case["num_nodes"], case["ranks_per_node"], case["workers_per_rank"], case["worker"])
    if "base" in case:
        assert_is(world, case["base"])
    if "error" in case["out"]:
        with pytest.raises(ConfigurationError, match="replication"):
            world.replicated(case["replication"])
    else:
        assert_is(world.replicated(case["replication"]), case["out"])


def test_the_environment_says_who_this_is():
    assert World.here({}) == World()
    found = World.here({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "RANK": "6"})
    assert (found.num_nodes, found.ranks_per_node, found.rank) == (2, 4, 6)


def test_a_worker_has_a_number_on_each_level():
    for nodes, ranks, workers in product((1, 2, 3), repeat=3):
        indices = product(range(nodes), range(ranks), range(workers))
        for worker, (node, rank_of_node, worker_of_rank) in enumerate(indices):
            world = World(nodes, ranks, workers, worker)
            assert (world.node, world.rank_of_node, world.worker_of_rank) == (node, rank_of_node, worker_of_rank)
            assert world.worker_of_node == rank_of_node * workers + worker_of_rank
            assert (world.num_workers, world.workers_per_node) == (nodes * ranks * workers, ranks * workers)
            assert (world.is_leader, world.is_multinode) == (worker == 0, nodes > 1)
            assert world.is_local_leader == (rank_of_node == worker_of_rank == 0)
