"""Where a writer writes: what it refuses, what it removes, and what happens to a writer that is dropped."""

import gc
import re

import pytest
from written_examples import COLUMNS, good_samples_of, tens, write, write_items

from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.streaming import LocalDataset, MDSWriter, Stream, StreamingDataset, merge_index

SAMPLES = good_samples_of((0, 30))


@pytest.mark.parametrize("location", ["dbfs:/Volumes/main/data", "file:/data", "s3:/bucket/data"])
def test_a_url_without_slashes_is_no_path(tmp_path, monkeypatch, location):
    monkeypatch.chdir(tmp_path)
    for make in (
        lambda: MDSWriter(columns=COLUMNS, out=location),
        lambda: MDSWriter(columns=COLUMNS, out=("local", location)),
        lambda: merge_index(location),
        lambda: Stream(remote=location),
        lambda: Stream(local=location),
        lambda: LocalDataset(location),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(location)) as caught:
            make()
        assert location.partition(":")[2] in caught.value.expected
    assert not list(tmp_path.iterdir())


def test_locations_mean_the_same_after_chdir_and_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    writers = [MDSWriter(columns=COLUMNS, out=out) for out in ("a", "~/b", ("c", "~/d"))]
    monkeypatch.chdir(tmp_path / "elsewhere")
    for writer in writers:
        writer.write(SAMPLES[0])
        writer.finish()
    monkeypatch.chdir(tmp_path)
    datasets = [
        LocalDataset("a"),
        LocalDataset("~/b"),
        StreamingDataset(local="a", batch_size=1),
        StreamingDataset(remote="~/d", local="cached", batch_size=1),
        StreamingDataset(streams=[Stream(remote="a", local="~/cached")], batch_size=1),
    ]
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [dataset[0] for dataset in datasets] == [SAMPLES[0]] * len(datasets)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"a", "cached", "elsewhere", "home"}
    with pytest.raises(ConfigurationError, match="two different directories"):
        MDSWriter(columns=COLUMNS, out=("here", str(tmp_path / "elsewhere" / "here")))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_urls_of_files_are_read_where_they_are_written(tmp_path):
    (tmp_path / "a b").mkdir()
    url = f"file://{tmp_path}/a%20b/data"
    write(url, SAMPLES)
    assert StreamingDataset(remote=url, batch_size=1)[29] == SAMPLES[29]
    assert {path.name for path in tmp_path.iterdir()} == {"a b"}
    write(f"file://localhost{tmp_path}/a%20b/data", SAMPLES[:2], exist_ok=True)
    assert {path.name for path in (tmp_path / "a b" / "data").iterdir()} == {"index.json", "shard.00000.mds"}


@pytest.mark.parametrize("second", ["data", "link", "file"])
def test_a_second_writer_of_a_directory_is_refused_until_the_first_is_done(tmp_path, second):
    (tmp_path / "link").symlink_to(tmp_path / "data")
    out = {"data": tmp_path / "data", "link": tmp_path / "link", "file": f"file://{tmp_path}/data"}[second]
    first = MDSWriter(columns=COLUMNS, out=tmp_path / "data")
    for options in ({}, {"exist_ok": True}):
        with pytest.raises(ConfigurationError, match="no other writer is writing"):
            MDSWriter(columns=COLUMNS, out=out, **options)
        with pytest.raises(ConfigurationError, match="no other writer is writing"):
            write_items(out, tens(1), **options)
    first.write(SAMPLES[0])
    first.finish()
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"index.json", "shard.00000.mds"}
    write(out, SAMPLES, exist_ok=True)
    assert len(LocalDataset(tmp_path / "data")) == 30


def test_an_index_that_appears_meanwhile_is_not_replaced(tmp_path):
    writer = MDSWriter(columns=COLUMNS, out=tmp_path / "data")
    writer.write(SAMPLES[0])
    (tmp_path / "data" / "index.json").write_text("another's")
    with pytest.raises(FileExistsError, match="another writer"):
        writer.finish()
    assert (tmp_path / "data" / "index.json").read_text() == "another's"


def test_fewer_items_leave_no_part_of_the_dataset_before(tmp_path):
    out = tmp_path / "data"
    assert write_items(out, tens(5)) == 50
    (out / "000004" / "notes.txt").write_text("mine")
    (out / "202401").mkdir()
    write(out / "202401", SAMPLES)
    assert write_items(out, tens(2), exist_ok=True) == 20
    assert sorted(path.name for path in out.iterdir()) == ["000000", "000001", "000004", "202401", "index.json"]
    assert [path.name for path in (out / "000004").iterdir()] == ["notes.txt"]
    assert merge_index(out) == 20 + 30
    (out / "index.json").unlink()
    with pytest.raises(FileExistsError, match="data/000000' already has a dataset"):
        write_items(out, tens(1))


def test_a_writer_that_replaces_merged_parts_leaves_no_index_of_a_part(tmp_path):
    write_items(tmp_path / "data", tens(3))
    write(tmp_path / "data", SAMPLES[:2], exist_ok=True)
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"index.json", "shard.00000.mds"}


def test_what_links_lead_to_is_not_removed(tmp_path):
    write(tmp_path / "elsewhere", SAMPLES)
    before = sorted((tmp_path / "elsewhere").iterdir())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "000000").symlink_to(tmp_path / "elsewhere")
    index = (tmp_path / "elsewhere" / "index.json").read_text().replace('"shard.', '"000000/shard.')
    (tmp_path / "data" / "index.json").write_text(index)
    write(tmp_path / "data", SAMPLES[:2], exist_ok=True)
    assert sorted((tmp_path / "elsewhere").iterdir()) == before


def test_a_writer_that_is_dropped_says_so_and_leaves_nothing(tmp_path, caplog):
    writer = MDSWriter(columns=COLUMNS, out=tmp_path / "data", size_limit=300)
    for sample in SAMPLES:
        writer.write(sample)
    del writer
    gc.collect()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"a writer to {tmp_path / 'data'} was dropped without finish()" in record.getMessage()
    assert not (tmp_path / "data").exists()
    write(tmp_path / "data", SAMPLES)
    for samples in ([], SAMPLES):
        with pytest.raises(SampleError):
            write(tmp_path / "other", [*samples, "no sample"])
        assert not (tmp_path / "other").exists()
    gc.collect()
    assert len(caplog.records) == 1


def test_a_program_that_ends_without_finish_hears_of_it_and_processes_that_end_hold_no_lock(tmp_path, run_script):
    done = run_script(
        f"""
import os, signal, sys
from fkat_data.streaming import MDSWriter

def writer_to(name):
    return MDSWriter(columns={{"id": "int"}}, out=f"{tmp_path}/{{name}}", size_limit=100)

if os.fork() == 0:
    killed = writer_to("killed")
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
print(os.listdir("{tmp_path}/killed"))
writer_to("killed").finish()
print(os.listdir("{tmp_path}/killed"))
forgotten = writer_to("forgotten")
for number in range(100):
    forgotten.write({{"id": number}})
if os.fork() == 0:
    sys.exit()
os.wait()
print(len(os.listdir("{tmp_path}/forgotten")) > 3)
"""
    )
    assert done.stdout == "['.fkat_data.writing']\n['index.json']\nTrue\n"
    assert done.stderr.count("was dropped without finish()") == 1
    assert not (tmp_path / "forgotten").exists()
