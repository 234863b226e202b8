"""A template that the script forks from itself: its workers are as workers always are, and nothing of the trainer's acts
in them.
"""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest


@pytest.fixture
def run_seeded(run_script, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    return run_script


LEFT_BEHIND = """
import atexit, asyncio, faulthandler, gc, io, json, logging, multiprocessing, os, pathlib, signal, sys
import tempfile, threading, warnings, weakref
import numpy as np
import torch
import fkat_data
import settings_of_user

settings_of_user.variable.set("the script's")
settings_of_user.CHANGED = "before"
folder = tempfile.TemporaryDirectory()
atexit.register(pathlib.Path("at-exit").write_text, "once")
class Referent:
    pass
referents = [Referent()]
weakref.finalize(referents[0], pathlib.Path("finalised").write_text, "once")
log = open("log", "w")
log.write("buffered, ")
logging.basicConfig(filename="logging", level=logging.INFO, force=True)
logging.getLogger("user").addHandler(logging.FileHandler("logging"))
sys.stdout = io.StringIO()
print("kept in the script")
sys.excepthook = lambda *_: pathlib.Path("excepthook").touch()
signal.signal(signal.SIGALRM, lambda *_: pathlib.Path("handled").touch())
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
faulthandler.register(signal.SIGQUIT, file=log)
left, right = os.pipe()
os.set_blocking(right, False)
signal.set_wakeup_fd(right)
child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
child.start()
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
torch.set_default_dtype(torch.float64)
torch.set_flush_denormal(True)
np.random.set_bit_generator(np.random.PCG64(3))
gc.callbacks.append(lambda *_: None)
lock = threading.Lock()
plugins = pathlib.Path("plugins").resolve()
plugins.mkdir()
sys.path.append(str(plugins))
(plugins / "early.py").touch()
import early
listed = plugins.stat()

fkat_data.fork_template()
(plugins / "late.py").touch()
os.utime(plugins, ns=(listed.st_atime_ns, listed.st_mtime_ns))
settings_of_user.CHANGED = "after"
os.environ["SET_AFTER"] = "set"
torch.set_default_dtype(torch.float32)

def kind(name):
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return "/dev/null"

class Facts:
    def __call__(self, shard):
        logging.getLogger("user").warning("a warning of the worker")
        logging.info("not to be seen")
        gc.collect()
        asyncio.run(asyncio.sleep(0))
        import __main__, late
        yield {
            "main": sorted(name for name in vars(__main__) if not name.startswith("__")),
            "files": sorted(name for name in map(kind, os.listdir("/proc/self/fd")) if name.startswith("/")
                            and not name.startswith(("/dev", "/memfd"))),
            "alarm": signal.getsignal(signal.SIGALRM) == signal.SIG_DFL,
            "ignored": signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN,
            "wakeup": signal.set_wakeup_fd(-1),
            "hook": sys.excepthook is sys.__excepthook__,
            "stdout": sys.stdout.fileno(),
            "level": logging.root.level,
            "handlers": len(logging.root.handlers) + len(logging.getLogger("user").handlers),
            "children": multiprocessing.active_children(),
            "variable": settings_of_user.variable.get(),
            "denormal": (torch.tensor([1e-40]) * 1).item() > 0,
            "numpy": type(np.random.get_bit_generator()).__name__,
            "collecting": len(gc.callbacks),
            "set after": os.environ.get("SET_AFTER"),
            "class": type(self).__module__,
        }
        yield settings_of_user.CHANGED
        print("from the worker")

found = {}
for method in ("template", "spawn"):
    with fkat_data.ShardedDataLoader(0, ["a"], Facts(), start_method=method) as loader:
        found[method], user = loader
        assert user == {"template": "before", "spawn": "as imported"}[method]
    assert child.is_alive() and os.path.exists(folder.name)
assert {**found["template"], "main": []} == {**found["spawn"], "main": []}, found
assert found["template"]["main"] == []
log.write("written once")
log.close()
assert open("log").read() == "buffered, written once"
assert "of the worker" not in open("logging").read()
assert not [name for name in ("at-exit", "finalised", "excepthook", "handled") if os.path.exists(name)]
assert sys.stdout.getvalue() == "kept in the script\\n"
signal.raise_signal(signal.SIGALRM)
assert os.path.exists("handled")
child.terminate()
sys.stdout = sys.__stdout__
print("the end")
"""


def test_what_is_the_trainers_stays_with_it(run_seeded, tmp_path):
    (tmp_path / "settings_of_user.py").write_text(
        "import contextvars\nCHANGED = 'as imported'\nvariable = contextvars.ContextVar('variable', default='nothing')\n"
    )
    done = run_seeded(LEFT_BEHIND)
    assert done.stdout == "from the worker\nfrom the worker\nthe end\n"
    assert done.stderr.count("a warning of the worker") == 2
    assert "not to be seen" not in done.stderr
    assert (tmp_path / "at-exit").read_text() == (tmp_path / "finalised").read_text() == "once"


REFUSED = """
import _thread, asyncio, contextlib, os, threading, time
import torch
import fkat_data
from fkat_data import FkatDataError, ShardedDataLoader, fork_template

def refused(words):
    try:
        fork_template()
    except FkatDataError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

def in_a_worker(shard):
    try:
        fork_template()
    except FkatDataError as error:
        return [str(error)]

released = threading.Event()
thread = threading.Thread(target=released.wait, name="a thread")
thread.start()
refused("other threads run (a thread)")
released.set()
thread.join()

_thread.start_new_thread(time.sleep, (1,))
refused("1 threads of libraries run")
time.sleep(1.1)

elsewhere = threading.Thread(target=refused, args=("not in the main thread",))
elsewhere.start()
elsewhere.join()

async def call():
    refused("running asyncio loop")
asyncio.run(call())

for mode in (torch.no_grad(), torch.device("meta"), torch.autocast("cpu")):
    with mode:
        refused("torch is in a mode")

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
refused("torch.distributed is initialised")
torch.distributed.destroy_process_group()

for method, words in (("template", "has a template process or workers"), ("spawn", "has a template process or workers")):
    with ShardedDataLoader(0, ["a"], in_a_worker, start_method=method) as loader:
        assert "it is a worker" in next(iter(loader))
        refused(words)

if os.fork() == 0:
    refused("was itself forked")
    os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7

torch.cuda.is_initialized = lambda: True
refused("torch.cuda is initialised")
del torch.cuda.is_initialized
torch.cuda.is_initialized = lambda: False

fork_template()
refused("has a template process")
with ShardedDataLoader(0, ["a"], in_a_worker) as loader:
    print("it is a worker" in next(iter(loader)))
"""


def test_a_fork_that_is_not_safe_is_refused_by_name_and_one_that_is_safe_again_is_made(run_seeded):
    assert run_seeded(REFUSED).stdout == "True\n"


def test_a_random_seed_of_hashes_is_refused(run_script, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    done = run_script(
        "import os, fkat_data\nos.environ['PYTHONHASHSEED'] = '0'\nfkat_data.fork_template()\n", check=False
    )
    assert done.returncode == 1
    assert "PYTHONHASHSEED=0 python train.py" in done.stderr


FAILING = """
import os
import fkat_data
from fkat_data.worker import template_fork

unclosed = open("unclosed", "w")
unclosed.write("when the interpreter ends")

def refuse_to_work(error):
    def fail(*arguments):
        raise error
    return fail

for step, error in (("shed", RuntimeError), ("bind", SystemExit), ("shed", KeyboardInterrupt)):
    good = getattr(template_fork, step)
    setattr(template_fork, step, refuse_to_work(error("no luck")))
    try:
        fkat_data.fork_template()
    except fkat_data.FkatDataError as caught:
        print("ended with exit code 1;" in str(caught), "no luck" in str(caught))
    finally:
        print("the script's own")
    setattr(template_fork, step, good)
with fkat_data.ShardedDataLoader(0, ["a"], lambda shard: [1]) as loader:
    print(list(loader))
"""


def test_a_fork_that_fails_never_returns_to_the_script(run_seeded, tmp_path):
    assert run_seeded(FAILING).stdout == "True True\nthe script's own\n" * 3 + "[1]\n"
    assert (tmp_path / "unclosed").read_text() == "when the interpreter ends"


KILLED = """
import os, signal, sys, time
import torch
import fkat_data
fkat_data.fork_template()

def factory(shard):
    return [(os.getppid(), hash("a"), torch.rand(2)) for _ in range(3)]

def load():
    with fkat_data.ShardedDataLoader(0, ["a"], factory, max_worker_restarts=1) as loader:
        return list(loader)

first, again = load(), load()
os.environ["OTHER"] = "changed"
again += load()
assert len({parent for parent, _, _ in first + again}) == 1
template = first[0][0]
assert open(f"/proc/{template}/status").read().split("PPid:")[1].split()[0] == str(os.getpid())
os.setsid()
with fkat_data.ShardedDataLoader(0, ["a"], factory) as one, fkat_data.ShardedDataLoader(0, ["a"], factory) as other:
    elsewhere = [*one, *other]
assert template not in {parent for parent, _, _ in elsewhere}
os.kill(template, signal.SIGKILL)
while "zombie" in open(f"/proc/{template}/status").read() if os.path.exists(f"/proc/{template}") else False:
    time.sleep(0.01)
after = load() + load()
assert template not in {parent for parent, _, _ in after}
assert {seed for _, seed, _ in first + after} == {hash("a")}
assert all(torch.equal(one[2], other[2]) for one, other in zip(first, after[:3]))
"""


def test_a_template_that_is_killed_is_replaced_by_a_spawned_one_with_one_line(run_seeded):
    said = run_seeded(KILLED).stderr
    assert said.count("that fork_template() forked has ended (exit code -9)") == 1
    assert said.count("that fork_template() forked is not used: session") == 1


SAME_BITS = """
import random, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
import fkat_data
from fkat_data.testing import digest

fkat_data.fork_template()

class Augmented(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        labels = list({f"label {number}" for number in range(20)})
        draw = labels.index(f"label {index}"), random.random(), np.random.rand(), float(torch.rand(()))
        return torch.tensor(draw), torch.randn(30, 30) @ torch.randn(30, 30)

def factory(shard):
    return DataLoader(Augmented(), batch_size=3, shuffle=True)

def digests(**settings):
    with fkat_data.ShardedDataLoader(5, ["a", "b"], factory, num_shard_prefetches=1, **settings) as loader:
        return [digest(microbatch) for microbatch in loader]

one, three = digests(), digests(num_workers_per_shard=3)
print(len(one), one == three == digests(start_method="spawn") == digests(multiprocessing=False))
"""


def test_the_bits_are_those_of_any_worker(run_seeded):
    assert run_seeded(SAME_BITS).stdout == "8 True\n"


LIVING = """
import signal
import fkat_data
fkat_data.fork_template()
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.usefixtures("processes")
def test_the_template_ends_with_its_trainer_and_not_by_signals_for_it(tmp_path):
    (tmp_path / "script.py").write_text(LIVING)
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"}
    command = [sys.executable, str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as trainer:
        try:
            assert trainer.stdout.readline() == "ready\n"
            (template,) = psutil.Process(trainer.pid).children()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                template.send_signal(number)
            time.sleep(0.2)
            assert template.status() != psutil.STATUS_ZOMBIE
        finally:
            trainer.kill()
    assert not psutil.wait_procs([template], timeout=5)[1]
