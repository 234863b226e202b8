import pytest
from order_vectors import VECTORS, name

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.epoch import World

FIELDS = (
    "node",
    "num_nodes",
    "rank",
    "num_ranks",
    "rank_of_node",
    "ranks_per_node",
    "worker",
    "num_workers",
    "worker_of_node",
    "workers_per_node",
    "worker_of_rank",
    "workers_per_rank",
)


@pytest.mark.parametrize("case", VECTORS["world_replicate"], ids=name)
def test_replicated_worlds_are_the_references(case):
    world = World(case["num_nodes"], case["ranks_per_node"], case["workers_per_rank"], case["worker"])
    if "base" in case:
        assert {field: getattr(world, field) for field in FIELDS} == {field: case["base"][field] for field in FIELDS}
    if "error" in case["out"]:
        with pytest.raises(ConfigurationError, match="replication"):
            world.replicated(case["replication"])
        return
    found = world.replicated(case["replication"])
    assert {field: getattr(found, field) for field in FIELDS} == {field: case["out"][field] for field in FIELDS}


def test_the_environment_says_who_this_is():
    assert World.here({}) == World()
    found = World.here({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "RANK": "6"})
    assert (found.num_nodes, found.ranks_per_node, found.node, found.rank_of_node) == (2, 4, 1, 2)


@pytest.mark.parametrize(
    ("environment", "argument"),
    [
        ({"WORLD_SIZE": "x"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK"),
        ({"WORLD_SIZE": "2"}, r"RANK = <unset>.*WORLD_SIZE = 2"),
        ({"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_WORLD_SIZE"),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused(environment, argument):
    with pytest.raises(ConfigurationError, match=argument):
        World.here(environment)
