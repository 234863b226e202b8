"""Whole stores, where more than one file or one answer matters."""

import threading
from concurrent.futures import ThreadPoolExecutor

import fsspec
import psutil
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from patience import unless_held_up
from proxy import FaultServer, RandomPlan, fault
from stored_files import CONTENTS, fetch, info_of
from walks import wait_until

from fkat_data.errors import DownloadError
from fkat_data.streaming.formats import FileInfo
from fkat_data.streaming.store import open_store

NAME = "shard.00000.mds"


@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_files_arrive_though_every_third_answer_is_broken(processes, tmp_path, seed):
    served = tmp_path / "served"
    served.mkdir()
    names = [f"shard.{number:05}.mds" for number in range(200)]
    for number, name in enumerate(names):
        (served / name).write_bytes(CONTENTS[NAME][number : 20_000 + 2 * number])
    with FaultServer(served, RandomPlan(seed, 0.3)) as server:
        store = open_store(server.url, storage_options=None, num_retries=12, timeout_s=30.0)

        def get(name):
            content = (served / name).read_bytes()
            return fetch(store, tmp_path / name, name, info=info_of(name, content)) == content

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(get, names))
        store.close()
        num_requests = sum(server.counts.values())
    assert 250 < num_requests < 400


@pytest.mark.parametrize("way", ["web-directory", "s3-moto"])
def test_threads_share_a_store(through, tmp_path, way):
    store, faulty = through(way, timeout_s=30.0)
    with ThreadPoolExecutor(16) as threads:
        jobs = [(name, tmp_path / f"{turn}.{name}") for turn in range(8) for name in CONTENTS]
        results = list(threads.map(lambda job: fetch(store, job[1], job[0]) == CONTENTS[job[0]], jobs))
    assert all(results)
    assert sum(faulty.counts.values()) == len(jobs)


def test_an_object_that_is_replaced_while_it_is_read_is_one_or_the_other(through, tmp_path):
    name = "shard.00003.mds"
    new = bytes(reversed(CONTENTS[name]))
    served = tmp_path / "served" / "train" / name
    plan = {name: [fault("reset", after=0.6), fault("call", function=lambda: served.write_bytes(new))]}
    store, faulty = through("web-directory", plan, timeout_s=20.0)
    got = fetch(store, tmp_path / "out", name, algorithm=None, info=FileInfo(name, len(new), {}))
    assert got == new
    assert faulty.ranges[name][1] is not None


@pytest.mark.parametrize("way", ["web-directory", "s3-moto"])
def test_a_store_that_is_down_for_a_while_is_waited_for(through, tmp_path, way):
    store, faulty = through(way, num_retries=30, timeout_s=10.0)
    faulty.down()
    timer = threading.Timer(0.5, faulty.down, [False])
    timer.start()
    assert fetch(store, tmp_path / "out") == CONTENTS[NAME]
    timer.join()


def test_links_that_lead_nowhere_or_in_a_circle_are_no_files(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.tar").write_bytes(b"x")
    for name, target in {"circle": "circle", "none": "missing", "above": ".", "link.tar": "below/a.tar"}.items():
        (tmp_path / name).symlink_to(target)
    store = open_store(tmp_path, storage_options=None, num_retries=0, timeout_s=5)
    assert [file.name for file in store.listing()] == ["below/a.tar", "link.tar"]


def test_a_version_that_does_not_come_is_given_up(through):
    store, _ = through("web-directory", {f"HEAD {NAME}": [fault("stall_first")] * 2}, num_retries=1, timeout_s=0.3)
    with pytest.raises(DownloadError, match=r"no answer within 0.3 s \(timeout_s\)"):
        store.version(NAME)


@pytest.mark.parametrize("way", ["web-directory", "s3-moto"])
@unless_held_up
def test_nothing_that_was_given_up_stays_open(through, tmp_path, way):
    process = psutil.Process()
    plan = {NAME: [fault("stall_first"), fault("stall"), fault("reset"), fault("status")]}
    store, faulty = through(way, plan, num_retries=8, timeout_s=1.0)
    assert fetch(store, tmp_path / "out") == CONTENTS[NAME]
    store.close()
    wait_until(lambda: all(not c.raddr or c.raddr.port != faulty.port for c in process.net_connections("tcp4")))


#: Of a file system that is only known to fsspec, files are read in pieces of 4 MiB.
PIECES = CONTENTS[NAME] * 60


class Peculiar(MemoryFileSystem):
    """A file system of somebody else, which does as its ``manner`` says."""

    protocol = "peculiar"
    store = {}  # noqa: RUF012 - as its base has it
    pseudo_dirs = [""]  # noqa: RUF012
    manner = ""
    released = threading.Event()

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("peculiar://", "memory://"))

    def cat_file(self, path, start=None, end=None, **kwargs):
        content = super().cat_file(path, start, end, **kwargs)
        manner, Peculiar.manner = Peculiar.manner, Peculiar.manner if Peculiar.manner.startswith("always") else ""
        if "hang" in manner:
            Peculiar.released.wait(600)
        if "reset" in manner:
            raise ConnectionResetError(104, "reset")
        if "long" in manner:
            content += b"more"
        if "short" in manner:
            content = content[:-1]
        if "replace" in manner:
            self.pipe_file(path, bytes(reversed(PIECES)))
        return content


@pytest.fixture
def peculiar():
    fsspec.register_implementation("peculiar", Peculiar, clobber=True)
    Peculiar.store.clear()
    Peculiar.released.clear()
    Peculiar.manner = ""
    Peculiar().pipe_file("/train/" + NAME, PIECES)

    def opened(num_retries=2, timeout_s=20.0):
        return open_store("peculiar://train", storage_options=None, num_retries=num_retries, timeout_s=timeout_s)

    yield opened
    Peculiar.released.set()


@pytest.mark.parametrize("manner", ["", "hang", "reset", "long", "short"])
@unless_held_up
def test_any_file_system_may_fail_in_any_way(peculiar, tmp_path, manner):
    store = peculiar(timeout_s=0.5 if manner == "hang" else 20.0)
    Peculiar.manner = manner
    assert fetch(store, tmp_path / "out", info=info_of(NAME, PIECES)) == PIECES


def test_a_file_system_that_never_answers_is_given_up(peculiar, tmp_path):
    Peculiar.manner = "always hang"
    with pytest.raises(DownloadError, match="timeout_s") as caught:
        fetch(peculiar(1, 0.3), tmp_path / "out", info=info_of(NAME, PIECES))
    assert caught.value.num_attempts == 2


def test_pieces_of_two_objects_are_not_put_together(peculiar, tmp_path):
    Peculiar.manner = "replace"
    got = fetch(peculiar(), tmp_path / "out", algorithm=None, info=FileInfo(NAME, len(PIECES), {}))
    assert got == bytes(reversed(PIECES))
