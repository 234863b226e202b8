import gzip
import json
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fkat_data.datasets import IterableJsonDataset, JsonDataset
from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.tools import app

COMPRESSIONS = {
    "plain": lambda text: text,
    "gzip": gzip.compress,
    "gzip of two members": lambda text: gzip.compress(text[:7]) + gzip.compress(text[7:]),
    "zstd": lambda text: zstandard.ZstdCompressor().compress(text),
    "zstd of two frames": lambda text: zstandard.compress(text[:7]) + zstandard.compress(text[7:]),
}
SAMPLES = [{"text": f"line {number}", "number": number} for number in range(10)]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
blanks = st.sampled_from(["", "\n", "  \n", "\r\n", "\t\n\n"])


def text_of(samples, end="\n"):
    return ("\n".join(json.dumps(sample) for sample in samples) + end).encode()


@pytest.fixture(params=COMPRESSIONS)
def path(request, tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(COMPRESSIONS[request.param](text_of(SAMPLES)))
    return str(path)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@settings(max_examples=40)
@given(blanks, st.lists(st.tuples(values, blanks), max_size=12), st.booleans(), st.booleans(), st.data())
def test_what_was_written_is_read(compression, begin, lines, is_ascii, has_end, data):
    samples = [sample for sample, _ in lines]
    text = begin + "".join(json.dumps(sample, ensure_ascii=is_ascii) + "\n" + blank for sample, blank in lines)
    content = (text if has_end else text.rstrip("\r\n\t ")).encode("utf-8", "surrogatepass")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines"
        path.write_bytes(COMPRESSIONS[compression](content))
        dataset = JsonDataset(str(path))
        assert len(dataset) == len(samples)
        assert list(IterableJsonDataset(str(path))) == samples
        if samples:
            indices = data.draw(st.lists(st.integers(-len(samples), len(samples) - 1), max_size=20))
            assert dataset.__getitems__(indices) == [samples[index] for index in indices]
            assert [dataset[index] for index in indices] == [samples[index] for index in indices]


def test_a_file_of_more_lines_than_have_offsets_is_read_with_a_bounded_index(tmp_path):
    (tmp_path / "many").write_bytes(text_of(range(100)) * 22_000)
    dataset = JsonDataset(str(tmp_path / "many"))
    assert len(dataset) == 2_200_000
    assert dataset.__getitems__([2_199_999, 0, 500, 501, 127, 128]) == [99, 0, 0, 1, 27, 28]
    assert dataset.__getitems__(np.array([-1, 5], np.int8)) == [99, 5]
    assert len(pickle.dumps(dataset)) < 8 << 20


def test_files_follow_one_another(tmp_path, path):
    more = tmp_path / "more.jsonl"
    more.write_bytes(text_of(["x", "y"], end=""))
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    paths = [str(empty), path, str(more)]
    assert list(IterableJsonDataset(paths)) == [*SAMPLES, "x", "y"]
    dataset = JsonDataset(paths)
    assert len(dataset) == 12
    assert dataset.__getitems__([11, 0, 10]) == ["y", SAMPLES[0], "x"]


def test_no_descriptor_is_left_open(path, nothing_left_behind):
    JsonDataset(path)[0]
    iterator = iter(IterableJsonDataset(path))
    next(iterator)
    iterator.close()


# Zeros are damage, and no blank line.
@pytest.mark.parametrize("line", [b'{"a": ', b"no JSON", b'"\xff"', b"{}{}", bytes(20)])
def test_a_line_that_is_no_json_is_named_with_its_location(tmp_path, line):
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n3\n")
    dataset = JsonDataset(str(path))
    assert dataset[0] == {"a": 1}
    assert dataset[2] == 3
    with pytest.raises(ShardCorruptError, match=r"odd\.jsonl.*line 1 .*byte 10 "):
        dataset[1]
    samples = iter(IterableJsonDataset(str(path)))
    assert next(samples) == {"a": 1}
    with pytest.raises(ShardCorruptError, match=r"odd\.jsonl.*line 1 .*byte 10 "):
        next(samples)


@pytest.mark.parametrize("compression", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("kind", [JsonDataset, IterableJsonDataset])
def test_a_line_without_an_end_is_no_way_to_fill_the_memory(tmp_path, compression, kind):
    path = tmp_path / "bomb.jsonl"
    path.write_bytes(COMPRESSIONS[compression](b'1\n"' + b"a" * (8 << 20)))
    with pytest.raises(ConfigurationError, match=r"max_line_bytes = 100000: .* byte 2 of .*bomb\.jsonl is longer"):
        list(kind(str(path), max_line_bytes=100_000))


@pytest.mark.parametrize("compression", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("kind", [JsonDataset, IterableJsonDataset])
@pytest.mark.parametrize("size", [100, (1 << 20) + 100, (3 << 20) - 7])
def test_each_line_may_have_as_many_bytes_as_are_allowed_and_no_more(tmp_path, compression, kind, size):
    path = tmp_path / "lines.jsonl"
    lines = [b"1", b'"' + b"a" * (size - 2) + b'"', b"2"]
    path.write_bytes(COMPRESSIONS[compression](b"\n".join(lines) + b"\n"))
    assert list(kind(str(path), max_line_bytes=size)) == [json.loads(line) for line in lines]
    with pytest.raises(
        ConfigurationError, match=rf"max_line_bytes = {size - 1}: .* byte 2 of .*lines\.jsonl is longer"
    ):
        list(kind(str(path), max_line_bytes=size - 1))


def test_lines_before_one_that_is_too_long_are_read_in_order(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'1\n2\n"aaa"\n3\n')
    samples = iter(IterableJsonDataset(str(path), max_line_bytes=4))
    assert [next(samples), next(samples)] == [1, 2]
    with pytest.raises(ConfigurationError, match=r"byte 4 of "):
        next(samples)


def test_lines_that_are_too_long_are_refused_by_an_index_that_was_saved_too(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'1\n"aaa"\n3\n')
    assert CliRunner().invoke(app, ["index", str(path)]).exit_code == 0
    dataset = JsonDataset(str(path), max_line_bytes=4)
    assert [dataset[0], dataset[2]] == [1, 3]
    with pytest.raises(ConfigurationError, match=r"max_line_bytes = 4: .* byte 2 of .*lines\.jsonl is longer"):
        dataset[1]


def test_a_file_of_one_document_says_that_each_line_must_be_a_value(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('[{"i": 1},\n{"i": 2}]')
    with pytest.raises(
        ConfigurationError, match=r"each a JSON value of its own; .*Expecting value at character \d+, as"
    ):
        JsonDataset(str(path))[0]
