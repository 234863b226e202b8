import pytest

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.launch import Launch, launch_of

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
}


@pytest.mark.parametrize(
    ("environment", "group", "launch"),
    [
        ({}, None, Launch(1, 1, 0, 0)),
        ({"RANK": "", "WORLD_SIZE": " ", "LOCAL_RANK": ""}, None, Launch(1, 1, 0, 0)),
        (TORCHRUN, None, Launch(8, 4, 5, 1)),
        (TORCHRUN, (5, 8), Launch(8, 4, 5, 1)),
        ({"RANK": "0"}, None, Launch(1, 1, 0, 0)),
        ({"WORLD_SIZE": "1"}, None, Launch(1, 1, 0, 0)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, None, Launch(8, 1, 5, 1)),
        # torch.multiprocessing.spawn, and a process group whose ranks are arguments.
        ({}, (1, 2), Launch(2, 1, 1, 0)),
        ({"LOCAL_WORLD_SIZE": "2"}, (3, 4), Launch(4, 2, 3, 0)),
        # Lightning's launcher, once the process group is initialised.
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}, (1, 2), Launch(2, 1, 1, 1)),
        # The same before: the number of ranks is known, the rank is not.
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}, None, Launch(2, 1, None, 1)),
    ],
)
def test_a_group_or_the_variables_determine_the_rank(environment, group, launch):
    assert launch_of(environment, group) == launch


@pytest.mark.parametrize("environment", [{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "2", "RANK": ""}])
def test_a_rank_that_is_not_known_is_refused_with_both_variables(environment):
    with pytest.raises(ConfigurationError, match=r"RANK = <unset>.*WORLD_SIZE = 2"):
        _ = launch_of(environment).rank


@pytest.mark.parametrize(
    ("environment", "group", "argument", "expected"),
    [
        ({"RANK": "1"}, None, "RANK", "WORLD_SIZE is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, None, "RANK", "WORLD_SIZE = 2"),
        ({"WORLD_SIZE": "two"}, None, "WORLD_SIZE", "an integer"),
        ({"LOCAL_WORLD_SIZE": "4"}, None, "LOCAL_WORLD_SIZE", "WORLD_SIZE = 1"),
        ({"LOCAL_RANK": "1"}, None, "LOCAL_RANK", "WORLD_SIZE = 1"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, None, "LOCAL_RANK", "LOCAL_WORLD_SIZE = 4"),
        (TORCHRUN | {"GROUP_WORLD_SIZE": "3"}, None, "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE = 3"),
        (TORCHRUN, (4, 8), "RANK", "4, this process's rank in torch.distributed"),
        (TORCHRUN, (5, 16), "WORLD_SIZE", "16, this process's number of ranks in torch.distributed"),
    ],
)
def test_a_contradiction_is_refused_and_the_variable_named(environment, group, argument, expected):
    with pytest.raises(ConfigurationError) as caught:
        launch_of(environment, group)
    assert caught.value.argument == argument
    assert expected in caught.value.expected
