"""The program, run on configurations in files: what it prints, and its exit codes."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import command_examples
import pytest
import yaml

verified = partial(command_examples.run, "verify-resume")
KEPT = "keeps state between microbatches"


def loader_config(factory, **options):
    return {
        "_target_": "fkat_data.ShardedDataLoader",
        "seed": "${seed}",
        "shard_sampler": {
            "_target_": "fkat_data.ShuffledShardSampler",
            "sampler": {"_target_": "fkat_data.samplers.SequenceShardSampler", "shards": ["1", "2", "3"]},
            "seed": "${seed}",
        },
        "dataloader_factory": factory,
        "dp_rank": "${fkat.dp_rank:}",
        **options,
    }


def dataset_config(dataset):
    return {
        "_target_": "fkat_data.DataLoaderFactory",
        "dataset_generator": {"_target_": f"verify_examples.{dataset}", "_partial_": True},
        "sampler_generator": {"_target_": "torch.utils.data.RandomSampler", "_partial_": True},
        "batch_size": 2,
    }


@pytest.fixture
def verify(tmp_path):
    """Write a tree of configurations and run the program on it; returns its exit code and what it printed."""

    def run(loader, *arguments, key="loader"):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "chosen.yaml").write_text(yaml.safe_dump({key: loader}))
        (tmp_path / "train.yaml").write_text("defaults:\n  - data@_here_: chosen\n  - _self_\nseed: 3\n")
        return verified(tmp_path / "train.yaml", *arguments)

    return run


def test_exact_data_pass_in_worker_processes_and_in_process(processes, verify):
    code, output = verify(loader_config(dataset_config("Exact")), "--trials", "2")
    assert code == 0, output
    assert "exact: 2 stops over 15 microbatches, 4 shards, 2 epochs, each resumed bit for bit" in output
    assert "in process" in output
    assert "workers" in output


# The order of a set is the same in all workers, and another one in this process, unless both hash alike.
@pytest.mark.long
@pytest.mark.parametrize(
    ("dataset", "cause"), [("SetOrder", "the state of the process"), ("ProcessId", "the process id")]
)
def test_faulty_data_are_caught_and_the_cause_is_named(processes, verify, dataset, cause):
    code, output = verify(loader_config(dataset_config(dataset)), "--mode", "both", "--microbatches", "10")
    assert code == 1
    assert "likely cause: " in output
    assert cause in output
    assert "(epoch 0, shard " in output
    assert " became " in output


@pytest.mark.long
def test_overrides_and_the_key_are_taken(verify):
    loader = loader_config(dataset_config("Exact"))
    code, output = verify(
        loader,
        "other.dataloader_factory.dataset_generator._target_=verify_examples.Counter",
        "--key=other",
        "--mode=in-process",
        key="other",
    )
    assert code == 1
    assert KEPT in output


def test_a_file_that_is_a_loader_itself_needs_no_key(tmp_path):
    config = {"seed": 3, **loader_config(dataset_config("Exact"))}
    config["seed"] = config["shard_sampler"]["seed"] = 3
    (tmp_path / "loader.yaml").write_text(yaml.safe_dump(config))
    code, output = verified(tmp_path / "loader.yaml", "--mode=in-process")
    assert code == 0, output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--key", "nothing"], "--key = 'nothing': expected a node with a `_target_` (the configuration has: "),
        (["+loader.nothing=1"], "nothing = 1: expected an argument of fkat_data.ShardedDataLoader"),
        (["--microbatches", "1"], "num_microbatches = 1"),
        (["--timeout-s", "0"], "--timeout-s = 0"),
    ],
)
def test_a_configuration_that_does_not_work_is_reported(verify, arguments, text):
    code, output = verify(loader_config(dataset_config("Exact")), *arguments)
    assert code == 2
    assert output.startswith("the configuration does not work, so nothing was verified: ConfigurationError: ")
    assert text in output
    assert "cause" not in output


def test_a_missing_file_is_reported():
    code, output = verified("nowhere.yaml")
    assert code == 2
    assert "CONFIG = 'nowhere.yaml': expected a YAML file that exists" in output


def test_failing_data_are_reported_with_their_position(verify):
    code, output = verify(loader_config(dataset_config("Failing")), "--mode=in-process")
    assert code == 2
    assert output.startswith(
        "the data fail even without a stop, so nothing was verified: OSError: the disk is on fire; "
    )
    assert "of shard '2' (epoch 0" in output


@pytest.mark.long
@pytest.mark.parametrize("mode", [pytest.param("workers", marks=pytest.mark.with_processes), "in-process"])
def test_a_loader_that_hangs_is_ended(verify, mode):
    code, output = verify(loader_config(dataset_config("Hanging")), "--timeout-s", "0.5", "--mode", mode)
    assert code == 2
    assert output.startswith("the loader hangs, so nothing was verified: HangError: ")


def test_the_installed_program_finds_modules_beside_it_and_says_its_options(processes, tmp_path):
    source = Path(__file__).with_name("verify_examples.py")
    (tmp_path / "verify_examples.py").write_text(source.read_text())
    config = loader_config(dataset_config("Exact"), multiprocessing=False)
    (tmp_path / "train.yaml").write_text(yaml.safe_dump({"seed": 3, "loader": config}))
    program = "from fkat_data.__main__ import main; main()"

    def run(*arguments):
        command = [sys.executable, "-P", "-c", program, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    done = run("verify-resume", "train.yaml", "--mode=in-process", "--trials=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact: 2 stops" in done.stdout
