import pytest
from omegaconf import OmegaConf

from fkat_data import DataLoaderFactory, FsShardSampler, ShuffledShardSampler
from fkat_data.configuration import instantiate
from fkat_data.errors import ConfigurationError


class Holder:
    """Keeps what it is given."""

    def __init__(self, value=None, *, other=None):
        self.value = value
        self.other = other


class Failing:
    def __init__(self):
        raise KeyError("my own") from OSError("its cause")


def anything(*args, **keywords):
    return args, keywords


def no_arguments():
    return "made"


def test_nodes_inside_nodes_become_objects(tmp_path):
    (tmp_path / "a.parquet").touch()
    config = OmegaConf.create(
        {
            "seed": 3,
            "sampler": {
                "_target_": "fkat_data.ShuffledShardSampler",
                "seed": "${seed}",
                "sampler": {"_target_": "fkat_data.FsShardSampler", "uri": str(tmp_path)},
            },
        }
    )
    sampler = instantiate(config.sampler)
    assert isinstance(sampler, ShuffledShardSampler)
    assert isinstance(sampler.sampler, FsShardSampler)
    assert sampler.seed == 3


def test_arguments_are_plain_lists_and_dicts():
    value = instantiate({"_target_": Holder, "value": {"list": [1, {"a": 2}]}}).value
    assert type(value) is dict
    assert type(value["list"]) is list
    assert type(value["list"][1]) is dict


def test_a_partial_node_is_called_later():
    factory = instantiate(
        {
            "_target_": "fkat_data.DataLoaderFactory",
            "dataset_generator": {"_target_": Holder, "_partial_": True, "other": 2},
        }
    )
    assert isinstance(factory, DataLoaderFactory)
    made = factory.dataset_generator("shard")
    assert (made.value, made.other) == ("shard", 2)


def test_a_list_of_nodes_becomes_a_list_of_objects():
    first, second = instantiate(OmegaConf.create([{"_target_": "builtins.dict", "a": 1}, {"b": 2}]))
    assert first == {"a": 1}
    assert second == {"b": 2}


def test_a_target_that_takes_anything_is_given_anything():
    assert instantiate({"_target_": anything, "_args_": [1], "key": 2}) == ((1,), {"key": 2})


LISTING = {"_target_": "fkat_data.FsShardSampler", "uri": "/"}
PARTIAL = {"_target_": "fkat_data.datasets.parquet.ParquetDataset", "_partial_": True}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        # A key that is unknown: of the node itself, of one inside, of one that is called later, in a list.
        (
            LISTING | {"globe": "*"},
            r"^globe = '\*': expected an argument of fkat_data.FsShardSampler \(did you mean 'glob'\?\)",
        ),
        ({"sampler": LISTING | {"x": 1}}, r"^sampler\.x = 1: expected an argument of .*: uri, glob, recursive"),
        ({"dataset": PARTIAL | {"column": ["a"]}}, r"^dataset\.column = .*did you mean 'columns'"),
        ([{}, PARTIAL | {"column": ["a"]}], r"^\[1\]\.column = "),
        ({"_target_": no_arguments, "x": 1}, "it has none"),
        # One that is missing.
        (
            {"_target_": "fkat_data.FsShardSampler"},
            "^uri = <missing>: expected a value: fkat_data.FsShardSampler requires it",
        ),
        (LISTING | {"uri": "???"}, "^uri = <missing>: expected a value"),
        # One that leads nowhere.
        ({"a": {"b": "${nothing.there}"}}, r"^a\.b = <unresolved>: .*nothing\.there"),
        # A target that is none.
        ({"_target_": "fkat_data.NoSuchClass"}, "^_target_ = 'fkat_data.NoSuchClass': expected an importable name"),
        ({"_target_": "fkat_data.__version__"}, "^_target_ = .*: expected a class or a function"),
    ],
)
def test_what_cannot_work_is_named_by_its_place(config, message):
    with pytest.raises(ConfigurationError, match=message):
        instantiate(OmegaConf.create(config, flags={"allow_objects": True}))


def test_an_error_of_the_target_is_itself_and_tells_the_place():
    config = OmegaConf.create({"outer": {"inner": {"_target_": Failing}}}, flags={"allow_objects": True})
    with pytest.raises(KeyError, match="my own") as caught:
        instantiate(config.outer)
    assert "outer.inner" in caught.value.__notes__[0]
    assert isinstance(caught.value.__cause__, OSError)


def test_a_node_that_makes_its_own_parts_is_left_to_do_so():
    made = instantiate({"_target_": Holder, "_recursive_": False, "value": {"_target_": "fkat_data.Nothing"}})
    assert made.value == {"_target_": "fkat_data.Nothing"}


def test_an_error_of_the_root_has_no_place_in_the_configuration():
    with pytest.raises(KeyError) as caught:
        instantiate({"_target_": Failing})
    assert not getattr(caught.value, "__notes__", [])
