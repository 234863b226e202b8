"""Writers: how shards are cut, what is refused, and that nothing looks whole before it is."""

import io
import os
import re
import sys
from itertools import product

import numpy as np
import pytest
from golden_shards import unpacked
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from written_examples import COLUMNS, rows_in, write

from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.streaming import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter
from fkat_data.streaming.formats import open_shard, read_index


def samples_of(count, start=0):
    return [{"id": number, "text": "x" * (number % 7)} for number in range(start, start + count)]


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter, CSVWriter, TSVWriter])
@given(
    texts=st.lists(st.text(st.characters(exclude_characters=",\t\n", codec="utf-8")), max_size=30),
    size_limit=st.integers(1, 400) | st.none(),
)
def test_what_is_written_is_read_whatever_the_limit(tmp_path_factory, writer, texts, size_limit):
    directory = tmp_path_factory.mktemp("data")
    samples = [{"id": number, "text": text, "ratio": number / 7} for number, text in enumerate(texts)]
    ratio = "float64" if writer is MDSWriter else "float"
    with writer(columns={**COLUMNS, "ratio": ratio}, out=directory, size_limit=size_limit) as made:
        for sample in samples:
            made.write({**sample, "not a column": None})
    assert rows_in(directory) == samples
    entries = read_index(directory / "index.json")
    assert all(entry.samples for entry in entries)
    if size_limit is not None and writer is MDSWriter:
        assert all(entry.raw_data.bytes <= size_limit or entry.samples == 1 for entry in entries)


@given(st.lists(st.fixed_dictionaries({name: st.text("ab:é", max_size=4) for name in "xy"}), min_size=1, max_size=8))
def test_separators_of_several_characters_are_never_made_where_values_meet(tmp_path_factory, samples):
    directory = tmp_path_factory.mktemp("data")
    kept = []
    with XSVWriter(columns={"x": "str", "y": "str"}, separator="::", newline="bé", out=directory) as writer:
        for sample in samples:
            try:
                writer.write(sample)
            except SampleError:
                continue
            kept.append(sample)
    assert rows_in(directory) == kept


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter, CSVWriter])
@pytest.mark.parametrize("compression", ["zstd:1", "gz", "br:2", "bz2:1", "snappy"])
def test_compressed_shards_come_back(tmp_path, writer, compression):
    (tmp_path / "raw").mkdir()
    settings = {"compression": compression, "hashes": ["xxh64", "sha1"], "size_limit": 200}
    write(tmp_path / "zip", samples_of(50), writer, **settings)
    entries = unpacked(tmp_path / "zip", tmp_path / "raw")
    assert [s for entry in entries for s in open_shard(tmp_path / "raw", entry).samples(range(entry.samples))] == (
        samples_of(50)
    )
    assert {entry.hashes for entry in entries} == {("sha1", "xxh64")}
    assert not [path for path in (tmp_path / "zip").iterdir() if path.suffix in (".mds", ".json", ".csv")][1:]


WRONG_SAMPLES = [
    ({"id": 1}, "column 'text', value <missing>"),
    ({"id": "1", "text": ""}, "column 'id', value '1': expected an int"),
    ({"id": 1, "text": None}, "column 'text', value None: expected a str"),
    (["id", "text"], "expected a dict from column to value"),
]


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter, CSVWriter])
@pytest.mark.parametrize(("sample", "text"), WRONG_SAMPLES)
def test_a_sample_that_cannot_be_written_is_refused_and_the_others_are_kept(tmp_path, writer, sample, text):
    with writer(columns=COLUMNS, out=tmp_path) as made:
        made.write(samples_of(1)[0])
        with pytest.raises(SampleError, match=re.escape(text)):
            made.write(sample)
        made.write(samples_of(1, 1)[0])
    assert rows_in(tmp_path) == samples_of(2)


@pytest.mark.parametrize(("writer", "encoding"), [(JSONWriter, "int"), (CSVWriter, "int"), (MDSWriter, "str_int")])
def test_an_int_that_python_makes_no_text_of_is_refused(tmp_path, writer, encoding):
    with writer(columns={"value": encoding}, out=tmp_path / os.fsdecode(b"shards\xe9")) as made:
        made.write({"value": 10**4000})
        with pytest.raises(SampleError, match="column 'value'"):
            made.write({"value": 10**5000})


def test_numbers_of_numpy_are_numbers_and_a_bool_is_an_int_where_its_text_is_one(tmp_path):
    with JSONWriter(columns={"i": "int", "f": "float", "b": "int"}, out=tmp_path) as writer:
        writer.write({"i": np.int32(3), "f": np.float32(0.5), "b": True})
    assert '"b": true' in (tmp_path / "shard.00000.json").read_text()
    assert rows_in(tmp_path) == [{"i": 3, "f": 0.5, "b": True}]


def png():
    buffer = io.BytesIO()
    Image.new("L", (2, 2)).save(buffer, "PNG")
    return buffer.getvalue()


READY_MADE = [("json", b'{"a": 1}'), ("str", "é".encode()), ("int", bytes(8)), ("jpeg", png()), ("pkl", b"N.")]


@pytest.mark.parametrize(("encoding", "data"), READY_MADE)
def test_ready_made_bytes_are_written_as_they_are(tmp_path, encoding, data):
    with MDSWriter(columns={"value": encoding}, out=tmp_path) as writer:
        writer.write({"value": data})
    (entry,) = read_index(tmp_path / "index.json")
    assert bytes(open_shard(tmp_path, entry, allow_unsafe_types=True).raw(0)).endswith(data)
    assert len(rows_in(tmp_path)) == 1


#: By writer and encoding: ready-made bytes and texts that could not be read, and values of another type.
UNREADABLE = [
    *((MDSWriter, *case) for case in (("json", b"{"), ("str", b"\xff"), ("int", bytes(7)), ("str_int", b"True"))),
    *((MDSWriter, *case) for case in (("ndarray", b"\x08"), ("pil", b""))),
    *((CSVWriter, "str", text) for text in ("a,b", "a\nb", "\ud800")),
    (CSVWriter, "int", True),
    *product((JSONWriter, CSVWriter), ("int",), (1.0, None)),
    *product((JSONWriter, CSVWriter), ("float", "str"), (1,)),
]


@pytest.mark.parametrize(("writer", "encoding", "value"), UNREADABLE)
def test_a_value_that_could_not_be_read_back_is_refused(tmp_path, writer, encoding, value):
    said = "" if isinstance(value, (bytes, str)) else f", value {value!r}: expected an? {encoding}"
    with writer(columns={"value": encoding}, out=tmp_path) as made, pytest.raises(SampleError, match=f"'value'{said}"):
        made.write({"value": value})


WRONG_ARGUMENTS = [
    ({"columns": {}}, "columns = {}"),
    ({"columns": ["id"]}, "columns = ['id']"),
    ({"columns": {"id": "float128"}}, "columns['id'] = 'float128'"),
    ({"hashes": ["crc32"]}, "hashes = 'crc32'"),
    ({"size_limit": 1 << 32}, "size_limit = 4294967296"),
    ({"out": ("a", "b", "c")}, "out = ('a', 'b', 'c')"),
    ({"out": ("s3://a", "b")}, "out = ('s3://a', 'b')"),
    ({"out": "nosuch://a"}, "out = 'nosuch://a'"),
    ({"out": "http://host/a"}, "out = 'http://host/a': expected a directory that can be written to"),
]


WRONG_LINES = [
    (JSONWriter, {"newline": "x"}, "newline = 'x'"),
    (JSONWriter, {"columns": {"id": "uint8"}}, "columns['id'] = 'uint8'"),
    (XSVWriter, {"separator": "\n"}, "separator = '\\n'"),
    (XSVWriter, {"separator": "|\n|"}, "newline = '\\n'"),
    (CSVWriter, {"columns": {"a,b": "str"}}, "columns = ['a,b']"),
]


@pytest.mark.parametrize(
    ("writer", "arguments", "text"),
    [*((MDSWriter, *case) for case in WRONG_ARGUMENTS), *WRONG_LINES],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_written_so_is_named_before_anything_is(tmp_path, monkeypatch, writer, arguments, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        writer(**{"columns": COLUMNS, "out": "data", **arguments})
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="exist_ok=True"):
        MDSWriter(columns=COLUMNS, out=tmp_path)


def test_a_dataset_is_replaced_and_other_files_are_kept(tmp_path):
    for count in (50, 3):
        with JSONWriter(columns=COLUMNS, out=tmp_path, size_limit=100, exist_ok=True) as writer:
            assert not (tmp_path / "index.json").exists()
            for sample in samples_of(count):
                writer.write(sample)
        (tmp_path / "notes.txt").write_text("mine")
        left = [
            tmp_path / f"{name}.tmp"
            for name in ("shard.99999.mds", "shard.00001.csv.gz.0123456789abcdef", "index.json")
        ]
        for path in left:
            path.write_text("left over")
    assert rows_in(tmp_path) == samples_of(3)
    for path in left:
        path.unlink()
    named = {info.basename for entry in read_index(tmp_path / "index.json") for info, _ in entry.files}
    assert {path.name for path in tmp_path.iterdir()} == {*named, "index.json", "notes.txt"}


@pytest.mark.parametrize("content", ['{"chunks": []}', "[]", "", "not JSON"])
def test_an_index_of_another_program_is_not_replaced(tmp_path, content):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(FileExistsError, match=r"index\.json is not the index of a dataset"):
        MDSWriter(columns=COLUMNS, out=tmp_path, exist_ok=True)
    assert (tmp_path / "index.json").read_text() == content


def test_a_folder_that_an_old_index_names_stays(tmp_path):
    write(tmp_path, samples_of(1))
    (tmp_path / "shard.00000.mds").unlink()
    (tmp_path / "shard.00000.mds" / "mine").mkdir(parents=True)
    write(tmp_path, samples_of(1), JSONWriter, exist_ok=True)
    assert rows_in(tmp_path) == samples_of(1)
    assert (tmp_path / "shard.00000.mds" / "mine").is_dir()


def test_the_index_comes_last(tmp_path):
    writer = MDSWriter(columns=COLUMNS, out=tmp_path, size_limit=200)
    for sample in samples_of(30):
        writer.write(sample)
        assert not (tmp_path / "index.json").exists()
    assert list(tmp_path.iterdir())
    writer.finish()
    writer.finish()
    assert rows_in(tmp_path) == samples_of(30)
    for call in (lambda: writer.write(samples_of(1)[0]), writer.__enter__):
        with pytest.raises(ValueError, match="the writer is finished"):
            call()
    writer.abandon()
    assert rows_in(tmp_path) == samples_of(30)


def test_a_bar_says_how_far_it_is(tmp_path, capsys):
    write(tmp_path, samples_of(30), size_limit=200, progress_bar=True)
    assert "30 samples" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "settings"),
    [("zstandard", {"compression": "zstd"}), ("brotli", {"compression": "br"}), ("xxhash", {"hashes": ["xxh64"]})],
)
def test_a_package_that_is_missing_is_told_at_once(tmp_path, monkeypatch, module, settings):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"{module} = <not installed>: expected pip install 'fkat_data\[str"):
        MDSWriter(columns=COLUMNS, out=tmp_path / "data", **settings)
    assert not (tmp_path / "data").exists()


def test_flush_shard_ends_a_shard_and_makes_no_empty_one(tmp_path):
    with MDSWriter(columns=COLUMNS, out=tmp_path) as writer:
        writer.flush_shard()
        for count in (3, 1, 5):
            for sample in samples_of(count):
                writer.write(sample)
            writer.flush_shard()
            writer.flush_shard()
        assert [shard["samples"] for shard in writer.shards] == [3, 1, 5]
    assert [len(entry) for entry in read_index(tmp_path / "index.json")] == [3, 1, 5]
    assert rows_in(tmp_path) == [sample for count in (3, 1, 5) for sample in samples_of(count)]
    with pytest.raises(ValueError, match="finished"):
        writer.flush_shard()


def test_a_writer_says_where_and_how_it_writes(tmp_path):
    with MDSWriter(columns={"b": "int", "a": "str"}, out=(str(tmp_path / "x"), str(tmp_path / "y"))) as writer:
        assert (writer.local, writer.remote, writer.keep_local) == (str(tmp_path / "x"), str(tmp_path / "y"), False)
        assert (writer.column_names, writer.column_encodings, writer.column_sizes) == (
            ["a", "b"],
            ["str", "int"],
            [None, 8],
        )
        assert writer.get_config()["column_names"] == ["a", "b"]
        assert (writer.get_config()["version"], writer.get_config()["format"]) == (2, "mds")
        writer.write({"a": "", "b": 1})
    with XSVWriter(columns={"a": "str"}, out=str(tmp_path / "z"), separator="::", newline="\r\n") as writer:
        assert (writer.separator, writer.newline, writer.remote) == ("::", "\r\n", None)
        writer.write({"a": ""})
