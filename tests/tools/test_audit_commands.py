"""The commands that recompute an order: what they print, and their exit codes."""

import pytest
from command_examples import run, said

from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset


@pytest.fixture
def config(config, tmp_path):
    with MDSWriter(out=str(tmp_path / "data"), columns={"number": "int"}, size_limit=200) as writer:
        for number in range(50):
            writer.write({"number": number})
    return config


@pytest.mark.parametrize("options", [[], ["--key", "loader"]])
def test_a_batch_is_explained(config, tmp_path, options):
    order = {"shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 400}
    dataset = StreamingDataset(local=str(tmp_path / "data"), batch_size=5, **order)
    batches = [batch["number"].tolist() for _ in range(2) for batch in StreamingDataLoader(dataset)]
    output = said("explain", config, "--step", 13, *options)
    assert "epoch 1, global batch 3" in output
    rows = [[cell.strip() for cell in line.split("│")] for line in output.splitlines() if "shard." in line]
    assert [int(row[5]) for row in rows] == batches[13]
    assert str(tmp_path / "data") in output


def test_a_batch_of_another_world_is_explained(config):
    output = said("explain", config, "dataset.batch_size=2", "--ranks-per-node", 2, "--nodes", 2)
    ranks = [line.split("│")[1].strip() for line in output.splitlines() if "shard." in line]
    assert ranks == ["0", "0", "1", "1", "2", "2", "3", "3"]


def test_what_a_configuration_skips_is_said(config):
    output = said("explain", config, "+dataset.skip=[{epoch:0,batches:[3,5]},{samples:[7]}]", "--step", 4)
    assert output.count("skipped") == 5


def test_coverage_is_proved(config):
    assert "Every sample was read exactly once." in said("coverage", config)
    assert "15" in said("coverage", config, "--steps", 3, code=1)
    assert "2 samples were read again" in said("coverage", config, "dataset.batch_size=4", "--ranks-per-node", 4)


@pytest.mark.parametrize(
    "arguments",
    [["--step", "10", "--epoch", "0"], ["--key", "nothing"], ["dataset.shuffle_algo=best"], ["dataset.local=/nowhere"]],
)
def test_what_cannot_be_explained_is_said(config, arguments):
    assert "cannot show the batch" in said("explain", config, *arguments, code=2)


def test_a_node_that_is_no_dataset_is_refused(config):
    config.write_text("dataset:\n  _target_: builtins.dict\n")
    assert "StreamingDataset" in said("coverage", config, code=2)


BAD_CONFIGURATIONS = [
    (b"dataset: [1, 2\n", "expected valid YAML: while parsing a flow sequence"),
    (b"\xff\xfe\x00", "expected valid YAML: 'utf-8' codec"),
    (b"defaults: [nothing]\n", "Could not load 'nothing'."),
    (b"", "--key = 'dataset': expected a node with a `_target_`"),
    (b"dataset:\n  _target_: nowhere.Data\n", "No module named 'nowhere'"),
    (b"dataset:\n  _target_: builtins.int\n  _args_: [abc]\n", "ValueError: invalid literal for int()"),
    (b"dataset:\n  _target_: builtins.dict\n  local: ${nothing}\n", "Interpolation key 'nothing' not found"),
    (b"dataset:\n  _target_: fkat_data.streaming.StreamingDataset\n  local: dbfs:/Volumes/x\n", "dbfs:/Volumes/x"),
]


@pytest.mark.long
@pytest.mark.parametrize("command", [["explain"], ["coverage"], ["simulate"]])
@pytest.mark.parametrize(("content", "text"), BAD_CONFIGURATIONS, ids=lambda value: str(value)[:20])
def test_a_configuration_that_makes_no_sense_is_one_line_and_an_exit_code(tmp_path, command, content, text):
    (tmp_path / "run.yaml").write_bytes(content)
    code, output = run(*command, tmp_path / "run.yaml")
    assert (code, output.count("\n")) == (2, 1), output
    assert text in output
    assert run("verify-resume", tmp_path / "run.yaml", "--key", "dataset")[0] == 2


@pytest.mark.parametrize("command", [["explain"], ["coverage"], ["verify-resume"], ["report"], ["inspect"], ["verify"]])
@pytest.mark.parametrize("location", ["s3://bucket/run.yaml", "https://host/run.yaml", "dbfs:/Volumes/run.yaml"])
def test_a_url_instead_of_a_path_is_one_line_and_an_exit_code(command, location):
    code, output = run(*command, location)
    assert (code, output.count("\n")) == (2, 1), output
    assert f"'{location}': expected" in output


def test_a_home_directory_is_found_by_every_command(config, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    for arguments in (
        ["explain", "~/run.yaml"],
        ["coverage", "~/run.yaml"],
        ["inspect", "~/data"],
        ["verify", "~/data"],
    ):
        said(*arguments)
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    said("convert", "~/rows.jsonl", "--out", "~/parts/0")
    assert run("merge-index", "~/parts")[0] == 0
    assert (tmp_path / "parts" / "index.json").is_file()
