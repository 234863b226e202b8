import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from fkat_data.configuration import instantiate, register_resolvers
from fkat_data.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _no_torchrun(monkeypatch):
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    register_resolvers()


def resolved(interpolation):
    return OmegaConf.create({"value": f"${{{interpolation}}}"}).value


TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}  # rank 5 of 8, the second one of its machine


@pytest.mark.parametrize(
    ("interpolation", "environment", "expected"),
    [
        # Without torchrun there is one rank.
        ("fkat.rank:", {}, 0),
        ("fkat.world_size:", {}, 1),
        ("fkat.local_rank:", {}, 0),
        ("fkat.dp_rank:", {}, 0),
        ("fkat.dp_size:", {}, 1),
        # With it, what its environment says.
        ("fkat.rank:", TORCHRUN, 5),
        ("fkat.world_size:", TORCHRUN, 8),
        ("fkat.local_rank:", TORCHRUN, 1),
        # Every rank holds a model of its own.
        ("fkat.dp_rank:", TORCHRUN, 5),
        ("fkat.dp_size:", TORCHRUN, 8),
        # Consecutive ranks hold one model: 4 and 5, or 4 to 7, or all.
        ("fkat.dp_rank:2", TORCHRUN, 2),
        ("fkat.dp_size:2", TORCHRUN, 4),
        ("fkat.dp_rank:8", TORCHRUN, 0),
        ("fkat.dp_size:8", TORCHRUN, 1),
    ],
)
def test_a_resolver_gives_the_place_in_the_world(monkeypatch, interpolation, environment, expected):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert resolved(interpolation) == expected


@pytest.mark.parametrize(
    ("interpolation", "environment", "message"),
    [
        ("fkat.rank:", {"RANK": "", "WORLD_SIZE": "2"}, "RANK = <unset>: expected an integer from 0 to 1"),
        ("fkat.rank:", {"RANK": "2", "WORLD_SIZE": "2"}, "RANK = 2: expected an integer from 0 to 1"),
        ("fkat.local_rank:", {"LOCAL_RANK": "8", "WORLD_SIZE": "8"}, "LOCAL_RANK = 8"),
        ("fkat.dp_rank:3", TORCHRUN, "model_parallel_size = 3: expected a divisor of the 8 ranks"),
        ("fkat.dp_rank:0", TORCHRUN, "model_parallel_size = 0"),
    ],
)
def test_a_wrong_place_names_its_variable(monkeypatch, interpolation, environment, message):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(InterpolationResolutionError, match=message):
        resolved(interpolation)
    # Where a whole configuration is instantiated, the error is the library's own.
    with pytest.raises(ConfigurationError, match=message):
        instantiate({"_target_": "builtins.dict", "deep": {"inside": f"${{{interpolation}}}"}})


def test_the_environment_is_read_each_time(monkeypatch):
    config = OmegaConf.create({"value": "${fkat.rank:}"})
    assert config.value == 0
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert config.value == 3
