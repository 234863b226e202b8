"""The index of a dataset whose store has many hosts, which may name one content differently."""

import itertools
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from streaming_examples import write

from fkat_data.errors import ShardCorruptError
from fkat_data.streaming import StreamingDataset


class Hosts(LocalFileSystem):
    """Each request is answered by the next host, which has a name of its own for the content, and maybe a time."""

    protocol = "hosts"
    names = itertools.cycle("a")
    offsets_s = itertools.cycle([0])

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("hosts://"))

    def info(self, path, **options):
        found = super().info(path, **options)
        return found | {"ETag": f"{next(Hosts.names)}-{found['size']}", "mtime": found["mtime"] + next(Hosts.offsets_s)}


@pytest.fixture(autouse=True)
def _hosts(monkeypatch):
    fsspec.register_implementation("hosts", Hosts, clobber=True)
    monkeypatch.setattr(Hosts, "names", itertools.cycle("a"))
    monkeypatch.setattr(Hosts, "offsets_s", itertools.cycle([0]))
    # Else the store is asked at most every 30 s.
    monkeypatch.setattr("fkat_data.streaming.reading.dataset_index._CHECK_INTERVAL_S", 0.0)


def read(data, cache):
    dataset = StreamingDataset(remote=f"hosts://{data}", local=str(cache), batch_size=1, predownload=0)
    return (sample["number"] for sample in dataset)


NAMES = {"two hosts": "ab", "three hosts": "abc", "a new one each time": itertools.count()}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_names_of_the_hosts_end_no_job_and_a_dataset_that_is_written_again_does(tmp_path, monkeypatch, names):
    data = write(tmp_path / "data", 60, columns=("number",))
    monkeypatch.setattr(Hosts, "names", itertools.cycle(names) if isinstance(names, str) else names)
    for _ in range(2):
        # With copies of the shards, and without.
        assert list(read(data, tmp_path / "cache")) == list(range(60))
    samples = read(data, tmp_path / "another")
    assert next(samples) == 0
    write(data, 60, first=100, columns=("number",), exist_ok=True)
    with pytest.raises(ShardCorruptError, match="written again"):
        list(samples)


def test_where_hashes_tell_the_data_the_times_of_the_hosts_do_not_count(tmp_path, monkeypatch):
    data = write(tmp_path / "data", 60, columns=("number",), hashes=["sha256"])
    monkeypatch.setattr(Hosts, "names", itertools.cycle("aab"))
    monkeypatch.setattr(Hosts, "offsets_s", itertools.cycle([0, 1000]))
    for _ in range(3):
        assert list(read(data, tmp_path / "cache")) == list(range(60))


def test_an_index_that_is_gone_is_noticed(tmp_path):
    data = write(tmp_path / "data", 60, columns=("number",))
    samples = read(data, tmp_path / "cache")
    assert next(samples) == 0
    Path(data, "index.json").unlink()
    with pytest.raises(ShardCorruptError, match="no index"):
        list(samples)
