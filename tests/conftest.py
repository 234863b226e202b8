"""What tests of several folders need: nothing left behind, and scripts run in processes of their own."""

import gc
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from functools import partial
from pathlib import Path

import pytest
import urllib3.util.connection  # noqa: F401 - its import tries an address, which no test of the fast lane may do
from hypothesis import settings

# Modules here can be imported by tests of any folder, and by spawned workers, which search the trainer's sys.path.
_FOLDERS = (
    *("engine", "lanes", "loaders", "datasets", "device", "documents", "extensions", "faults", "files", "huggingface"),
    *("lightning", "random_walks", "saved_states", "streaming", "testing", "tools", "torchtitan", "../scripts"),
    *(f"streaming/{name}" for name in ("cache", "order", "store", "writing")),
)
sys.path[:0] = [str(Path(__file__).parent / folder) for folder in _FOLDERS]
# Every program that a test starts finds the sitecustomize of tests/lanes.
os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[1], *filter(None, [os.environ.get("PYTHONPATH")])])
# Tests run beside each other: a thread of OpenMP that waits by counting takes the core that the next one needs.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import leavings  # noqa: E402 - found by the path above
from interpreters import environment_of  # noqa: E402 - found by the path above
from kept_template import KeptTemplate  # noqa: E402 - found by the path above
from patience import Patience  # noqa: E402 - found by the path above
from prepared import PreparedInterpreter  # noqa: E402 - found by the path above
from selection import EXAMPLES, LANES, LaneSelection, starts  # noqa: E402 - found by the path above

# Whoever starts the tests in the background may have them ignore these, and every program that they start as well.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

_SETTLE_S = 20.0
#: Folders each of whose tests may start processes; none may leave one.
_STARTING = {"device", "engine", "faults", "observe", "testing", "tools", "worker"}
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
_NOBODY = 65534


def pytest_addoption(parser):
    parser.addoption("--lane", choices=list(LANES), default="all", help="which tests to run: %(choices)s")


def pytest_configure(config):
    if config.getoption("lane") == "whole":  # for the processes of pytest-xdist, too
        os.environ.setdefault("WALK_SEED", str(random.randrange(10**6)))
    # How long an example takes on a busy machine says nothing. A run that fails has to speak of the change, not of what it
    # has drawn: only the lane `whole`, and a given seed, draw others than the run before.
    settings.register_profile("tests", deadline=None, derandomize="WALK_SEED" not in os.environ)
    settings.load_profile("tests")
    config.pluginmanager.register(LaneSelection(config.getoption("lane")), "lanes")


def pytest_report_header():
    return f"random walks: WALK_SEED={os.environ['WALK_SEED']}" if "WALK_SEED" in os.environ else None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # What is there after it stays: no collection of garbage needs to look at it, neither meanwhile nor later.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def _allow(root):
    for folder in (root / "closed").glob("*"):
        folder.chmod(0o700)


@pytest.fixture
def forbidden():
    """A folder with a file, and a function that adds a folder of a name which this process may not read."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)  # for the other user that root becomes: root may read everything
        (root / "a.tar").touch()

        def forbid(folder):
            os.seteuid(os.getuid())
            _allow(root)
            shutil.rmtree(root / "closed", ignore_errors=True)
            path = root / "closed" / folder
            (path / "below").mkdir(parents=True)
            (path / "b.tar").touch()
            path.chmod(0)
            if os.geteuid() == 0:
                os.seteuid(_NOBODY)

        try:
            yield root, forbid
        finally:
            os.seteuid(os.getuid())
            _allow(root)


@pytest.fixture(autouse=True)
def nobodys_rank():
    """Have frameworks that make this process a rank, for good, do so for one test only."""
    before = {name: os.environ.get(name) for name in _OF_RANKS}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture
def generators_as_they_were():
    """Leave random numbers as the test has found them."""
    from fkat_data.seeding import preserved_generators

    with preserved_generators():
        yield


@pytest.fixture
def processes():
    """Permit the test to start processes and servers; fail it if a process, or its shared memory, outlives it."""
    before, shared_memory = leavings.processes(), leavings.SharedMemory()
    yield
    _end_own_templates()
    _wait_until_none(lambda: (leavings.processes() - before) | shared_memory.left())


@pytest.fixture(scope="session")
def shared_processes():
    """Permit a fixture that tests share to start processes and servers; it ends them itself."""


@pytest.fixture(scope="session")
def prepared(shared_processes):
    """Return an interpreter that has imported torch: its forks run programs, and ranks of a job."""
    with PreparedInterpreter("torch", "torch.distributed", OMP_NUM_THREADS="1") as interpreter:
        yield interpreter


@pytest.fixture
def remote(processes):
    """Return a function that makes the loaders of tests/engine with worker processes, which make all microbatches."""
    from loader_examples import OF_WORKERS, make

    return partial(make, multiprocessing=True, **OF_WORKERS)


@pytest.fixture
def own_template(monkeypatch):
    """Let the first worker of the test wait for its own template process, and not come from one that tests share."""
    from fkat_data.worker.process import forkserver

    monkeypatch.setattr(forkserver, "_registry", forkserver._Registry())
    yield
    KeptTemplate.end_others(set())


@pytest.fixture
def nothing_left_behind(request):
    """Fail the test if a descriptor outlives it, or what `processes` looks at."""
    before = leavings.descriptors()
    yield
    if starts(request.node):
        _end_own_templates()
    _wait_until_none(lambda: leavings.descriptors() - before)


@pytest.fixture(autouse=True)
def _nothing_left_behind_in_some_folders(request):
    if request.node.path.parent.name in _STARTING:
        request.getfixturevalue("nothing_left_behind")


def _end_own_templates():
    gc.collect(1)
    if "fkat_data.worker.process.forkserver" in sys.modules:
        KeptTemplate.end_others()


def _wait_until_none(left):
    patience = Patience(_SETTLE_S)
    while found := left():
        if patience.is_over():
            pytest.fail(f"left behind: {sorted(map(str, found))}")
        gc.collect(1)  # a test's own garbage is young, and a look at everything takes a quarter of a second
        if not left():
            return
        gc.collect()
        multiprocessing.active_children()  # reaps the workers that torch's loader ended: torch 2.4 does not do so itself
        time.sleep(0.01)


@pytest.fixture
def traced():
    """What Python allocates is counted."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture(scope="session")
def share_of_examples(pytestconfig):
    """The share of its cases that a test of many cases goes through in this lane."""
    return EXAMPLES[pytestconfig.getoption("lane")]


@pytest.fixture(scope="session")
def some(pytestconfig):
    """Return a function that draws some of the cases of a sweep, by ``WALK_SEED``; in lane `whole`, it takes all."""
    lane, seed = pytestconfig.getoption("lane"), int(os.environ.get("WALK_SEED", "0"))

    def drawn(cases, fewest=4):
        cases = list(cases)
        number = max(min(fewest, len(cases)), round(EXAMPLES[lane] * len(cases)))
        return [cases[place] for place in sorted(random.Random(seed).sample(range(len(cases)), number))]

    return drawn


@pytest.fixture
def run_script(processes, tmp_path, request):
    """Run a text as a Python program of its own and return its standard output.

    By "fork", it runs in a fork of an interpreter: the test uses the fixture `prepared`, too.
    """

    def run(text, *arguments, by="file", timeout=240, check=True):
        path = tmp_path / "script.py"
        path.write_text(text)
        if by == "fork":
            done = request.getfixturevalue("prepared").run(path, *arguments, folder=tmp_path, timeout=timeout)
        else:
            command = {"file": [path], "stdin": ["-"], "-c": ["-c", text], "-i": ["-i"]}[by]
            given = text if by in ("stdin", "-i") else None
            done = subprocess.run(
                [sys.executable, *command, *arguments],
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                text=True,
                timeout=timeout,
                env=environment_of(),
                cwd=tmp_path,
                check=False,
            )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
