"""The command that plays a run without data: what it prints, and its exit codes."""

import json
from functools import partial

import command_examples
import pytest

from fkat_data.streaming import MDSWriter

INVENTED = ("--shards", 40, "--samples-per-shard", 100, "--shard-bytes", "1mb")
LINE = ("--step-time", 0.1, "--bandwidth", "10mb")


said = partial(command_examples.said, "simulate")


def numbers(*arguments):
    return json.loads(said(*arguments, "--json"))


def write(directory, **options):
    with MDSWriter(out=str(directory), columns={"number": "int"}, size_limit=400, **options) as writer:
        for number in range(300):
            writer.write({"number": number})


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_dataset_is_simulated_from_its_index(config, tmp_path, compression):
    write(tmp_path / "data", compression=compression)
    for path in (tmp_path / "data").glob("shard*"):
        path.unlink()
    found = numbers(config, *LINE, "--nodes", 2)
    assert found["num_steps"] == 30
    assert len(found["nodes"]) == 2
    assert found["setup"]["workers_per_rank"] == 0
    assert sum(node["fetched_bytes"] for node in found["nodes"]) > 0


def test_the_workers_are_those_of_the_loader_unless_others_are_given(config, tmp_path):
    write(tmp_path / "data")
    assert numbers(config, *LINE, "--key", "loader")["setup"]["workers_per_rank"] == 1
    assert numbers(config, *LINE, "--key", "loader", "--workers", 3)["setup"]["workers_per_rank"] == 3


@pytest.mark.long
def test_a_dataset_is_invented(config):
    found = numbers(config, *INVENTED, *LINE, "--ranks-per-node", 2, "--steps", 1000, "--latency", 0)
    assert found["num_steps"] == 1000
    assert found["num_epochs"] == 3
    assert found["whole_bytes"] == 40 << 20
    assert numbers(config, *INVENTED, *LINE, "--key", "loader", "--steps", 9)["setup"]["workers_per_rank"] == 1
    compressed = numbers(config, *INVENTED, *LINE, "--compressed-bytes", "100kb", "--ranks-per-node", 2)
    assert compressed["nodes"][0]["fetched_bytes"] == 40 * 100 * 1024


@pytest.mark.long
def test_what_the_configuration_says_can_be_said_otherwise(config):
    given = numbers(config, *INVENTED, *LINE, "+dataset.predownload=70", "+dataset.cache_limit=20mb")["setup"]
    assert (given["predownload"], given["cache_limit_bytes"]) == (70, 20 << 20)
    options = ("--predownload", "1k", "--cache-limit", "30mb")
    other = numbers(config, *INVENTED, *LINE, "+dataset.predownload=70", *options)["setup"]
    assert (other["predownload"], other["cache_limit_bytes"]) == (1000, 30 << 20)
    unbounded = numbers(config, *INVENTED, *LINE, "+dataset.cache_limit=20mb", "--cache-limit", "none")["setup"]
    assert unbounded["cache_limit_bytes"] is None


def test_the_terminal_shows_numbers_time_and_nodes(config):
    output = said(config, *INVENTED, "--step-time", 0.01, "--bandwidth", "1mb", "--nodes", 2, "--epochs", 2)
    for words in ("800 steps, simulated", "to the first batch", "over time", "nodes"):
        assert words in output


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--bandwidth", "fast"), "--bandwidth"),
        (("--shard-bytes", "1kb"), "--shard-bytes"),
        (("~dataset.batch_size",), "batch_size"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value)),
)
def test_what_cannot_be_simulated_is_said(config, options, words):
    output = said(config, *INVENTED, *LINE, *options, code=2)
    assert "nothing was simulated" in output
    assert words in output
