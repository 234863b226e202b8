"""What processes are to one another that share a cache: waiting, dying, stopping, forking, and a full disk."""

import os
import signal
import time
from pathlib import Path

import pytest
from cache_examples import cache_in, get, is_right, leftovers_in, shards_in

pytestmark = pytest.mark.usefixtures("processes", "nothing_left_behind")

MAKER = r"""
import os, sys, time
from pathlib import Path
from cache_examples import cache_in, content
directory = Path(sys.argv[1])

def fill(file):
    file.write(b"half")
    file.flush()
    if "fork" in sys.argv[2:] and os.fork() == 0:
        os.write(1, f"{os.getpid()}\n".encode())
        time.sleep(1000)
        os._exit(0)
    os.write(1, b"filling\n")
    time.sleep(1000)

cache_in(directory).get("a.mds", 1000, fill)
"""

WAITER = """
import sys, time
from pathlib import Path
from cache_examples import cache_in, get
print("waiting", flush=True)
try:
    get(cache_in(Path(sys.argv[1])), "a.mds", 1000)
    print("made", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def maker(start, directory):
    """A process that is making the file, for long."""
    process = start(MAKER, directory)
    assert process.stdout.readline() == "filling\n"
    return process


def is_refused(directory):
    """Whether somebody else is making the file."""
    return get(cache_in(directory), "a.mds", 1000, wait=False) is None


def test_who_waits_for_a_process_that_is_killed_makes_the_file_at_once(start, maker, directory):
    assert is_refused(directory)
    waiter = start(WAITER, directory)
    assert waiter.stdout.readline() == "waiting\n"
    time.sleep(0.5)
    assert not (directory / "a.mds").exists()
    maker.kill()
    assert waiter.stdout.readline() == "made\n"
    assert is_right(directory / "a.mds", "a.mds", 1000)
    cache_in(directory)
    assert leftovers_in(directory) == []


def test_a_process_that_is_stopped_keeps_what_it_has(maker, directory):
    maker.send_signal(signal.SIGSTOP)
    left = leftovers_in(directory)
    for _ in range(3):
        assert is_refused(directory)
    looks = iter([False] * 10 + [True])
    assert get(cache_in(directory), "a.mds", 1000, is_cancelled=lambda: next(looks)) is None
    assert is_right(get(cache_in(directory), "b.mds", 10), "b.mds", 10)
    assert leftovers_in(directory) == left
    maker.kill()
    maker.wait()
    assert is_right(get(cache_in(directory), "a.mds", 1000), "a.mds", 1000)
    assert leftovers_in(directory) == [], "its half of a file is gone as well"


def test_a_forked_child_of_a_process_that_is_killed_is_in_nobodys_way(start, directory):
    maker = start(MAKER, directory, "fork")
    lines = {maker.stdout.readline(), maker.stdout.readline()}
    (child,) = (int(line) for line in lines - {"filling\n"})
    try:
        assert is_refused(directory)
        maker.kill()
        maker.wait()
        os.kill(child, 0)  # it lives
        assert is_right(get(cache_in(directory), "a.mds", 1000), "a.mds", 1000)
        assert leftovers_in(directory) == []
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_wait_can_be_interrupted(start, maker, directory):
    waiter = start(WAITER, directory)
    assert waiter.stdout.readline() == "waiting\n"
    time.sleep(0.5)
    waiter.send_signal(signal.SIGINT)
    assert waiter.stdout.readline() == "interrupted\n"


FULL = """
import sys
from pathlib import Path
from cache_examples import cache_in, content, get, is_right, leftovers_in, shards_in
from fkat_data import CacheFullError

directory = Path(sys.argv[1]) / "cache"
cache = cache_in(directory)
MIB = 1 << 20
for number in range(12):  # of which three fit
    assert is_right(get(cache, f"{number}.mds", MIB), f"{number}.mds", MIB)
    if number:
        cache.touch("0.mds")
assert shards_in(directory) == ["0.mds", "10.mds", "11.mds"], shards_in(directory)
for name in shards_in(directory):
    (directory / name).rename(directory / f"{name}.mine")  # now none may be removed
try:
    get(cache, "new.mds", 2 * MIB)
except CacheFullError as error:
    assert error.needed_bytes == 2 * MIB and error.free_bytes < 2 * MIB, error
else:
    raise AssertionError("there was room")
assert leftovers_in(directory) == []
assert len(shards_in(directory)) == 3
print("right")
"""


def test_on_a_full_disk_the_coldest_make_room_and_what_is_not_ours_stays(run_on_small_disk):
    assert run_on_small_disk(FULL) == "right\n"


SQUEEZE = """
import os, sys, time
from pathlib import Path
from cache_examples import cache_in, get, is_right, leftovers_in

directory = Path(sys.argv[1]) / "cache"
MIB = 1 << 20
pids = []
for place in range(3):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            cache = cache_in(directory)
            for number in range(6):  # any two of them do not fit beside a third
                get(cache, f"{place}-{number}.mds", 3 * MIB // 2)
            code = 0
        finally:
            os._exit(code)
    pids.append(pid)
ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
assert ends == [0, 0, 0], ends
assert leftovers_in(directory) == []
print("right")
"""


def test_processes_that_have_no_room_beside_one_another_take_turns(run_on_small_disk):
    assert run_on_small_disk(SQUEEZE) == "right\n"


LIMITED = """
import resource, sys
from pathlib import Path
from cache_examples import cache_in, get, leftovers_in, shards_in
directory = Path(sys.argv[1])
cache = cache_in(directory)
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, resource.RLIM_INFINITY))
try:
    get(cache, "a.mds", 5 << 20)
except OSError as error:
    print(error.errno, error.__notes__)
assert shards_in(directory) == leftovers_in(directory) == []
get(cache, "b.mds", 1000)
"""


def test_a_file_that_the_system_forbids_is_an_error_and_leaves_nothing(prepared, run_script, directory):
    done = run_script(LIMITED, str(directory), by="fork")
    assert done.stdout.startswith("27 ")
    assert "a.mds" in done.stdout
    assert shards_in(directory) == ["b.mds"]


CHANGING_USER = """
import os, sys
from pathlib import Path
from cache_examples import cache_in, get
from fkat_data import ConfigurationError
directory = Path(sys.argv[1])
os.seteuid(54321)
for use in (lambda: cache_in(directory / "others"), lambda: cache_in(directory / "open")):
    try:
        use()
        print("used")
    except ConfigurationError as error:
        print(error)
try:
    get(cache_in(directory / "sticky"), "planted.mds", 5)
except PermissionError as error:
    print("refused", error.__notes__)
print(get(cache_in(directory / "read_only"), "a.mds", 1).read_bytes())
try:
    get(cache_in(directory / "read_only"), "b.mds", 1)
except PermissionError as error:
    print("refused", error.filename)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_directories_of_others_are_refused_and_what_others_put_in_is_not_believed(prepared, run_script, folder_for_all):
    folder = folder_for_all
    for name, mode, owner in [
        ("others", 0o755, 12345),
        ("open", 0o777, 54321),
        ("sticky", 0o1777, 0),
        ("read_only", 0o755, 0),
    ]:
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(mode)
        os.chown(folder / name, owner, owner)
    (folder / "sticky" / "planted.mds").write_bytes(b"trap!")
    (folder / "read_only" / "a.mds").write_bytes(b"a")
    os.chown(folder / "sticky" / "planted.mds", 12345, 12345)
    lines = run_script(CHANGING_USER, str(folder), by="fork").stdout.splitlines()
    assert "belongs to user 12345" in lines[0]
    assert "every user may write" in lines[1]
    assert "planted.mds" in lines[2]
    assert lines[3] == "b'a'"
    assert lines[4].startswith("refused")
    assert str(Path("read_only") / ".fkat_data") in lines[4]
