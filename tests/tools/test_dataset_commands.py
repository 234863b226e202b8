"""The commands about datasets of shards: what they print, and their exit codes."""

import bz2
import gzip
import json
import lzma
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from command_examples import run, said

from fkat_data.datasets import JsonDataset
from fkat_data.streaming import MDSWriter

SHARDS = Path(__file__).parents[1] / "golden" / "streaming" / "shards"


def golden(case, tmp_path):
    return Path(shutil.copytree(SHARDS / case / "data", tmp_path / "data"))


def test_a_dataset_is_shown(tmp_path):
    output = said("inspect", golden("mds-simple", tmp_path), "--samples", "1")
    assert "11 samples in 3 shards (mds) of 3 to 4 samples" in output
    assert "hashes: sha1, xxh64" in output
    assert "str_decimal" in output
    assert "s_dec: Decimal('0.10')" in output
    assert "sample 1" not in output


@pytest.mark.parametrize("case", ["json-zstd", "xsv-br", "mds-images", "mds-ndarray", "mds-all-hashes", "mds-merged"])
def test_datasets_of_every_kind_are_shown_and_verified(tmp_path, case):
    data = golden(case, tmp_path)
    assert run("inspect", data)[0] == 0
    assert "0 of " in said("verify", data)
    assert {path.name for path in data.rglob("*")} == {path.name for path in (SHARDS / case / "data").rglob("*")}


def test_splits_are_shown_and_verified_one_by_one(tmp_path):
    data = golden("mds-splits", tmp_path)
    for command in ("inspect", "verify"):
        output = said(command, data)
        assert f"{data}/train" in output
        assert f"{data}/val" in output


def flip_a_byte(data):
    path = data / "shard.00001.mds"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return "shard.00001.mds': sha1 is '"


def cut_a_shard(data):
    path = data / "shard.00001.mds"
    path.write_bytes(path.read_bytes()[:-1])
    return "shard.00001.mds': size in bytes is 1100: expected 1101, as in the index"


def lose_a_shard(data):
    (data / "shard.00001.mds").unlink()
    return "shard.00001.mds': no such file"


@pytest.mark.parametrize("damage", [flip_a_byte, cut_a_shard, lose_a_shard])
def test_damage_is_named_and_the_other_shards_are_verified(tmp_path, damage):
    data = golden("mds-simple", tmp_path)
    text = damage(data)
    output = said("verify", data, code=1)
    assert text in output
    assert "7 samples decoded" in output
    assert "1 of 3 shards damaged" in output


def test_a_sample_that_cannot_be_decoded_is_named(tmp_path):
    with MDSWriter(columns={"image": "jpeg", "id": "int"}, out=tmp_path) as writer:
        writer.write({"image": b"no image", "id": 0})
    assert "row 0, column 'image': Pillow cannot open the image" in said("verify", tmp_path, code=1)


def test_an_image_whose_pixels_are_cut_off_is_found(tmp_path):
    content = (SHARDS / "mds-images" / "data" / "shard.00000.mds").read_bytes()
    begin = content.index(b"\x89PNG")
    end = content.index(b"IEND", begin) + 8
    with MDSWriter(columns={"image": "png"}, out=tmp_path) as writer:
        writer.write({"image": content[begin:end]})
        writer.write({"image": content[begin : end - 25]})
    assert "row 1, column 'image': " in said("verify", tmp_path, code=1)


def test_pickles_are_read_only_if_that_is_said(tmp_path):
    data = golden("mds-pkl", tmp_path)
    for command in ("inspect", "verify"):
        assert "allow_unsafe_types = False" in said(command, data, code=2)
        assert run(command, data, "--allow-unsafe-types")[0] == 0


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_is_no_dataset_is_told_as_such(tmp_path, command):
    text = f"{tmp_path}/index.json': no such file, and no files of a format that needs no index (.parquet"
    assert text in said(command, tmp_path, code=2)
    tokens = SHARDS.parents[1] / "tokens" / "*.bin"
    assert f"DIRECTORY = '{tokens}': expected files of samples; fkat_data.dat" in said(command, tokens, code=2)
    (tmp_path / "index.json").write_text('{"version": 1}')
    assert "index.json': version is 1: expected 2" in said(command, tmp_path, code=2)


def test_a_dataset_without_samples_is_well(tmp_path):
    data = golden("mds-no-samples", tmp_path)
    assert run("inspect", data)[0] == run("verify", data)[0] == 0


LINES = {
    "a.jsonl": bytes,
    "a.ndjson": bytes,
    "a.jsonl.gz": gzip.compress,
    "a.jsonl.xz": lzma.compress,
    "a.jsonl.bz2": bz2.compress,
    "a.json.zst": zstandard.compress,
}

COMPRESSIONS = {".gz": "gzip", ".xz": "xz", ".bz2": "bz2", ".zst": "zstd"}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("of", ["file", "pattern", "beginning", "folder"])
def test_lines_of_json_are_shown(tmp_path, name, of):
    path = tmp_path / name
    patterns = {"pattern": tmp_path / f"*{name[1:]}", "beginning": tmp_path / "a.*"}
    location = {"file": path, "folder": tmp_path, **patterns}[of]
    content = LINES[name](b'{"a": "one"}\n\n[2]\n3\n')
    path.write_bytes(content)
    output = said("inspect", location, "--samples", "2")
    assert "3 samples in 1 shard (JSON lines) of 3 samples" in output
    assert f"{len(content)} B stored, 20 B decompressed; compression: {COMPRESSIONS.get(path.suffix, 'none')}" in output
    assert "a: 'one'" in output
    assert "sample 1\n  [2]" in output
    assert "sample 2" not in output
    path.write_bytes(LINES[name](b'{"a": 1}\n{"a": \n'))
    assert "line 1 (from 0, blank lines not counted)" in said("inspect", location, code=2)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("of", ["file", "pattern", "folder"])
def test_lines_of_json_are_verified_and_the_damaged_ones_named(tmp_path, name, of):
    path = tmp_path / name
    location = {"file": path, "pattern": tmp_path / f"*{name[1:]}", "folder": tmp_path}[of]
    path.write_bytes(LINES[name](b'{"a": 1}\n\n[2]\n'))
    assert "2 lines of 1 file parsed" in said("verify", location)
    path.write_bytes(LINES[name](b'{"a": 1}\n{"a": \n{"a": 2}\n{"a": 3\n'))
    output = said("verify", location, code=1)
    assert f"{path}': line 1 (from 0, blank lines not counted), at byte 9 of the text" in output
    assert f"{path}': line 3 (from 0" in output
    assert "2 lines of 1 file parsed" in output
    assert "2 lines cannot be read" in output


def test_what_is_wrong_with_one_file_of_lines_hides_no_other(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 1_000)[:-9])
    (tmp_path / "b.jsonl").write_bytes(b"[" * 100_000 + b"\n" + b'{"a": 1}\n')
    (tmp_path / "c.jsonl").write_bytes(b"{}\n" + b"{\n" * 30)
    output = said("verify", tmp_path, code=1)
    assert "a.jsonl.gz': " in output
    assert "b.jsonl': expected values within the limits" in output
    assert output.count("c.jsonl': line") == 20
    assert "c.jsonl': 10 more lines cannot be read" in output
    assert "of 3 files parsed" in output
    assert "none.jsonl" in said("verify", tmp_path / "none.jsonl", code=2)


def test_a_value_beyond_a_limit_hides_no_other_row_group(tmp_path):
    days = pa.array([0, 1 << 30, 1, 2], pa.date32())
    pq.write_table(pa.table({"day": days}), tmp_path / "a.parquet", row_group_size=2)
    output = said("verify", tmp_path, code=1)
    assert "columns = 'day': expected columns whose values Python can hold; row group 0, row 1 of" in output
    assert "2 samples decoded" in output
    assert "0 of 2 shards damaged, 1 beyond a limit" in output


def test_files_are_converted(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"id": {number}, "text": "t"}}\n' for number in range(250)))
    out = tmp_path / "out"
    options = ["--compression", "zstd:1", "--hash", "xxh64", "--hash", "sha1", "--size-limit", "1kb", "-c", "id=uint16"]
    assert f"wrote 250 samples to {out}" in said("convert", tmp_path / "rows.jsonl", "--out", out, *options)
    index = json.loads((out / "index.json").read_text())
    assert len(index["shards"]) > 3
    assert {shard["compression"] for shard in index["shards"]} == {"zstd:1"}
    assert index["shards"][0]["column_encodings"] == ["uint16", "str"]
    assert run("verify", out)[0] == 0
    assert "pass --exist-ok to" in said("convert", tmp_path / "rows.jsonl", "--out", out, code=2)
    assert run("convert", tmp_path / "rows.jsonl", "--out", out, "--exist-ok", "--only", "id")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--column", "id"], "--column = 'id': expected NAME=ENCODING"),
        (["--column", "id=uint8"], "column 'id', value 300: expected a number that uint8 can represent"),
    ],
)
def test_a_conversion_that_cannot_work_is_told_as_such(tmp_path, arguments, text):
    (tmp_path / "rows.jsonl").write_text('{"id": 1}\n{"id": 300}\n')
    assert text in said("convert", tmp_path / "rows.jsonl", "--out", tmp_path / "out", *arguments, code=2)
    assert not (tmp_path / "out" / "index.json").exists()


def test_files_of_a_store_are_not_converted(tmp_path):
    code, output = run("convert", "s3://bucket/rows.jsonl", "--out", tmp_path / "out")
    assert (code, output.count("\n")) == (2, 1), output
    assert "paths = 's3://bucket/rows.jsonl': expected files or directories of this machine" in output


def test_indices_are_merged(tmp_path):
    data = golden("mds-merged", tmp_path)
    expected = (data / "index.json").read_bytes()
    (data / "index.json").unlink()
    code, output = run("merge-index", data)
    assert (code, output) == (0, f"{data} has 30 samples\n")
    assert (data / "index.json").read_bytes() == expected
    code, output = run("merge-index", data / "2", data / "0", data)
    assert (code, output) == (0, f"{data} has 20 samples\n")
    assert run("verify", data)[0] == 0
    assert "expected at least one index.json" in said("merge-index", tmp_path / "nowhere", code=2)


def test_index_reads_compressed_lines_and_fails_where_a_file_has_none(tmp_path):
    lines, other = tmp_path / "a.jsonl.xz", tmp_path / "b.jsonl.lz4"
    lines.write_bytes(lzma.compress(b"1\n2\n3\n"))
    other.write_bytes(b"\x04\x22\x4d\x18" + bytes(range(256)))
    assert "indexed 3 lines of 1 files" in said("index", lines)
    assert len(JsonDataset(str(lines))) == 3
    assert "its first bytes are lz4: decompress it first" in said("index", other, code=2)
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl.xz", "a.jsonl.xz.lines", "b.jsonl.lz4"}
