"""Use the installed package as a new user would: scripts/wheel_check runs it in an empty environment and folder."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

import fkat_data
from fkat_data import DataLoaderFactory, ShardedDataLoader
from fkat_data.samplers import SequenceShardSampler


class Numbers(torch.utils.data.Dataset):
    def __init__(self, shard):
        self.start = int(shard)

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return self.start + index


def program(*arguments, statuses=(0,)):
    done = subprocess.run(["fkat-data", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode in statuses, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout


def check_place_and_version():
    place = Path(fkat_data.__file__)
    assert place.is_relative_to(sys.prefix), f"{place} is not what was installed"
    assert fkat_data.__version__ == version("fkat_data")
    assert fkat_data.__version__ in program("--version")


def check_doctor():
    # A machine may deserve advice (1); nothing of the installation may be wrong (2).
    findings = json.loads(program("doctor", "--json", statuses=(0, 1)))
    assert findings, "the doctor reports nothing"


def check_loop():
    sampler = SequenceShardSampler(["0", "10", "20"])
    factory = DataLoaderFactory(Numbers, batch_size=5)
    with ShardedDataLoader(seed=1, shard_sampler=sampler, dataloader_factory=factory, num_shard_prefetches=1) as loader:
        found = torch.cat(list(loader)).tolist()
    assert found == list(range(30)), found


def check_configuration():
    Path("conf").mkdir(exist_ok=True)
    Path("conf/train.yaml").write_text(
        """
defaults: [{sampler: listing}, {loader: debug}, _self_]
hydra: {searchpath: ["pkg://fkat_data.configs"]}
seed: 1
data:
  uri: shards
  glob: "*.txt"
  factory:
    _target_: fkat_data.DataLoaderFactory
    dataset_generator: {_target_: builtins.open, _partial_: true}
    batch_size: 1
"""
    )
    Path("shards").mkdir(exist_ok=True)
    Path("shards/a.txt").write_text("one")
    from hydra import compose, initialize_config_dir

    from fkat_data.configuration import instantiate, register_resolvers

    register_resolvers()
    with initialize_config_dir(str(Path("conf").resolve()), version_base="1.3"):
        config = compose("train")
    with instantiate(config.loader) as loader:
        assert type(loader).__name__ == "ShardedDataLoader"


if __name__ == "__main__":
    for check in (check_place_and_version, check_doctor, check_loop, check_configuration):
        check()
    print(f"fkat_data {fkat_data.__version__} works, with torch {torch.__version__} on Python {sys.version.split()[0]}")
