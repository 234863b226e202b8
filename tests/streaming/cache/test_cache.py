import dis
import errno
import os
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cache_examples import cache_in, content, filler, get, is_exact, is_right, leftovers_in, shards_in
from directory_machine import DirectoryMachine
from forks import in_child
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from fkat_data.errors import CacheFullError, ShardCorruptError


@pytest.fixture
def cache(directory):
    return cache_in(directory)


def test_a_directory_that_is_made_is_its_users_alone_and_one_that_is_there_is_left_as_it_is(cache, directory, tmp_path):
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    there = tmp_path / "there"
    there.mkdir(0o755)
    cache_in(there)
    assert stat.S_IMODE(there.stat().st_mode) == 0o755


def test_a_file_that_is_replaced_or_removed_is_read_on_by_whoever_has_it_open(cache, directory):
    (directory / "a.mds").write_bytes(b"old")
    with (directory / "a.mds").open("rb") as old:
        get(cache, "a.mds", 5)
        assert old.read() == b"old"
    with (directory / "a.mds").open("rb") as new:
        assert cache.remove("a.mds") == 5
        assert cache.remove("a.mds") == 0
        assert new.read() == content("a.mds", 5)


@pytest.mark.parametrize("size_bytes", [999, 1001, 0])
def test_a_file_of_another_size_gets_no_name(cache, directory, size_bytes):
    with pytest.raises(ShardCorruptError, match=r"a\.mds.*size in bytes.*1000") as caught:
        cache.get("a.mds", 1000, filler("a.mds", size_bytes))
    assert caught.value.found == str(size_bytes)
    assert shards_in(directory) == leftovers_in(directory) == []


class OwnError(Exception):
    """What a user's store may raise."""


@pytest.mark.parametrize("error", [OwnError("no"), OSError(errno.EIO, "broken"), KeyboardInterrupt()], ids=repr)
def test_what_the_filling_raises_arrives_as_it_is_and_the_next_one_tries_again(cache, directory, error):
    def fill(file):
        file.write(b"half")
        raise error

    with pytest.raises(type(error)) as caught:
        cache.get("a.mds", 1000, fill)
    assert caught.value is error
    assert not isinstance(error, OSError) or str(directory / "a.mds") in error.__notes__[0]
    assert shards_in(directory) == leftovers_in(directory) == []
    assert is_right(get(cache, "a.mds", 1000), "a.mds", 1000)


def test_the_file_may_be_closed_read_and_cut_while_it_is_filled(cache):
    def fill(file):
        file.write(b"a first try")
        file.seek(0)
        assert file.read() == b"a first try"
        file.seek(0)
        file.truncate()
        with file:
            file.write(b"right")

    assert cache.get("a.mds", 5, fill).read_bytes() == b"right"


def test_making_one_file_may_need_another(cache):
    def fill(file):
        file.write(get(cache, "a.mds.zstd", 100).read_bytes())

    assert cache.get("a.mds", 100, fill).read_bytes() == content("a.mds.zstd", 100)


NOT_NAMES = ["", "/a", "../a", "a/../b", "a//b", "./a", "a/", "a\0b", ".fkat_data/budget", ".fkat_data"]


@pytest.mark.parametrize("name", NOT_NAMES)
def test_a_name_that_leaves_the_directory_is_refused_everywhere(cache, tmp_path, name):
    for use in (lambda: get(cache, name, 5), lambda: cache.has(name, 5), lambda: cache.remove(name)):
        with pytest.raises(ShardCorruptError, match="basename"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_symbolic_link_in_the_place_of_a_file_is_replaced_and_not_followed(cache, directory, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(content("a.mds", 10))
    directory.joinpath("a.mds").symlink_to(outside)
    assert not cache.has("a.mds", 10)
    assert not get(cache, "a.mds", 20).is_symlink()
    assert outside.read_bytes() == content("a.mds", 10)


def test_a_symbolic_link_on_the_way_is_refused(cache, directory, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.mds").write_bytes(content("x/a.mds", 10))
    (directory / "x").symlink_to(tmp_path / "outside")
    assert not cache.has("x/a.mds", 10)
    for use in (lambda: get(cache, "x/a.mds", 10), lambda: cache.remove("x/a.mds")):
        with pytest.raises(ShardCorruptError, match="symbolic link"):
            use()
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["a.mds"]
    assert leftovers_in(directory) == []


def test_a_directory_in_the_place_of_a_file_is_an_error(cache, directory):
    (directory / "a.mds").mkdir()
    with pytest.raises(IsADirectoryError):
        get(cache, "a.mds", 10)
    assert leftovers_in(directory) == []


def test_threads_that_ask_for_one_file_get_it_from_one_of_them(cache, directory):
    calls = []

    def fill(file):
        calls.append(threading.get_ident())
        time.sleep(0.1)
        file.write(content("a.mds", 1000))

    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(lambda _: cache.get("a.mds", 1000, fill), range(8)))
    assert len(calls) == 1
    assert paths == [directory / "a.mds"] * 8


def test_who_does_not_wait_gets_none_while_another_thread_makes_the_file(cache):
    inside, go_on = threading.Event(), threading.Event()

    def fill(file):
        inside.set()
        assert go_on.wait(30)
        file.write(content("a.mds", 10))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(cache.get, "a.mds", 10, fill)
        assert inside.wait(30)
        assert get(cache, "a.mds", 10, wait=False) is None
        looks = iter([False, False, True])
        assert get(cache, "a.mds", 10, is_cancelled=lambda: next(looks)) is None
        assert is_right(get(cache, "b.mds", 10, wait=False), "b.mds", 10)
        go_on.set()
        assert is_right(get(cache, "a.mds", 10), "a.mds", 10)


def test_a_directory_that_was_emptied_meanwhile_fills_again(cache, directory):
    get(cache, "a.mds", 10)
    for path in sorted(directory.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    directory.rmdir()
    assert is_right(get(cache, "a.mds", 10), "a.mds", 10)


def test_what_dead_processes_left_is_removed_at_the_start_and_what_belongs_to_the_living_is_not(cache, directory):
    making = directory / ".fkat_data" / "making"
    (making / "0123456789abcdef.1000").write_bytes(b"half")
    (making / "feedfeedfeedfeed.5").symlink_to(directory)
    (directory / ".fkat_data" / "claims" / "0123").write_bytes(b"")

    def fill(file):
        cache_in(directory)
        assert len(leftovers_in(directory)) == 2  # this file, and its claim
        file.write(content("a.mds", 10))

    assert is_right(cache.get("a.mds", 10, fill), "a.mds", 10)
    assert leftovers_in(directory) == []


def fails_so_often(number, times):
    """Return what fills after so many failures."""
    failures = iter([OSError(number, os.strerror(number))] * times)

    def fill(file):
        file.write(b"some")
        error = next(failures, None)
        if error is not None:
            raise error
        file.seek(0)
        file.truncate()
        file.write(content("new.mds", 100))

    return fill


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_makes_the_coldest_go_and_the_file_is_made_again(cache, directory, number):
    for name in ("a.mds", "b.mds", "c.mds"):
        get(cache, name, 100)
    cache.touch("a.mds")
    assert is_right(cache.get("new.mds", 100, fails_so_often(number, 2)), "new.mds", 100)
    assert shards_in(directory) == ["a.mds", "new.mds"]


def test_a_full_disk_with_nothing_to_remove_is_an_error_with_numbers(cache, directory):
    (directory / "mine.txt").write_text("the only copy")
    with pytest.raises(CacheFullError) as caught:
        cache.get("new.mds", 123, fails_so_often(errno.ENOSPC, 1000))
    assert caught.value.needed_bytes == 123
    assert caught.value.free_bytes > 0
    assert str(directory / "new.mds") in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert shards_in(directory) == ["mine.txt"]
    assert leftovers_in(directory) == []


def test_not_the_whole_cache_is_removed_for_another_disk_that_is_full(cache, directory):
    for number in range(30):
        get(cache, f"{number}.mds", 100)
    with pytest.raises(CacheFullError, match="No space left"):
        cache.get("new.mds", 100, fails_so_often(errno.ENOSPC, 1000))
    assert len(shards_in(directory)) == 27


def interrupted(function, place):
    """Return the error raised at that place of a function and what it calls; None if it has fewer.

    Signal handlers run where a function begins, behind a call and where a loop begins again.
    """
    last, count = {}, 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = last.get(frame, "")
            last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            count += before.startswith(("RESUME", "CALL")) or "BACKWARD" in before
            if count > place:
                sys.settrace(None)
                raise KeyboardInterrupt
        elif event == "return":
            last.pop(frame, None)  # which would keep what the frame held
        return trace

    try:
        sys._getframe().f_trace_opcodes = True  # Python 3.12 asks this frame whether instructions are wanted
        sys.settrace(trace)
        function()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(None)
    return None


def test_an_error_of_a_signal_handler_at_any_position_keeps_a_file_from_nobody(processes, directory):
    def work():
        cache, errors = cache_in(directory), []
        # What is raised at the end of a generator that is dropped, Python ignores; behind the last place, all is well.
        while len(errors) < 50 or any(errors[-3:]):
            cache.remove("a.mds")
            # Its traceback refers to every frame, as the last error of a notebook does.
            errors.append(interrupted(lambda: get(cache, "a.mds", 10), len(errors)))
            path = get(cache, "a.mds", 10, wait=False)
            assert path is not None, f"after an error at place {len(errors)}"
            assert is_right(path, "a.mds", 10)
            assert is_exact(directory)
        return True

    # In a process of its own: what a trace function raises within a handler stays Python's current exception.
    assert in_child(work) == 0


def test_threads_that_make_files_and_one_that_forks_do_not_meet(prepared, run_script, directory):
    done = run_script(
        """
import os, sys, threading
from pathlib import Path
from cache_examples import cache_in, get
cache, stop = cache_in(Path(sys.argv[1])), threading.Event()

def work(place):
    while not stop.is_set():
        get(cache, f"{place}.mds", 10)
        cache.remove(f"{place}.mds")

threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
for thread in threads:
    thread.start()
for _ in range(50):
    child = os.fork()
    if not child:
        links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) > 2 and
                 os.path.exists(f"/proc/self/fd/{name}")]
        os._exit(any("/claims/" in link or link.endswith("/budget") for link in links))
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
print("right")
""",
        str(directory),
        by="fork",
    )
    assert done.stdout == "right\n"


SIZES = {f"s{number}.mds": 100 + 37 * number for number in range(8)} | {"x/s8.mds": 80, "x/y/s9.mds": 0}
LARGEST = max(SIZES.values())


class CacheMachine(DirectoryMachine):
    """Random uses of two caches of one directory, beside a model: who is there, in the order of use."""

    def __init__(self):
        super().__init__(2)
        self.used = []
        self.is_planted = set()

    @property
    def limit(self):
        return self.budgets[0].limit_bytes

    @rule(name=st.sampled_from(sorted(SIZES)), which=st.integers(0, 1))
    def get(self, name, which):
        calls = []
        path = get(self.caches[which], name, SIZES[name], calls)
        assert is_right(path, name, SIZES[name])
        os.utime(path, ns=(0, SIZES[name] * 10**15))  # times say nothing of the order of use
        is_there = name in self.used and name not in self.is_planted
        assert bool(calls) == (not is_there)
        if not is_there and self.limit is not None:
            # What is in the way of the new file goes, and not one more.
            held = {other: self.size(other) for other in self.used}
            while self.used and sum(held[other] for other in self.used) + SIZES[name] > self.limit:
                self.is_planted.discard(self.used.pop(0))
        self.is_planted.discard(name)
        if name in self.used:
            self.used.remove(name)
        self.used.append(name)

    def size(self, name):
        return 3 if name in self.is_planted else SIZES[name]

    @precondition(lambda self: self.used)
    @rule(data=st.data(), which=st.integers(0, 1))
    def touch(self, data, which):
        name = data.draw(st.sampled_from(self.used))
        self.caches[which].touch(name)
        self.used.remove(name)
        self.used.append(name)

    @rule(name=st.sampled_from(sorted(SIZES)), which=st.integers(0, 1))
    def remove(self, name, which):
        freed = self.caches[which].remove(name)
        assert freed == (self.size(name) if name in self.used else 0)
        self.forget(name)

    @rule(which=st.integers(0, 1))
    def evict(self, which):
        expected = next((name for name in self.used if self.size(name)), None)
        freed = self.budgets[which].evict(1)
        assert freed == (0 if expected is None else self.size(expected))
        for name in self.used[: self.used.index(expected) + 1] if expected else list(self.used):
            self.forget(name)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def delete_behind_its_back(self, data):
        name = data.draw(st.sampled_from(self.used))
        (self.directory / name).unlink()
        self.forget(name)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def cut_behind_its_back(self, data):
        name = data.draw(st.sampled_from(self.used))
        (self.directory / name).unlink()
        (self.directory / name).write_bytes(b"cut")
        self.is_planted.add(name)

    @rule(limit=st.none() | st.integers(LARGEST, 2000))
    def change_limit(self, limit):
        self.limit_to(limit)

    def forget(self, name):
        self.is_planted.discard(name)
        if name in self.used:
            self.used.remove(name)

    @invariant()
    def the_directory_is_what_the_model_says(self):
        assert shards_in(self.directory) == sorted(self.used)
        assert leftovers_in(self.directory) == []
        assert self.budgets[0].usage_bytes == sum(map(self.size, self.used))
        for name, size_bytes in SIZES.items():
            is_whole = name in self.used and self.size(name) == size_bytes
            assert self.caches[0].has(name, size_bytes) == is_whole


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=30, suppress_health_check=list(HealthCheck))
