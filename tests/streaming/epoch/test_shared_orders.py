"""Parts of an order in files: each is made once, and nothing of it is left behind."""

import os
import threading
import time

import numpy as np
import pytest
from walks import wait_until

from fkat_data.streaming.epoch import shared_part
from fkat_data.streaming.order import REFERENCE_SHUFFLES, ReferenceShuffle, in_memory

#: A smaller part is worth no file.
SIZE = 1 << 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"fkat_data-{os.geteuid()}-orders"


class Maker:
    """Computes a part, and counts how often."""

    def __init__(self, error=None):
        self.count = 0
        self.error = error

    def __call__(self):
        self.count += 1
        yield np.arange(SIZE - 10)
        if self.error:
            raise self.error
        yield np.arange(SIZE - 10, SIZE)


def expect_empty(folder):
    """Wait for the thread that removes what is dropped."""
    wait_until(lambda: not list(folder.iterdir()))


def part_of(make, key="key"):
    return shared_part(key, SIZE, np.int32, make)


def test_a_part_is_computed_once_and_the_last_reader_removes_it(folder):
    make = Maker()
    first, second = part_of(make), part_of(make)
    assert make.count == 1
    positions = np.array([SIZE - 1, 0, 7])
    assert first[positions].tolist() == second[positions].tolist() == [SIZE - 1, 0, 7]
    del first
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]
    del second
    expect_empty(folder)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", REFERENCE_SHUFFLES)
def test_shared_orders_are_those_that_a_process_computes_alone(folder, algorithm):
    arguments = (algorithm, np.array([7000, 0, 3300, 12_000, 800]) * 140, 3, 5, 1, 4000)
    shared = ReferenceShuffle(*arguments, shared_part)
    whole = ReferenceShuffle(*arguments).whole()
    assert np.array_equal(shared.whole(), whole)
    assert len(list(folder.iterdir())) in (1, 3)
    # A process that maps the first nodes computes the last one all the same.
    last, positions = ReferenceShuffle(*arguments, shared_part), np.array([len(whole) - 1, 0, len(whole) - 1])
    assert last.samples_at(positions).tolist() == whole[positions].tolist()


def test_what_a_maker_left_is_made_again_or_removed(folder):
    with pytest.raises(KeyboardInterrupt):
        part_of(Maker(KeyboardInterrupt()))
    assert list(folder.iterdir()) == []
    part = part_of(Maker())
    (path,) = folder.iterdir()
    torn = path.read_bytes()[:-1]
    del part
    expect_empty(folder)
    path.write_bytes(torn)
    (folder / "other.order").write_bytes(torn)
    make = Maker()
    part = part_of(make)
    assert make.count == 1
    assert part[np.arange(SIZE)].tolist() == list(range(SIZE))
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("fault", ["disk", "folder", "wait"])
def test_a_process_computes_alone_where_sharing_fails(folder, fault, monkeypatch, caplog):
    folder.mkdir(mode=0o700)
    is_over = threading.Event()
    if fault == "disk":

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("fkat_data.streaming.epoch.shared_orders.allocate", full)
    elif fault == "folder":
        folder.chmod(0o777)
    else:
        is_making = threading.Event()

        def slow():
            is_making.set()
            is_over.wait(30)
            yield from Maker()()

        thread = threading.Thread(target=part_of, args=(slow,), daemon=True)
        thread.start()
        is_making.wait(30)
        monotonic = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: 1000 * monotonic())
    assert part_of(Maker())[np.arange(SIZE)].tolist() == list(range(SIZE))
    assert "computes the order of its epoch alone" in caplog.text
    if fault == "wait":
        is_over.set()
        thread.join()


def test_a_small_part_is_worth_no_file(folder):
    part = shared_part("key", 9, np.int32, lambda: iter([np.arange(9)]))
    assert part[np.array([8])].tolist() == in_memory("key", 9, np.int32, lambda: iter([np.arange(9)]))[[8]].tolist()
    assert not folder.exists()


PROGRAM = """
import sys, tempfile, time
import numpy as np
from fkat_data.streaming.epoch import shared_part

tempfile.tempdir = sys.argv[1]

def make():
    print("making", flush=True)
    time.sleep(1000)
    yield np.arange(1)

shared_part("key", 1 << 20, np.int32, make)
"""


def test_a_maker_that_is_killed_hands_its_work_over(start, folder, tmp_path):
    maker = start(PROGRAM, tmp_path)
    assert maker.stdout.readline() == "making\n"
    maker.kill()
    assert part_of(Maker())[np.array([999])].tolist() == [999]
    expect_empty(folder)


ENDING = """
import os, sys, tempfile
from pathlib import Path
import numpy as np
import fkat_data
from fkat_data.streaming.epoch import shared_part

def part_of(key):
    tempfile.tempdir = sys.argv[1]
    return shared_part(key, 1 << 20, np.int32, lambda: iter([np.arange(1 << 20)]))

def in_a_worker(shard):
    global in_worker
    in_worker = [part_of(f"{shard} {number}") for number in range(20)]
    yield len(list(Path(sys.argv[1]).rglob("*.order")))

if sys.argv[2] == "trainer":
    kept, dropped = part_of("kept"), [part_of(f"{number}") for number in range(20)]
    print(len(list(Path(sys.argv[1]).rglob("*.order"))))
    del dropped
else:
    with fkat_data.ShardedDataLoader(0, ["a"], in_a_worker) as loader:
        print(*loader)
"""


@pytest.mark.parametrize(("where", "count"), [("trainer", 21), ("worker", 20)])
def test_a_process_that_ends_leaves_nothing(run_script, folder, tmp_path, monkeypatch, where, count):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert run_script(ENDING, str(tmp_path), where).stdout == f"{count}\n"
    assert list(folder.iterdir()) == []
