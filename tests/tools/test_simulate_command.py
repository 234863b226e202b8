"""The command that simulates a run: what it prints, and its exit codes."""

import json
from functools import partial

import command_examples
import pytest

from fkat_data.streaming import MDSWriter

INVENTED = ("--shards", 40, "--samples-per-shard", 100, "--shard-bytes", "1mb")


said = partial(command_examples.said, "simulate")


def numbers(*arguments):
    return json.loads(said(*arguments, "--json"))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_dataset_is_simulated_from_its_index(config, tmp_path, compression):
    data = str(tmp_path / "data")
    with MDSWriter(out=data, columns={"number": "int"}, size_limit=400, compression=compression) as writer:
        for number in range(300):
            writer.write({"number": number})
    for path in (tmp_path / "data").glob("shard*"):
        path.unlink()
    (epoch,) = numbers(config, "--nodes", 2)["epochs"]
    assert epoch["num_steps"] == 30
    assert len(epoch["nodes"]) == 2
    assert sum(node["fetched_bytes"] for node in epoch["nodes"]) > 0
    assert numbers(config, "--key", "loader") == numbers(config)


@pytest.mark.long
def test_a_dataset_is_invented(config):
    found = numbers(config, *INVENTED, "--ranks-per-node", 2, "--epochs", 2)
    assert [epoch["num_steps"] for epoch in found["epochs"]] == [400, 400]
    assert found["epochs"][0]["nodes"][0]["shard_bytes"] == 40 << 20
    compressed = numbers(config, *INVENTED, "--compressed-bytes", "100kb", "--ranks-per-node", 2)
    assert compressed["epochs"][0]["nodes"][0]["fetched_bytes"] == 40 * 100 * 1024


@pytest.mark.long
def test_the_caches_limit_can_be_another_one(config):
    given = (config, *INVENTED, "+dataset.cache_limit=20mb")
    assert numbers(*given)["cache_limit_bytes"] == 20 << 20
    assert numbers(*given, "--cache-limit", "30mb")["cache_limit_bytes"] == 30 << 20
    assert numbers(*given, "--cache-limit", "none")["cache_limit_bytes"] is None


def test_the_terminal_shows_each_epoch(config, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # another test, or the shell, may have set fewer
    output = said(config, *INVENTED, "--nodes", 2, "--epochs", 2)
    for words in ("fetched by all nodes", "fetched again", "40 MiB", "400"):
        assert words in output


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cache-limit", "large"), "--cache-limit"),
        (("--shard-bytes", "1kb"), "--shard-bytes"),
        (("~dataset.batch_size",), "batch_size"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value)),
)
def test_what_cannot_be_simulated_is_said(config, options, words):
    output = said(config, *INVENTED, *options, code=2)
    assert "nothing was simulated" in output
    assert words in output
