"""Run trials in separate processes, in turn, and measure time, CPU seconds and memory."""

import contextlib
import importlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

_FOLDER = Path(__file__).resolve().parent
_TIMEOUT_S = 120
_GRACE_S = 8.0
_BUSY_START_S = 0.3
_MEBIBYTE = 1 << 20

Trials = list[dict[str, Any]]


class Settings(NamedTuple):
    """The options of a run of the benchmarks.

    Attributes:
        repeats: The number of trials of each contestant, after a warm-up that does not count.
        scale: A factor on every count.
        is_together: Whether trials run in this process: quick, but memory is not valid.
        workloads: The workloads to run, if a benchmark has several; empty: all.
        contestants: The contestants to run, if a benchmark can omit some; empty: all.
        workers: The numbers of workers, for benchmarks that compare several; empty: the benchmark's own.
        link_mb_per_s: What the store sends where remote files are read in order, as a link does.
        busy: Numbers of other processes that keep a core busy, one after the other, for benchmarks of starts and memory.
        peers: The Python of the peers' environment, or None.
        trials: Every trial of the benchmark so far.
    """

    repeats: int
    scale: float
    is_together: bool
    workloads: Sequence[str]
    contestants: Sequence[str]
    workers: Sequence[int]
    busy: Sequence[int]
    link_mb_per_s: float
    peers: Path | None
    trials: Trials

    def count(self, full: int, *, at_least: int = 10) -> int:
        return max(at_least, round(full * self.scale))

    def wanted_workloads(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self.workloads or name in self.workloads]

    def wanted_contestants(self, names: Iterable[str], peers: Collection[str] = ()) -> list[str]:
        """Return those that are asked for; peers need their environment."""
        there = [name for name in names if self.peers or name not in peers]
        return [name for name in there if not self.contestants or name in self.contestants]


class Table(NamedTuple):
    """A table of results, for people."""

    title: str
    headers: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _row(self.headers), _row(["---"] * len(self.headers))]
        return "\n".join([*lines, *(_row(row) for row in self.rows)])


class Usage(NamedTuple):
    """The resources that a trainer and its workers used so far."""

    wall_s: float
    trainer_cpu_s: float
    worker_cpu_s: float

    @classmethod
    def now(cls, children: Sequence[psutil.Process] | None = None) -> "Usage":
        """Return what was used until now, by these children alone if they are given."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        children = workers() if children is None else children
        worker_cpu_s = sum(sum(child.cpu_times()[:2]) for child in children)
        return cls(time.perf_counter(), own.ru_utime + own.ru_stime, worker_cpu_s)


def used_between(before: Usage, after: Usage, count: int) -> dict[str, float]:
    """Return the resources used between two times, in total and for each of ``count`` microbatches."""
    wall_s = after.wall_s - before.wall_s
    trainer_cpu_us = 1e6 * (after.trainer_cpu_s - before.trainer_cpu_s) / count
    worker_cpu_us = 1e6 * (after.worker_cpu_s - before.worker_cpu_s) / count
    return {
        "count": count,
        "wall_s": wall_s,
        "per_s": count / wall_s,
        "trainer_cpu_us": trainer_cpu_us,
        "worker_cpu_us": worker_cpu_us,
        "cpu_us": trainer_cpu_us + worker_cpu_us,
    }


def take(microbatches: Iterable[Any], count: int) -> int:
    """Take at most ``count`` microbatches; return their number."""
    return sum(1 for _ in islice(microbatches, count))


def workers() -> list[psutil.Process]:
    """Return all descendants of this process, workers and their helpers, without busy neighbours."""
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in _neighbours]


def all_processes() -> list[psutil.Process]:
    """Return this process, and all its descendants."""
    return [psutil.Process(), *workers()]


def memory() -> dict[str, float]:
    """Return the memory of the trainer and the workers.

    In the proportional set size (PSS), a page that n processes map counts 1/n for each. So the sum over all processes
    is what they take together, including shared memory.
    """
    own, *others = (process.memory_full_info() for process in all_processes())
    worker_pss_mib = sum(other.pss for other in others) / _MEBIBYTE
    return {
        "pss_mib": own.pss / _MEBIBYTE + worker_pss_mib,
        "worker_pss_mib": worker_pss_mib,
        "peak_rss_mib": sum(peak_rss_mib(process.pid) for process in all_processes()),
    }


def peak_rss_mib(pid: int) -> float:
    """Return the most memory that a process had, since it began or since ``clear_refs`` has reset that."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


@contextlib.contextmanager
def busy_processes(count: int) -> Generator[None]:
    """Keep ``count`` more processes busy, in this process's session, where the kernel weighs them one by one."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    _neighbours.update(process.pid for process in processes)
    try:
        if processes:
            time.sleep(_BUSY_START_S)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            _neighbours.discard(process.pid)


_neighbours: set[int] = set()


def in_turn(
    settings: Settings, module: str, variants: Mapping[str, dict[str, Any]], *, peers: Collection[str] = ()
) -> dict[str, Trials]:
    """Run each variant ``repeats`` times in turn, A B C A B C, so that other load on the machine affects all equally.

    Args:
        settings: The number of repeats, and whether trials run in this process.
        module: The module whose ``trial`` runs.
        variants: By name: the arguments of ``trial``.
        peers: The contestants that need the peers' environment.
    """
    trials: dict[str, Trials] = {name: [] for name in variants}
    warm_ups = 1 if settings.repeats > 1 else 0
    for repeat in range(settings.repeats + warm_ups):
        for name, arguments in variants.items():
            python = settings.peers if arguments.get("contestant") in peers else None
            if settings.is_together:
                measured = importlib.import_module(module).trial(**arguments)
            else:
                measured = _apart(str(python or sys.executable), module, arguments)
            if repeat >= warm_ups:
                trials[name].append({"variant": name, "module": module, **arguments, **measured})
    settings.trials.extend(trial for done in trials.values() for trial in done)
    return trials


def of_contestants(
    settings: Settings, module: str, contestants: Iterable[str], *, peers: Collection[str] = (), **arguments: Any
) -> dict[str, Trials]:
    """Run each contestant in turn, with the same arguments."""
    variants = {name: {"contestant": name, **arguments} for name in contestants}
    return in_turn(settings, module, variants, peers=peers)


def medians(trials: Trials) -> Callable[[str], float]:
    """Return a function that gives a number's median over the trials."""
    return lambda name: median(trial[name] for trial in trials)


def cells(trials: Trials, **forms: str) -> list[str]:
    """Return the medians of numbers, each in the form that its name is given."""
    return [format(medians(trials)(name), form) for name, form in forms.items()]


def machine() -> dict[str, Any]:
    """Return what a report says of the machine and of what is installed."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.exists() else []
    return {
        "cpu": next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown"),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("fkat_data", "torch", "numpy")},
        "load": os.getloadavg(),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _apart(python: str, module: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a trial in its own process, so that the memory and threads of an earlier trial do not affect it."""
    command = [python, str(_FOLDER / "trial.py"), module, json.dumps(arguments)]
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # which a template that is forked from the trainer needs
        )
        alarm = threading.Timer(_TIMEOUT_S, _kill, (process.pid,))
        alarm.start()
        try:
            # A trial prints one line. Some peers do not exit after it, or leave workers behind.
            output = process.stdout.readline() if process.stdout else ""
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        finally:
            alarm.cancel()
            _kill(process.pid)
            process.wait()
        if not output:
            complaints.seek(0)
            raise RuntimeError(f"the trial {module} {arguments} measured nothing:\n{complaints.read()}")
    return json.loads(output)


def _kill(process_group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process_group, signal.SIGKILL)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
