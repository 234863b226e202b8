"""Writers whose files go to a remote directory: in memory, or a local one by way of another."""

import contextlib
import tempfile
import threading
import time

import fsspec
import pytest
from written_examples import COLUMNS, good_samples_of, index_at, write

from fkat_data.streaming import MDSWriter
from fkat_data.streaming.formats import read_index


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture
def staging(tmp_path, monkeypatch):
    """Where temporary directories are made, so that one that is left is seen."""
    place = tmp_path / "staging"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


SAMPLES = good_samples_of((0, 60))


def test_files_go_to_a_url_and_none_stays_here(memory, staging, tmp_path):
    write("memory://bucket/data", SAMPLES, compression="zstd")
    entries = index_at(memory, "/bucket/data/index.json", tmp_path)
    assert len(entries) > 3
    assert sorted(memory.find("/bucket/data")) == sorted(
        ["/bucket/data/index.json", *(f"/bucket/data/{entry.zip_data.basename}" for entry in entries)]
    )
    for entry in entries:
        assert memory.size(f"/bucket/data/{entry.zip_data.basename}") == entry.zip_data.bytes
    assert not list(staging.iterdir())


def test_an_upload_that_fails_is_raised_as_it_is_and_nothing_looks_whole(tmp_path, staging):
    (tmp_path / "remote").write_text("a file stands in the way")
    with pytest.raises(OSError, match="remote") as caught:
        write(f"file://{tmp_path}/remote/data", SAMPLES, retry=1)
    assert any("uploading shard.00000.mds to" in note for note in caught.value.__notes__)
    assert (tmp_path / "remote").read_text() == "a file stands in the way"
    assert not list(staging.iterdir())


def test_a_failed_upload_that_is_passed_over_still_leaves_no_dataset(tmp_path):
    remote = tmp_path / "remote"
    (remote / "data" / "shard.00000.mds").mkdir(parents=True)
    writer = MDSWriter(columns=COLUMNS, out=(tmp_path / "local", str(remote / "data")), size_limit=300, retry=1)
    for sample in SAMPLES:
        with contextlib.suppress(OSError):
            writer.write(sample)
    with pytest.raises(OSError, match=r"shard\.00000\.mds"):
        writer.finish()
    assert not (remote / "data" / "index.json").exists()


def test_an_upload_is_tried_again(tmp_path, caplog):
    remote = tmp_path / "remote"
    writer = MDSWriter(columns=COLUMNS, out=(tmp_path / "local", str(remote / "data")), retry=9)
    remote.write_text("a file stands in the way")
    writer.write(SAMPLES[0])

    def make_way():
        while not caplog.messages:
            time.sleep(0.005)
        remote.unlink()

    thread = threading.Thread(target=make_way)
    thread.start()
    writer.finish()
    thread.join()
    assert "upload of shard.00000.mds to" in caplog.messages[0]
    assert [entry.samples for entry in read_index(remote / "data" / "index.json")] == [1]


def test_a_writer_that_raised_leaves_no_index_there(memory, staging):
    writer = MDSWriter(columns=COLUMNS, out="memory://bucket/data", size_limit=300)
    for sample in SAMPLES:
        writer.write(sample)
    writer.abandon()
    assert not memory.exists("/bucket/data/index.json")
    assert not list(staging.iterdir())


def test_threads_end_with_the_writer(memory):
    before = threading.active_count()
    write("memory://bucket/data", SAMPLES, max_workers=3)
    assert memory.exists("/bucket/data/index.json")
    assert threading.active_count() == before
