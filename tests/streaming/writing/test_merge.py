"""Indices that are merged: which, in which order, and what their shards are called afterwards."""

import re

import fsspec
import pytest
import written_examples
from written_examples import good_samples_of, index_at, rows_in

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.streaming import JSONWriter, MDSWriter, merge_index


def write(out, start, writer=MDSWriter):
    written_examples.write(out, good_samples_of((start, 5)), writer, size_limit=200)


def ids(directory):
    return [row["id"] for row in rows_in(directory)]


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter])
def test_every_index_below_is_taken_however_deep_and_in_natural_order(tmp_path, writer):
    for number, name in enumerate(["2", "10", "a/1", "a/b/2", "b"]):
        write(tmp_path / name, 100 * number, writer)
    assert merge_index(tmp_path) == 25
    assert ids(tmp_path)[::5] == [0, 100, 200, 300, 400]
    assert merge_index(str(tmp_path)) == 25, "a second time: the index of the whole is none of its parts"
    assert ids(tmp_path)[::5] == [0, 100, 200, 300, 400]
    merge_index(tmp_path, natural_order=False)
    assert ids(tmp_path)[::5] == [100, 0, 200, 300, 400]
    assert not list(tmp_path.glob("*.tmp"))


def test_indices_that_are_named_are_taken_in_that_order_and_once(tmp_path):
    for name in ("a", "b", "c"):
        write(tmp_path / name, ord(name))
    named = [tmp_path / "c", f"{tmp_path}/a/", f"{tmp_path}/c/index.json", str(tmp_path / "b" / ".." / "a")]
    assert merge_index(named, tmp_path) == 10
    assert ids(tmp_path)[::5] == [ord("c"), ord("a")]


def test_remote_indices_are_merged_where_they_are(tmp_path):
    files = fsspec.filesystem("memory")
    for number, name in enumerate(["2", "10"]):
        write(f"memory://bucket/{name}", 100 * number)
    assert merge_index("memory://bucket") == 10
    merged = index_at(files, "/bucket/index.json", tmp_path)
    assert merged[0].raw_data.basename == "2/shard.00000.mds"
    assert merged[-1].raw_data.basename.startswith("10/")
    pairs = [(str(tmp_path / name), f"memory://bucket/{name}") for name in ("10", "2")]
    assert merge_index(pairs, (str(tmp_path), "memory://bucket"), keep_local=False) == 10
    assert not (tmp_path / "index.json").exists()
    assert index_at(files, "/bucket/index.json", tmp_path)[0].raw_data.basename == "10/shard.00000.mds"
    merge_index((str(tmp_path), "memory://bucket"))
    assert (tmp_path / "index.json").read_bytes() == files.cat_file("/bucket/index.json")
    files.store.clear()


def test_what_cannot_be_merged_is_named_and_nothing_is_written(tmp_path):
    write(tmp_path / "root" / "a", 0)
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "root"
    wrong = [
        ((tmp_path / "elsewhere",), ConfigurationError, "expected at least one index.json"),
        (([], root), ConfigurationError, "index_urls = []: expected at least one index.json"),
        (("a", root), ConfigurationError, "index_urls = 'a': expected a list of paths or URLs"),
        (([root / "a", tmp_path / "elsewhere"], root), ConfigurationError, "index_urls[1] = "),
        (([root], root), ConfigurationError, "expected a directory below out"),
        (([root / "none"], root), ShardNotFoundError, "none/index.json"),
        ((), ConfigurationError, "locations = ()"),
    ]
    for locations, error, text in wrong:
        with pytest.raises(error, match=re.escape(text)):
            merge_index(*locations)
    (root / "b").mkdir()
    (root / "b" / "index.json").write_text('{"version": 2}')
    with pytest.raises(ShardCorruptError, match=r"root/b/index\.json': shards is missing"):
        merge_index(root)
    assert not (root / "index.json").exists()
