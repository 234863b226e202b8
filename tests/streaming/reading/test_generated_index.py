"""The index of files that have none: kept whole, or made again, whatever happens to its maker."""

import json
import os
import signal
import threading
import time

import pytest
from parquet_examples import write_parquet

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.files import parquet as parquet_index
from fkat_data.streaming.reading import dataset_index as generated_index
from fkat_data.streaming.reading.dataset_index import GeneratedIndex, kept_path
from fkat_data.streaming.reading.stream import FilePattern
from fkat_data.streaming.store.open_store import open_store


@pytest.fixture
def opened(tmp_path):
    for number in range(5):
        write_parquet(tmp_path / "data" / f"{number}.parquet", range(10), [5, 5], ("number",))

    def opened_index(columns=None):
        store = open_store(tmp_path / "data", storage_options=None, num_retries=0, timeout_s=5)
        return GeneratedIndex(store, FilePattern(""), columns, tmp_path / "kept" / "index.json")

    return opened_index


def test_it_is_read_again_as_it_was_made(opened, tmp_path, monkeypatch):
    made = opened().read()
    assert [file.name for file in made.files] == [f"{number}.parquet" for number in range(5)]
    monkeypatch.setattr(parquet_index, "describe", None)  # nothing is described again
    assert opened().read().version == made.version
    assert opened().kept().version == made.version
    assert opened().read().entries(is_in_place=True) == made.entries(is_in_place=True)
    names = [info.basename for entry in made.entries(is_in_place=False) for info in (entry.raw_data, entry.raw_meta)]
    assert made.stale([*names, "other", "a.parts/b"]) == []
    os.utime(tmp_path / "data" / "3.parquet", ns=(1, 1))
    monkeypatch.undo()
    changed = opened().read()
    assert changed.version != made.version
    assert set(changed.stale(names)) == {name for name in names if name.startswith("3.")}


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: b"", lambda text: text.replace(b"5", b"6", 9)])
def test_a_kept_index_that_is_damaged_is_made_again(opened, tmp_path, damage):
    made = opened().read()
    path = tmp_path / "kept" / "index.json"
    path.write_bytes(damage(path.read_bytes()))
    assert opened().kept() is None
    assert opened().read().version == made.version
    assert opened().kept().version == made.version


@pytest.mark.parametrize("at", ["describe", "_save", "replace"])
def test_a_maker_that_is_killed_leaves_nothing_that_misleads(opened, tmp_path, monkeypatch, processes, at):
    pid = os.fork()
    if not pid:

        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()

        if at == "replace":
            monkeypatch.setattr(os, "fsync", die)  # the temporary file is there, under its own name
        else:
            monkeypatch.setattr(parquet_index if at == "describe" else generated_index, at, die)
        opened().read()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert opened().kept() is None
    assert len(opened().read().files) == 5
    left = list((tmp_path / "kept").glob("*.tmp"))
    assert len(left) == (at == "replace")
    for path in left:
        os.utime(path, (1, 1))
    os.utime(tmp_path / "data" / "0.parquet", ns=(1, 1))
    opened().read()
    assert not list((tmp_path / "kept").glob("*.tmp"))


def test_the_first_damaged_file_is_named_and_nothing_is_kept(opened, tmp_path):
    for number in (1, 3):
        (tmp_path / "data" / f"{number}.parquet").write_bytes(b"PAR1, torn")
    with pytest.raises(ShardCorruptError, match=r"/data/[13]\.parquet"):
        opened().read()
    assert opened().kept() is None


def test_a_chosen_column_that_no_file_has_is_an_error(opened):
    with pytest.raises(ConfigurationError, match="'colour': expected columns of"):
        opened(("colour",)).read().entries(is_in_place=True)


def test_an_index_that_is_not_read_for_long_goes_when_another_is_kept(opened, tmp_path):
    opened().read()
    kept = tmp_path / "kept"
    old, young = kept / "old.json", kept / "young.json"
    for path in (old, young, kept / "index.json"):
        path.touch()
        os.utime(path, (time.time() - (89 if path == young else 91) * 86400,) * 2)
    opened().read()
    assert time.time() - (kept / "index.json").stat().st_mtime < 3600  # this one is in use
    os.utime(tmp_path / "data" / "0.parquet", ns=(1, 1))
    opened().read()
    assert old.exists()  # a cache's folder has other files
    os.utime(tmp_path / "data" / "0.parquet", ns=(2, 2))
    index = opened()
    index._is_pruned = True
    index.read()
    assert {path.name for path in kept.iterdir()} == {"index.json", "young.json"}


def test_the_user_has_a_place_for_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept_path("a").parent == tmp_path / "fkat_data" / "indices"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert kept_path("a") != kept_path("b")
    assert json.dumps(str(kept_path("\udcff")))
