import itertools
import os
import pickle
import time
from pathlib import Path

import pytest
from streaming_examples import write

from fkat_data.errors import ShardCorruptError
from fkat_data.streaming.reading.dataset_index import DatasetIndex
from fkat_data.streaming.store.attempts import Redaction
from fkat_data.streaming.store.directory_client import DirectoryClient
from fkat_data.streaming.store.store import Store


class Hosts(DirectoryClient):
    """A store whose hosts name one content differently: each request comes from the next host.

    Args:
        directory: What all of them serve.
        names: The names; the time stays, unless a host has its own.
        offsets_ns: How much later each host was written.
    """

    def __init__(self, directory, names, offsets_ns=(0,)):
        super().__init__(directory)
        self._names = itertools.cycle(names)
        self._offsets = itertools.cycle(offsets_ns)

    def open(self, *arguments):
        body = super().open(*arguments)
        body.version = f"{next(self._names)} {self._time(body.version)}"
        return body

    def version(self, name, timeout_s, *, is_timed=False):
        found = super().version(name, timeout_s, is_timed=is_timed)
        return f"{next(self._names)} {self._time(found)}"

    def _time(self, version):
        return int(version.rpartition(" ")[2]) + next(self._offsets)


def index_of(directory, names=("one",), hosts=Hosts, **options):
    client = hosts(Path(directory), names, **options)
    store = Store(
        str(directory), lambda: client, Redaction(str(directory), {}), num_retries=0, timeout_s=9, is_local=True
    )
    return DatasetIndex(store)


def in_use(index):
    found = index.read()
    index.use(found.version, found.report)
    return found


NAMES = {
    "one host": ["a"],
    "two hosts": ["a", "b"],
    "three hosts": ["a", "b", "c"],
    "a new one each time": itertools.count(),
}


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data", 30, columns=("number",))


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_names_of_the_hosts_change_no_version_and_end_no_job(data, names):
    versions = {in_use(index_of(data, names)).version for _ in range(5)}
    assert len(versions) == 1
    index = index_of(data, names)
    in_use(index)
    for _ in range(40):
        index.check(at_once=True)
    write(data, 30, first=100, columns=("number",), exist_ok=True)
    with pytest.raises(ShardCorruptError, match="written again"):
        index.check(at_once=True)


def test_hashes_make_the_times_of_the_hosts_unimportant(tmp_path):
    data = write(tmp_path / "data", 30, hashes=["sha256"])
    index = index_of(data, ["a", "b"], offsets_ns=(0, 10**9))
    versions = set()
    for _ in range(5):
        versions.add(in_use(index).version)
        index.check(at_once=True)
    assert len(versions) == 1


class Apart(DirectoryClient):
    """Two hosts with times of their own: whichever is read, the other one reports."""

    def __init__(self, directory, names):
        super().__init__(directory)
        self._reads = itertools.cycle("aabb")
        self._reports = itertools.cycle("ba")

    def open(self, *arguments):
        body = super().open(*arguments)
        body.version = self._named(next(self._reads), body.version)
        return body

    def version(self, name, timeout_s, *, is_timed=False):
        found = super().version(name, timeout_s, is_timed=is_timed)
        return self._named(next(self._reports), found)

    def _named(self, host, version):
        return f"{host} {int(version.rpartition(' ')[2]) + 10**9 * (host == 'b')}"


def test_an_index_is_read_though_another_host_reports_its_time(tmp_path):
    data = write(tmp_path / "data", 30, hashes=["sha256"])
    assert in_use(index_of(data, hosts=Apart)).version


def test_a_known_report_is_not_followed_by_a_look_at_the_bytes(data):
    index = index_of(data, ["a", "b"])
    in_use(index)
    for _ in range(4):
        index.check(at_once=True)
    path = Path(data, "index.json")
    before = path.stat()
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    index.check(at_once=True)


def test_an_index_that_is_gone_or_another_is_noticed_and_a_check_is_rare(data):
    index = index_of(data)
    in_use(index)
    path = Path(data, "index.json")
    content = path.read_bytes()
    path.unlink()
    index.check()
    with pytest.raises(ShardCorruptError, match=r"written again.*found no index|no index"):
        index.check(at_once=True)
    time.sleep(0.01)
    path.write_bytes(content.replace(b'"samples": ', b'"samples":  ').replace(b"  ", b" ", 1))
    with pytest.raises(ShardCorruptError, match="written again"):
        index.check(at_once=True)


def test_an_index_pickles_with_what_it_compares():
    from fkat_data.streaming.store.open_store import open_store

    index = DatasetIndex(open_store("/nowhere", storage_options=None, num_retries=0, timeout_s=1))
    index.use("version", "report")
    with pytest.raises(ShardCorruptError, match="version"):
        pickle.loads(pickle.dumps(index)).check(at_once=True)
    index.use("version", "")
    index.check(at_once=True)
