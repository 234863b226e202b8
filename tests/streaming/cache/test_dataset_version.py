import errno
import fcntl
import os
import pickle
import shutil

import pytest
from cache_examples import cache_in, get, leftovers_in, shards_in

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.cache import DatasetVersion

OLD = ["a.mds", "x/b.mds"]


def names(recorded):
    assert recorded == "old"
    return OLD


def fill(directory):
    cache = cache_in(directory)
    for name in [*OLD, "other.mds", "index.json"]:
        get(cache, name, 10)


def test_files_of_another_state_go_and_only_they(directory):
    DatasetVersion(directory).adopt("old", names)
    fill(directory)
    DatasetVersion(directory).adopt("old", names)
    assert len(shards_in(directory)) == 4
    version = DatasetVersion(directory)
    assert version.recorded == "old"
    version.adopt("new", names)
    assert version.recorded == DatasetVersion(directory).recorded == "new"
    assert shards_in(directory) == ["other.mds"]
    assert leftovers_in(directory) == []


def test_files_without_a_record_are_kept(directory):
    fill(directory)
    DatasetVersion(directory).adopt("new", names)
    assert len(shards_in(directory)) == 4
    assert DatasetVersion(directory).recorded == "new"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version": 3}', b"null", b"[" * 60_000, b"\xff", b'{"version": "\xff"}'],
    ids=range(8),
)
def test_a_record_that_cannot_be_read_is_not_the_present_states(directory, content):
    fill(directory)
    (directory / ".fkat_data" / "dataset_version.json").write_bytes(content)
    DatasetVersion(directory).adopt("new", lambda recorded: [] if recorded else OLD)
    assert DatasetVersion(directory).recorded == "new"
    assert shards_in(directory) == ["other.mds"]


def test_a_version_of_any_size_that_is_allowed_can_be_read_back(directory):
    for version in ("x", "\N{GRINNING FACE}é\n\0" * 2500):
        DatasetVersion(directory / str(len(version))).adopt(version, names)
        assert DatasetVersion(directory / str(len(version))).recorded == version
    for version in ("", "x" * 10_001):
        with pytest.raises(ConfigurationError, match="version"):
            DatasetVersion(directory).adopt(version, names)


def test_an_error_while_files_are_removed_is_made_up_for_by_the_next(directory):
    DatasetVersion(directory).adopt("old", names)
    fill(directory)

    def broken(recorded):
        yield "a.mds"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        DatasetVersion(directory).adopt("new", broken)
    assert DatasetVersion(directory).recorded == "old"
    DatasetVersion(directory).adopt("new", names)
    assert shards_in(directory) == ["other.mds"]


def test_a_label_is_kept_with_its_version_until_another_one_is_passed(directory):
    version = DatasetVersion(directory)
    for label, expected in (("", ""), ("one", "one"), ("", "one"), ("two", "two")):
        version.adopt("old", names, label=label)
        assert version.record == ("old", expected)
    version.adopt("new", names)
    assert version.record == ("new", "")
    with pytest.raises(ConfigurationError, match="label"):
        version.adopt("new", names, label="x" * 10_001)


def test_holding_needs_a_state_that_was_adopted(directory):
    version = DatasetVersion(directory)
    with pytest.raises(ConfigurationError, match="another"):
        version.hold()
    version.adopt("old", names)
    version.hold()
    pickle.loads(pickle.dumps(version)).hold()


def test_a_directory_that_was_emptied_is_recorded_again_and_protected_again(directory):
    version = DatasetVersion(directory)
    version.adopt("old", names)
    worker = pickle.dumps(version)
    shutil.rmtree(directory)
    directory.mkdir(mode=0o700)
    pickle.loads(worker).hold()
    assert version.recorded == "old"
    with (directory / ".fkat_data" / "users").open() as users, pytest.raises(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)  # so another version is refused


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_a_new_one(directory, monkeypatch):
    DatasetVersion(directory).adopt("old", names)
    fill(directory)
    lstat = os.lstat

    def broken(path, **options):
        if str(path).endswith("b.mds"):
            raise OSError(errno.EIO, "injected")
        return lstat(path, **options)

    monkeypatch.setattr(os, "lstat", broken)
    with pytest.raises(OSError, match="injected"):
        DatasetVersion(directory).adopt("new", names)
    assert DatasetVersion(directory).recorded == "old"


USER = """
import sys
from pathlib import Path
from fkat_data.streaming.cache import DatasetVersion
DatasetVersion(Path(sys.argv[1])).adopt(sys.argv[2], lambda recorded: ["a.mds", "x/b.mds"])
print("using", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def user(start, directory):
    """A process that uses the directory; it ends with the test."""
    process = start(USER, directory, "old")
    assert process.stdout.readline() == "using\n"
    return process


def test_a_directory_that_another_process_uses_is_refused_to_another_state_until_that_process_ends(directory, user):
    fill(directory)
    DatasetVersion(directory).adopt("old", names)
    version = DatasetVersion(directory)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="for another version"):
            version.adopt("new", names)
    assert version.recorded == "old"
    assert len(shards_in(directory)) == 4
    user.kill()
    user.wait()
    version.adopt("new", names)
    assert shards_in(directory) == ["other.mds"]


RANKS = """
import os, sys, time
from pathlib import Path
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.cache import DatasetVersion

directory = Path(sys.argv[1])

def forked(work):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except ConfigurationError as error:
        code = 2
    finally:
        os._exit(code)

def end(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def rank():
    version = DatasetVersion(directory)
    version.adopt("new", lambda recorded: [recorded + ".mds"])
    time.sleep(0.5)  # all of them use it at a time

assert end(forked(lambda: DatasetVersion(directory).adopt("old", list))) == 0
(directory / "old.mds").write_bytes(b"x")
ranks = [forked(rank) for _ in range(6)]
assert [end(pid) for pid in ranks] == [0] * 6
assert not (directory / "old.mds").exists()

# A forked child holds for itself, and what its parent held ends with the parent.
hold_read, hold_write = os.pipe()
ready_read, ready_write = os.pipe()

def parent():
    version = DatasetVersion(directory)
    version.adopt("new", list)
    if os.fork() == 0:
        os.close(hold_write)
        version.hold()
        os.write(ready_write, b"x")
        os.read(hold_read, 1)
        os._exit(0)

pid = forked(parent)
os.read(ready_read, 1)
assert end(pid) == 0
assert end(forked(lambda: DatasetVersion(directory).adopt("newer", list))) == 2  # the child has it
version = DatasetVersion(directory)
version.adopt("new", list)
os.close(hold_write)
assert end(forked(lambda: DatasetVersion(directory).adopt("newer", list))) == 2  # and so has this process
print("right")
"""


def test_ranks_that_start_at_a_time_agree_and_forked_children_hold_for_themselves(prepared, run_script, directory):
    assert run_script(RANKS, str(directory), by="fork").stdout == "right\n"
