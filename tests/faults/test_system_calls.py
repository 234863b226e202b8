"""Every system call of a run may fail, or be its last: no named instant is needed for that, only strace."""

import contextlib
import itertools
import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from loader_examples import plain
from own_workers import worker_pids
from patience import Patience
from test_kill_sweep import deliver, due, loader_of
from walks import wait_until

pytestmark = [
    pytest.mark.usefixtures("nothing_left_behind"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]

#: What a worker asks the kernel for while it serves, and with what each may fail.
WORKER_FAULTS = {
    "recvmsg": ["signal=KILL", "error=EINTR"],
    "sendto": ["signal=KILL", "error=EINTR", "error=ENOBUFS"],
    "sendmsg": ["signal=KILL", "error=EINTR", "error=ETOOMANYREFS"],
    "poll": ["signal=KILL", "error=EINTR"],
    "memfd_create": ["signal=KILL", "error=EMFILE", "error=ENFILE"],
    "fallocate": ["signal=KILL", "error=EINTR", "error=ENOSPC"],
    "mmap": ["signal=KILL", "error=ENOMEM"],
    "close": ["signal=KILL", "error=EIO"],
}
TRAINER_FAULTS = {
    "recvmsg": ["signal=KILL", "error=EINTR"],
    "sendto": ["signal=KILL", "error=EINTR", "error=ENOBUFS"],
    "poll": ["signal=KILL", "error=EINTR"],
    "mmap": ["signal=KILL", "error=ENOMEM"],
    "close": ["signal=KILL", "error=EIO"],
    "rename": ["signal=KILL"],
    "write": ["signal=KILL"],
}


def cases(faults):
    return [(call, action) for call, actions in faults.items() for action in actions]


@contextlib.contextmanager
def injected(pid, call, action, occurrence, log):
    """Let one call of a process fail, or kill it, while the context lasts; yield what tells whether it happened."""
    command = ["strace", "-f", "-qq", "-o", log, "-e", f"trace={call}"]
    inject = ["-e", f"inject={call}:{action}:when={occurrence}", "-p", str(pid)]
    strace = subprocess.Popen([*map(str, command), *inject], stderr=subprocess.PIPE, text=True)
    try:
        wait_until_traced(pid, strace)
        yield lambda: "(INJECTED)" in log.read_text() or "killed by SIGKILL" in log.read_text()
    finally:
        # It may wait for a process that sleeps; the kernel lets go of what a killed one has traced.
        strace.kill()
        strace.communicate()


def wait_until_traced(pid, strace):
    patience = Patience()
    while True:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        if all(f"TracerPid:\t{strace.pid}\n" in (task / "status").read_text() for task in tasks):
            return
        if strace.poll() is not None:
            said = strace.stderr.read()
            if "not permitted" in said:
                pytest.skip(f"no process may be traced here: {said}")
            raise AssertionError(said)
        assert not patience.is_over(), "strace has not attached"
        time.sleep(0.005)


def deliver_past_errors(loader):
    """Deliver all; after an error, go on from the state, as a trainer would in its next life."""
    got, errors = [], []
    for _ in range(2):
        try:
            deliver(loader, got)
        except Exception as error:  # noqa: BLE001 - a call may fail in any library
            errors.append(error.with_traceback(None))
            loader.load_state_dict(loader.state_dict())
        else:
            return got, errors
    raise AssertionError(f"one fault gave {errors}")


def check_worker(call, action, occurrence, tmp_path):
    """Return whether the fault happened."""
    log = tmp_path / f"{call}-{occurrence}"
    with loader_of(is_skipping=False, multiprocessing=True, max_worker_restarts=9) as loader:
        wait_until(lambda: loader.statistics().idle_s)  # it has started, and waits for a task
        with injected(worker_pids()[0], call, action, occurrence, log) as has_happened:
            got, errors = deliver_past_errors(loader)
            happened = has_happened()
        restarts = loader.statistics().worker_restarts
    assert got == due(is_skipping=False), errors
    if action == "signal=KILL" or not happened:
        assert not errors
    assert restarts <= happened
    return happened


@pytest.mark.parametrize(
    ("call", "action", "occurrence"), [("sendto", "signal=KILL", 3), ("sendto", "error=ENOBUFS", 2)]
)
def test_a_worker_whose_system_call_fails_is_made_up_for(processes, call, action, occurrence, tmp_path):
    assert check_worker(call, action, occurrence, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a run for each call, one after the other
@pytest.mark.parametrize(("call", "action"), cases(WORKER_FAULTS))
def test_every_system_call_of_a_worker_may_fail(processes, call, action, tmp_path):
    for occurrence in itertools.count(1):
        if not check_worker(call, action, occurrence, tmp_path):
            break
    assert occurrence > 1, "there is no such call"


#: A life that says when it begins to deliver, and is told to.
PROGRAM = """
import sys
from pathlib import Path
from test_kill_sweep import live

def wait_until_told():
    print("ready", flush=True)
    sys.stdin.readline()

live(Path(sys.argv[1]), wait_until_told)
"""


def check_trainer(call, action, occurrence, start, tmp_path):
    """Return whether the fault happened."""
    folder = tmp_path / f"{call}-{occurrence}"
    folder.mkdir()
    trainer = start(PROGRAM, folder)
    trainer.expect("ready")
    trainer.below()
    with injected(trainer.pid, call, action, occurrence, folder / "log") as has_happened:
        trainer.tell()
        code = trainer.wait()
        happened = has_happened()
    trainer.check_all_gone()
    assert code == 0 or happened, trainer.stderr
    if action != "signal=KILL":
        assert code in (0, 1), trainer.stderr
    if code:
        life = start(PROGRAM, folder)
        life.expect("ready")
        life.tell()
        assert life.wait() == 0, life.stderr
    assert json.loads((folder / "got").read_text()) == list(map(plain, loader_of(is_skipping=False)))
    return happened


@pytest.mark.parametrize(("call", "action", "occurrence"), [("recvmsg", "signal=KILL", 5)])
def test_a_trainer_that_is_killed_at_a_system_call_resumes_exactly(call, action, occurrence, start, tmp_path):
    assert check_trainer(call, action, occurrence, start, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(7200)  # a life for each call, one after the other
@pytest.mark.parametrize(("call", "action"), cases(TRAINER_FAULTS))
def test_every_system_call_of_a_trainer_may_fail(call, action, start, tmp_path):
    for occurrence in itertools.count(1):
        if not check_trainer(call, action, occurrence, start, tmp_path):
            break
    assert occurrence > 1, "there is no such call"
