"""Where lines begin and how long samples are, written beside a file once: no process reads the file for it again."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fkat_data.datasets import JsonDataset, PackedDataset, read_lengths, write_lengths
from fkat_data.errors import ConfigurationError, ShardNotFoundError
from fkat_data.storage.file_identity import FileIdentity
from fkat_data.tools import app

PATHS = ["a.jsonl", "b.jsonl"]


def index(*words, code=0):
    done = CliRunner().invoke(app, ["index", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


def write(path, values, separator="\n"):
    path.write_text("".join(json.dumps(value) + separator for value in values))


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(PATHS):
        write(Path(name), [{"text": "x" * ((7 * row + number) % 50)} for row in range(300)])
    growing = "def growing(sample):\n    with open('a.jsonl', 'a') as file:\n        return file.write('[]\\n')\n"
    Path("counting.py").write_text("def tokens(sample):\n    return len(sample['text'])\n" + growing)
    return PATHS


def test_a_program_that_opens_indexed_files_reads_none_of_them_and_packs_by_their_lengths(processes, files):
    plain = list(JsonDataset(files))
    assert "indexed 600 lines of 2 files" in index(*files, "--lengths", "counting:tokens", "--workers", 2)
    assert read_lengths(files).tolist() == [len(sample["text"]) for sample in plain]
    for name in files:  # the same size and time, and other bytes: only what is asked for is read
        found = Path(name).stat()
        Path(name).write_text("#" * found.st_size)
        os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns))
    dataset = JsonDataset(files)
    assert len(dataset) == 600
    lengths = read_lengths(files)
    packed = PackedDataset(dataset, sequence_length=64, lengths=lengths, seed=1)
    assert sum(length for length in lengths) <= 64 * len(packed)


def test_what_an_earlier_call_has_written_is_not_indexed(files):
    index(files[0])
    assert "indexed 300 lines of 1 file" in index(*sorted(str(path) for path in Path().glob("a.jsonl*")))
    assert not Path("a.jsonl.lines.lines").exists()


@pytest.mark.parametrize("how", ["longer", "other lines", "touched", "cut off", "no sidecar"])
def test_a_sidecar_of_another_file_says_nothing(files, how, caplog):
    index(files[0])
    values = [{"text": "y" * row} for row in range(200)]
    if how == "longer":
        with Path(files[0]).open("a") as file:
            file.write('{"text": "more"}\n')
        values = [*({"text": "x" * (7 * row % 50)} for row in range(300)), {"text": "more"}]
    elif how == "other lines":
        write(Path(files[0]), values)
    else:
        write(Path(files[0]), values)
        index(files[0])
        sidecar = Path(f"{files[0]}.lines")
        if how == "touched":
            os.utime(files[0], ns=(1, 10**18))
        elif how == "cut off":
            sidecar.write_bytes(sidecar.read_bytes()[:-9])
        else:
            sidecar.unlink()
    assert list(JsonDataset(files[0])) == values
    assert ("cannot be read" in caplog.text) == (how == "cut off")


@given(
    values=st.lists(st.one_of(st.integers(), st.text(max_size=9)), max_size=30),
    separator=st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_any_lines_are_the_same_by_their_sidecar(tmp_path_factory, values, separator):
    path = tmp_path_factory.mktemp("lines") / "c.jsonl"
    write(path, values, separator)
    before = FileIdentity.of_path(str(path))
    JsonDataset(str(path)).save_index(before)
    assert list(JsonDataset(str(path))) == values


def test_lengths_of_a_file_that_was_changed_are_refused_by_its_name(files):
    with pytest.raises(ConfigurationError, match=r"a\.jsonl.*fkat-data index --lengths"):
        read_lengths(files)
    for name in files:
        write_lengths(name, np.arange(300))
    assert read_lengths(files).tolist() == [*range(300)] * 2
    write_lengths(files[1], [1 << 40])
    assert read_lengths(files[1]).tolist() == [1 << 40]
    write(Path(files[1]), [1])
    with pytest.raises(ConfigurationError, match=r"b\.jsonl"):
        read_lengths(files)
    for bad in ([-1], [[1]], ["1"]):
        with pytest.raises(ConfigurationError, match="lengths"):
            write_lengths(files[0], bad)
    with pytest.raises(ShardNotFoundError, match=r"nothing\.jsonl"):
        write_lengths("nothing.jsonl", [1])


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["missing.jsonl"], "missing.jsonl"),
        (["a.jsonl", "--lengths", "counting"], "MODULE:FUNCTION"),
        (["a.jsonl", "--lengths", "nothing:tokens"], "MODULE:FUNCTION"),
        (["a.jsonl", "--lengths", "counting:words"], "MODULE:FUNCTION"),
        (["a.jsonl", "--lengths", "counting:growing"], "while its lengths were counted"),
        (["train.bin"], "expected JSON Lines"),
    ],
)
def test_what_cannot_be_indexed_is_said(files, words, found):
    assert found in index(*words, code=2)
