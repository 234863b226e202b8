"""The environment that a process inherits from the one that starts it; a template's forks get their trainer's.

Some of it can be set in a process that runs already (``Surroundings``). For the rest, ``inherited_environment`` tells whether two
processes that are started now and then would take over the same. At the end: what the trainer and the template process
write to each other of a worker's birth and death.
"""

import os
import resource
import struct
import subprocess
import sys
from typing import NamedTuple, TypeAlias, cast

from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.machine import text_of, variables_at_start

_LIMITS = tuple(sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}))
_SEED = "PYTHONHASHSEED"
_KEPT_FILES = ("/proc/self/cgroup", "/proc/self/oom_score_adj")


class Surroundings(NamedTuple):
    """The part of an inherited environment that a running process can also be given.

    Attributes:
        umask: The mask of permissions of files that it makes; None if the system does not say.
        nice: Its priority.
        cpus: The CPUs that it may use.
        limits: The soft and hard limits of its resources.
    """

    umask: int | None
    nice: int
    cpus: frozenset[int]
    limits: dict[int, tuple[int, int]]

    @classmethod
    def now(cls) -> "Surroundings":
        """Return those of the calling thread."""
        return cls(
            umask=_umask(),
            nice=os.getpriority(os.PRIO_PROCESS, 0),
            cpus=frozenset(os.sched_getaffinity(0)),
            limits={number: resource.getrlimit(number) for number in _LIMITS},
        )

    def impose(self, pid: int) -> None:
        """Give them to a process, but for the umask; 0: to this one, umask included.

        What the system refuses stays as it is.
        """
        if pid == 0 and self.umask is not None:
            os.umask(self.umask)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, self.nice)
        with suppress(OSError):
            os.sched_setaffinity(pid, self.cpus)
        for number, limits in self.limits.items():
            with suppress(OSError, ValueError):
                if resource.prlimit(pid, number) != limits:
                    resource.prlimit(pid, number, limits)


def interpreter_flags() -> list[str]:
    """Return the command-line flags of this interpreter, such as -X and -W, which apply to its workers, too."""
    # multiprocessing has had this function since Python 3.2.
    return cast("list[str]", subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]  # noqa: SLF001


def new_interpreter() -> tuple[list[str], dict[str, str], dict[str, str | None]]:
    """Return how to start an interpreter that hashes strings as all workers do.

    Returns:
        Its flags; its environment; and the variables to set again once it runs, so that its environment is this
        process's. None: to remove.
    """
    flags, environment = interpreter_flags(), dict(os.environ)
    if sys.flags.ignore_environment:
        # It must not ignore the seed: so it gets no other variable, instead of the flag.
        flags = [flag for flag in flags if flag not in {"-E", "-I"}]
        if sys.flags.isolated:
            flags += ["-s", "-P"]
        environment = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
    environment[_SEED] = _hash_seed
    changed = {_SEED, *(os.environ.keys() - environment.keys())}
    return flags, environment, {name: os.environ.get(name) for name in changed}


def own_hash_seed() -> str | None:
    """Return the seed of ``hash()`` that this process was started with; None if it is random.

    No other process can take over a random one: Python draws more bits than the variable holds.
    """
    if not sys.flags.hash_randomization:
        return "0"
    if sys.flags.ignore_environment:
        return None
    # What the variable says now may have been set since.
    value = variables_at_start().get(_SEED, "")
    return value if value.isdigit() and int(value) else None  # -R makes of 0 a random one


def inherited_environment() -> tuple[object, ...]:
    """Return what a process that is started now takes over from this one, and cannot be given later.

    All environment variables are part of it: which of them a library reads while it is imported is not known.
    """
    files = [text_of(path) for path in _KEPT_FILES]
    identity = (os.getresuid(), os.getresgid(), tuple(os.getgroups()), os.getsid(0), os.sched_getscheduler(0))
    return dict(os.environ), sys.executable, tuple(interpreter_flags()), *identity, *files


def import_paths() -> list[str]:
    """Return where modules are imported from, with the working directory by its name, if it has one."""
    try:
        folder = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    except genuine(OSError):  # it was removed, or may not be searched
        folder = ""
    return [path or folder for path in sys.path if path or folder]


def _umask() -> int | None:
    # os.umask() would change it for the trainer's other threads.
    for line in text_of("/proc/self/status").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return None


_hash_seed = own_hash_seed() or "0"


RETIRED = b"\1"
"""What a template sends last that ends because it had nothing to do."""
IS_BORN, IS_DEAD = 1, 2
BIRTH = struct.Struct("<Bq?")
"""A process's birth: ``IS_BORN``, its process id, whether it was forked; its pidfd comes along.

What follows is why it shares nothing with the other workers of its loader, as text; empty where it does.
"""
DEATH = struct.Struct("<Bi")
"""Its end: ``IS_DEAD``, its exit code as ``subprocess`` gives it."""
LONGEST_NEWS_BYTES = 4096
MOST_DESCRIPTORS = 16


class WorkerRequest(NamedTuple):
    """A worker to start.

    Attributes:
        title: Its title.
        worker_index: The worker's number among its loader's.
        stack_signal: The signal that makes it write its stacks.
        surroundings: The trainer's.
        why_alone: Why the loader's parent has passed the request on: the worker opens the shipment for itself.
    """

    title: str
    worker_index: int
    stack_signal: int
    surroundings: Surroundings
    why_alone: str = ""


class WorkerDescriptors(NamedTuple):
    """The descriptors of a request for a worker, in their order.

    Attributes:
        birth: The end of the birth socket for the process that is asked.
        settings: The shipped settings.
        channel: The worker's end of the pipe.
        page: Where the worker reports its stages.
        lifeline: The worker's lifeline.
        stacks: Where it writes its stacks.
        stderr: Its stderr.
        folder: The trainer's working directory.
        stdout: Its stdout; None if the trainer has none.
    """

    birth: int
    settings: int
    channel: int
    page: int
    lifeline: int
    stacks: int
    stderr: int
    folder: int
    stdout: int | None = None


class ParentRequest(NamedTuple):
    """A loader's parent to start: it opens the loader's shipment once, and workers are forks of it.

    Attributes:
        title: Its title.
        stack_signal: The signal that makes it write its stacks.
        surroundings: The trainer's.
        modules: What the importer imports before.
        why_alone: Why the importer has passed the request on: the parent imports for itself.
    """

    title: str
    stack_signal: int
    surroundings: Surroundings
    modules: frozenset[str]
    why_alone: str = ""


class ParentDescriptors(NamedTuple):
    """The descriptors of a request for a loader's parent, in their order.

    Attributes:
        birth: The end of the birth socket for the process that is asked.
        settings: The shipped settings.
        control: The parent's end of its control socket, on which requests for workers come.
        lifeline: The parent's lifeline.
        stacks: Where it writes its stacks.
        stderr: Its stderr.
        folder: The trainer's working directory.
        stdout: Its stdout; None if the trainer has none.
    """

    birth: int
    settings: int
    control: int
    lifeline: int
    stacks: int
    stderr: int
    folder: int
    stdout: int | None = None


class ImporterRequest(NamedTuple):
    """An importer to start: it imports the modules that shipments name, and loaders' parents are forks of it.

    Attributes:
        title: Its title.
        surroundings: The trainer's.
        idle_ms: Milliseconds without a child after which it ends.
    """

    title: str
    surroundings: Surroundings
    idle_ms: int
    why_alone: str = ""


class ImporterDescriptors(NamedTuple):
    """The descriptors of a request for an importer, in their order.

    Attributes:
        birth: The end of the birth socket for the process that is asked.
        control: The importer's end of its control socket, on which requests for parents come.
        lifeline: The importer's lifeline.
        stderr: Its stderr.
    """

    birth: int
    control: int
    lifeline: int
    stderr: int


Request: TypeAlias = WorkerRequest | ParentRequest | ImporterRequest
Descriptors: TypeAlias = WorkerDescriptors | ParentDescriptors | ImporterDescriptors
