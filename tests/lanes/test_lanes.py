import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import leavings
import psutil
import pytest
from selection import starts


@pytest.fixture
def refused(request):
    """Return a function that checks that a call is refused, in a test that would otherwise fail by it."""
    guard = request.config.pluginmanager.get_plugin("lanes").guard

    def check(function, *arguments):
        with pytest.raises(pytest.fail.Exception, match="use the fixture `processes`"):
            function(*arguments)
        assert len(guard.offences) == 1
        guard.offences.clear()

    return check


def test_a_test_of_the_fast_lane_starts_no_process(request, refused):
    assert not starts(request.node)
    refused(subprocess.run, ["true"])
    refused(os.fork)
    refused(os.system, "true")
    refused(os.posix_spawn, "/bin/true", ["true"], {})
    for method in ("fork", "spawn"):
        refused(multiprocessing.get_context(method).Process(target=print).start)


def test_a_loader_takes_its_workers_from_the_template_process_that_tests_share(remote):
    assert "PYTEST_CURRENT_TEST" not in os.environ
    with remote(["a"], lambda _shard: [[each.pid for each in psutil.Process().parents()]]) as loader:
        (origins,) = loader
    assert {number for _, number in leavings.SHARED} & set(origins)


SHARED = """
import sys
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=1)
print(memory.name, flush=True)
sys.stdin.readline()
"""


def test_shared_memory_that_a_killed_process_leaves_is_found_and_that_of_others_is_not(processes):
    look = leavings.SharedMemory()
    other = Path("/dev/shm/sem.of another program")
    program = subprocess.Popen([sys.executable, "-c", SHARED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    left = {("shared memory", program.stdout.readline().strip())}
    other.touch()
    try:
        assert look.left() == left
        program.kill()
        program.communicate()
        # Python's helper removes what the process has left, at a time of its own.
        assert look.left() <= left
        ((_, name),) = left
        Path("/dev/shm", name).write_bytes(b"left")
        assert look.left() == left
        # Another program's, and of a process that was there before the test.
        Path("/dev/shm", f"torch_{os.getppid()}_1_1").write_bytes(b"left")
        assert look.left() == left
    finally:
        for path in (other, Path("/dev/shm", name), Path("/dev/shm", f"torch_{os.getppid()}_1_1")):
            path.unlink(missing_ok=True)
