"""``doctor`` shows each finding once, and its exit code is that of the worst."""

import json

from typer.testing import CliRunner

from fkat_data.tools.cli.commands import app


def run(*arguments):
    done = CliRunner().invoke(app, ["doctor", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_machine_is_examined_as_text_and_as_json(tmp_path):
    code, output = run("--cache", tmp_path)
    assert code in (0, 1), output
    assert "start of workers" in output
    again, text = run("--cache", tmp_path, "--json")
    assert again == code
    found = json.loads(text)
    assert found["level"] == ("ok", "advice")[code]
    assert {"versions", "machine", "storage"} < set(found)
    assert {"subject", "level", "found", "change"} == set(found["machine"][0])


def test_a_loader_and_its_worker_are_examined(tmp_path, processes):
    config = tmp_path / "run.yaml"
    config.write_text(
        "loader:\n  _target_: fkat_data.ShardedDataLoader\n  seed: 0\n  shard_sampler: [a, b]\n"
        "  dataloader_factory: {_target_: fkat_data.DataLoaderFactory, batch_size: 2,\n"
        "    dataset_generator: {_target_: builtins.list, _partial_: true}}\n"
    )
    code, output = run(config, "--json")
    assert code in (0, 1), output
    found = {finding["subject"]: finding["found"] for finding in json.loads(output)["configuration"]}
    assert found["workers"].startswith("1 on ")
    assert found["shards"] == "2 on this rank in an epoch"


def test_a_configuration_that_fails_is_wrong(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(
        "loader:\n  _target_: fkat_data.ShardedDataLoader\n  seed: 0\n  shard_sampler: [a]\n"
        "  dataloader_factory: {_target_: fkat_data.DataLoaderFactory, dataset_generator: 3}\n"
    )
    code, output = run(config)
    assert code == 2
    assert "cannot be instantiated" in output


def test_a_key_without_a_configuration_is_refused():
    code, output = run("--key", "loader")
    assert code == 2
    assert "CONFIG" in output
