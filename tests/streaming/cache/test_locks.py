import dis
import os
import signal
import sys
import threading
import time

import pytest

from fkat_data.streaming.cache.locks import LockFile, pauses


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def test_one_of_two_objects_has_the_lock_and_shared_locks_go_together(path):
    with LockFile(path) as first, LockFile(path) as second, LockFile(path) as third:
        assert first.try_lock()
        assert not second.try_lock()
        assert not second.try_lock(shared=True)
        first.close()
        assert second.try_lock(shared=True)
        assert third.try_lock(shared=True)
        assert not second.try_lock()


def test_a_lock_ends_with_its_object(path):
    lock = LockFile(path)
    assert lock.try_lock()
    del lock
    with LockFile(path) as other:
        assert other.try_lock()


def test_closing_twice_does_no_harm(path):
    lock = LockFile(path)
    lock.close()
    lock.close()
    assert lock.descriptor == -1


def test_a_thread_waits_until_the_lock_is_given_back(path):
    first, order = LockFile(path), []
    assert first.try_lock()

    def wait():
        with LockFile(path) as second:
            second.lock()
            order.append("second")

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.1)
    order.append("first")
    first.close()
    thread.join(30)
    assert order == ["first", "second"]


def test_a_lock_on_a_file_without_a_name_is_told(path):
    with LockFile(path) as lock:
        assert lock.is_there
        path.unlink()
        assert not lock.is_there
        path.write_text("another file")
        assert not lock.is_there


def test_a_symbolic_link_is_not_followed(path, tmp_path):
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic links"):
        LockFile(path)
    assert not (tmp_path / "outside").exists()


def test_a_forked_child_has_none_of_its_parents_locks_and_may_take_its_own(run_script, path):
    done = run_script(
        """
import os, sys
from pathlib import Path
from fkat_data.streaming.cache.locks import LockFile
path = Path(sys.argv[1])
lock = LockFile(path)
assert lock.try_lock()
read, write = os.pipe()
is_ready, ready = os.pipe()
child = os.fork()
if not child:
    os.close(write)
    with LockFile(path) as own:
        assert not own.try_lock()  # the parent has it still
        assert os.readlink(f"/proc/self/fd/{lock.descriptor}") == "/dev/null"
        lock.close()  # which changes nothing for the parent
        assert not own.try_lock()
        os.write(ready, b"x")
        os.read(read, 1)
        own.lock()
    os._exit(7)
os.close(ready)
os.read(is_ready, 1)
with LockFile(path) as other:
    assert not other.try_lock()
lock.close()
os.close(write)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
        str(path),
    )
    assert done.stdout == "7\n"


def test_threads_that_open_locks_and_one_that_forks_do_not_meet(run_script, path):
    done = run_script(
        """
import os, sys, threading
from pathlib import Path
from fkat_data.streaming.cache.locks import LockFile
path, stop = Path(sys.argv[1]), threading.Event()

def work(place):
    while not stop.is_set():
        with LockFile(path.with_suffix(f".{place}")) as lock:
            assert lock.try_lock()

threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
for thread in threads:
    thread.start()
for _ in range(50):
    child = os.fork()
    if not child:
        left = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) > 2 and
                os.path.exists(f"/proc/self/fd/{name}")]
        os._exit(any(str(path) in link for link in left))
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
print("right")
""",
        str(path),
    )
    assert done.stdout == "right\n"


def test_a_wait_for_a_lock_handles_signals(path):
    class AlarmError(Exception):
        pass

    def ring(number, frame):
        raise AlarmError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with LockFile(path) as first, LockFile(path) as second:
            assert first.try_lock()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(AlarmError):
                second.lock()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_descriptors_are_not_inherited_by_programs(path):
    with LockFile(path) as lock:
        assert not os.get_inheritable(lock.descriptor)


def test_pauses_grow_to_a_bound():
    seen = [pause_s for pause_s, _ in zip(pauses(), range(20), strict=False)]
    assert seen == sorted(seen)
    assert seen[0] <= 0.001
    assert 0.01 <= seen[-1] <= 0.05


def test_an_error_of_a_signal_handler_at_any_place_keeps_no_lock(path):
    def hold():
        with LockFile(path) as lock:
            assert lock.try_lock()

    kept = []
    for place in range(1000):
        error = interrupted(hold, place)
        if error is None:
            break
        kept.append(error)  # its traceback refers to every frame, as the last error of a notebook does
        with LockFile(path) as other:
            assert other.try_lock(), f"after an error at place {place}"
    assert 10 < place < 999


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
