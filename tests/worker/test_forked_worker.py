"""A forked worker has what a spawned one has: its trainer's surroundings, and no descriptor but its own."""

import json
import os

import pytest

from fkat_data.worker.process.lifeline import SAFE_STACK_SIGNAL

PROGRAM = """
import json, os, resource, signal, sys
import torch
from torch.utils.data import DataLoader
from own_workers import template_pids
from fkat_data import ShardedDataLoader

def kind(name):
    try:
        target = os.readlink(f"/proc/self/fd/{name}")
    except OSError:  # the listing's own
        return None
    return target.split(":")[0].split(" ")[0]

class Facts:
    def __call__(self, shard):
        import faulthandler, gc, multiprocessing, threading
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        print("hello", flush=True)
        limits = sorted(name for name in dir(resource) if name.startswith("RLIMIT"))
        yield {
            "descriptors": sorted(filter(None, map(kind, os.listdir("/proc/self/fd")))),
            "stdin": os.readlink("/proc/self/fd/0"),
            "folder": os.getcwd(),
            "status": [status[name].strip() for name in ("Umask", "SigBlk", "SigIgn", "Threads")],
            "handled": int(status["SigCgt"], 16) & ~(3 << 31),  # but for two that the C library uses among threads
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "cpus": sorted(os.sched_getaffinity(0)),
            "limits": [resource.getrlimit(getattr(resource, name)) for name in limits],
            "argv": sys.argv,
            "path": sys.path[:2],
            "environment": sorted(os.environ.items()),
            "leads a group": os.getpgrp() == os.getpid(),
            "session": os.getsid(0),
            "collects": gc.isenabled(),
            "start method": multiprocessing.get_start_method(allow_none=True),
            "main thread": threading.current_thread() is threading.main_thread(),
            "torch threads": torch.get_num_threads(),
            "faults": faulthandler.is_enabled(),
            "nested": sum(map(int, DataLoader(range(3), batch_size=None, num_workers=2))),
        }

with ShardedDataLoader(0, ["a"], Facts()) as first:
    next(iter(first))
    # All of it after the template has started.
    os.makedirs("gone")
    os.chdir("gone")
    os.umask(0o27)
    signal.signal(signal.SIGWINCH, lambda *_: None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(3)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sys.argv = ["program", "changed"]
    sys.path.insert(0, "/changed")
    os.dup2(os.open("stdout", os.O_WRONLY | os.O_CREAT), 1)
    kept = open("kept", "w")
    facts = []
    for method in ("template", "spawn"):
        with ShardedDataLoader(0, ["a"], Facts(), start_method=method) as loader:
            facts += loader
    assert len(template_pids()) == 1
    json.dump(facts, sys.stderr)
    assert open("stdout").read() == "hello\\n" * 2
"""


def test_a_forked_worker_has_what_a_spawned_one_has(run_script):
    done = run_script(PROGRAM)
    assert done.stdout == "hello\n"
    forked, spawned = json.loads(done.stderr.splitlines()[-1])  # below what torch says about two CPUs
    for fact, value in spawned.items():
        assert forked[fact] == value, fact
    assert forked["nice"] == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)
    assert forked["argv"] == ["program", "changed"]
    assert forked["path"][0] == "/changed"
    assert forked["folder"].endswith("/gone")
    assert forked["leads a group"]
    assert forked["nested"] == 3


SIGNALS = """
import os, signal, sys, time
import torch
from fkat_data import ShardedDataLoader, WorkerDiedError

def factory(shard):
    yield 0
    print("last words", file=sys.stderr, flush=True)
    if shard == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, shard))
    yield 1

with ShardedDataLoader(0, ["other"], lambda shard: [0]) as kept:
    assert list(kept) == [0]  # the template has imported all: a busy machine takes its time for that
    for shard in ("exit", "SIGSEGV", "SIGKILL"):
        with ShardedDataLoader(0, [shard], factory) as loader:
            try:
                list(loader)
            except WorkerDiedError as error:
                pid = error.pid
                print(error.exit_code, "last words" in error.last_words)
            deadline = time.monotonic() + 60
            while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
                time.sleep(0.001)
            assert not os.path.exists(f"/proc/{pid}"), "a zombie"
"""


def test_how_a_forked_worker_ended_is_told(prepared, run_script):
    assert run_script(SIGNALS, by="fork").stdout == "7 True\n-11 True\n-9 True\n"


ASKED = """
import os, signal, sys, time
from fkat_data.worker.process.lifeline import SAFE_STACK_SIGNAL, STACK_SIGNAL, write_stacks_on_signals

stacks = os.open("stacks", os.O_CREAT | os.O_APPEND | os.O_RDWR)
write_stacks_on_signals(STACK_SIGNAL, stacks)

def compute(deadline_s):
    while time.monotonic() < deadline_s or os.waitpid(child, os.WNOHANG)[0] == 0:
        sorted(range(50), key=lambda number: -number)

child = os.fork()
if child == 0:
    for _ in range(3000):
        os.kill(os.getppid(), SAFE_STACK_SIGNAL)
        time.sleep(0.0002)
    os._exit(0)
compute(time.monotonic() + 0.1)
print("in compute" in open("stacks").read())
"""


@pytest.mark.skipif(SAFE_STACK_SIGNAL is None, reason="there is no signal for it")
def test_who_computes_is_asked_for_its_stacks_again_and_again_and_goes_on(prepared, run_script):
    assert run_script(ASKED, by="fork").stdout == "True\n"


LEAVING = """
import atexit, sys, threading, time, weakref
import torch
from fkat_data import ShardedDataLoader

def factory(shard):
    if shard == "a":
        atexit.register(print, "by an exit hook")
        weakref.finalize(torch.Tensor, print, "by a finaliser")
        threading.Thread(target=lambda: (time.sleep(0.3), print("by a thread"))).start()
        sys.stdout.write("by a buffer, ")
    return [0]

with ShardedDataLoader(0, ["a", "b"], factory) as loader:
    print(len(list(loader)), flush=True)
"""


def test_a_forked_worker_ends_with_its_threads_and_exit_hooks(run_script):
    printed = run_script(LEAVING).stdout
    for by in ("by a buffer", "by a thread", "by a finaliser", "by an exit hook"):
        assert by in printed


INTERRUPTED = """
import gc, os, signal, threading, time
import psutil
import torch
from fkat_data import ShardedDataLoader

kept = psutil.Process().children()

def living():
    return [child for child in psutil.Process().children() if child not in kept and child.status() != psutil.STATUS_ZOMBIE]

def left():
    try:
        # A template waits for the next loader.
        found = living()
        return found[1:] or [worker for template in found for worker in template.children()]
    except psutil.NoSuchProcess as ended:  # since it was listed: there may be others
        return [ended]

for delay_s in (0.0005, 0.002, 0.008):
    timer = threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()
        loader = ShardedDataLoader(0, ["a"] * 6, lambda shard: [0], num_shard_prefetches=6)
        time.sleep(60)
    except KeyboardInterrupt:
        timer.join()
        if "loader" in globals():
            loader.close()
            del loader
    deadline = time.monotonic() + 60
    while left() and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    assert not left(), delay_s
with ShardedDataLoader(0, ["a"], lambda shard: [0]) as loader:
    print(list(loader))
"""


def test_ctrl_c_in_the_start_leaves_no_process_and_later_loaders_start(prepared, run_script):
    assert run_script(INTERRUPTED, by="fork").stdout == "[0]\n"
