"""Run trials in separate processes, in turn, and measure time, CPU seconds, page faults and memory."""

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

_FOLDER = Path(__file__).resolve().parent
_TIMEOUT_S = 120
_GRACE_S = 8.0
_BUSY_START_S = 0.3
_MEBIBYTE = 1 << 20


class Settings(NamedTuple):
    """The options of a run of the benchmarks.

    Attributes:
        repeats: The number of trials of each contestant, after a warm-up that does not count.
        scale: A factor on every count.
        is_together: Whether trials run in this process: quick, but memory is not valid.
        workloads: The workloads to run, if a benchmark has several; empty: all.
        contestants: The contestants to run, if a benchmark can omit some; empty: all.
        workers: The numbers of workers, for benchmarks that compare several; empty: the benchmark's own.
        peers: The Python of the peers' environment, or None.
    """

    repeats: int
    scale: float
    is_together: bool
    workloads: tuple[str, ...]
    contestants: tuple[str, ...]
    workers: tuple[int, ...]
    peers: Path | None

    def count(self, full: int, *, at_least: int = 10) -> int:
        return max(at_least, round(full * self.scale))

    def wanted_workloads(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self.workloads or name in self.workloads]

    def wanted_contestants(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self.contestants or name in self.contestants]

    def pythons(self, variants: Iterable[str]) -> dict[str, Path]:
        """Return the Python of variants that run in the peers' environment."""
        return dict.fromkeys(variants, self.peers) if self.peers else {}


class Table(NamedTuple):
    """A table of results, for people."""

    title: str
    headers: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _row(self.headers), _row(["---"] * len(self.headers))]
        return "\n".join([*lines, *(_row(row) for row in self.rows)])


class Result(NamedTuple):
    """The result of a benchmark: tables for people, and every trial for programs."""

    tables: list[Table]
    trials: list[dict[str, Any]]


class Usage(NamedTuple):
    """The resources that a trainer and its workers used so far."""

    wall_s: float
    trainer_cpu_s: float
    worker_cpu_s: float
    trainer_faults: int
    worker_faults: int

    @classmethod
    def now(cls, children: Sequence[psutil.Process] | None = None) -> "Usage":
        """Return what was used until now, by these children alone if they are given."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        children = workers() if children is None else children
        return cls(
            wall_s=time.perf_counter(),
            trainer_cpu_s=own.ru_utime + own.ru_stime,
            worker_cpu_s=sum(_cpu_s(child) for child in children),
            trainer_faults=own.ru_minflt,
            worker_faults=sum(_minor_faults(child.pid) for child in children),
        )


def used_between(before: Usage, after: Usage, count: int) -> dict[str, float]:
    """Return the resources used between two times, in total and for each of ``count`` microbatches."""
    wall_s = after.wall_s - before.wall_s
    return {
        "count": count,
        "wall_s": wall_s,
        "per_s": count / wall_s,
        "trainer_cpu_s": after.trainer_cpu_s - before.trainer_cpu_s,
        "worker_cpu_s": after.worker_cpu_s - before.worker_cpu_s,
        "trainer_cpu_us": 1e6 * (after.trainer_cpu_s - before.trainer_cpu_s) / count,
        "worker_cpu_us": 1e6 * (after.worker_cpu_s - before.worker_cpu_s) / count,
        "trainer_faults": (after.trainer_faults - before.trainer_faults) / count,
        "worker_faults": (after.worker_faults - before.worker_faults) / count,
    }


def workers() -> list[psutil.Process]:
    """Return all descendants of this process: workers and their helpers."""
    return psutil.Process().children(recursive=True)


def memory() -> dict[str, float]:
    """Return the memory of the trainer and the workers.

    In the proportional set size (PSS), a page that n processes map counts 1/n for each. So the sum over all processes
    is what they take together, including shared memory.
    """
    trainer, others = psutil.Process(), workers()
    own = _memory_of(trainer)
    theirs = [_memory_of(other) for other in others]
    found: dict[str, float] = {f"trainer_{name}": value for name, value in own.items()}
    for name in own:
        found[f"worker_{name}"] = sum(other[name] for other in theirs)
    found["pss_mib"] = found["trainer_pss_mib"] + found["worker_pss_mib"]
    return found


@contextlib.contextmanager
def busy_processes(count: int) -> Generator[None]:
    """Keep ``count`` more processes busy, in this process's session, where the kernel weighs them one by one."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(_BUSY_START_S)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def counts(pid: int) -> dict[str, int]:
    """Return the numbers of a process's open descriptors and mappings."""
    return {
        "fds": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        "maps": len(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()),
    }


def in_turn(
    settings: Settings,
    variants: Mapping[str, tuple[str, dict[str, Any]]],
    *,
    pythons: Mapping[str, Path] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Run each variant ``repeats`` times in turn, A B C A B C, so that other load on the machine affects all equally.

    Args:
        settings: The number of repeats, and whether trials run in this process.
        variants: By name: the module, and the arguments of its ``trial``.
        pythons: By name: the Python of a variant that needs a different one.
    """
    run = _here if settings.is_together else _apart
    trials: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    warm_ups = 1 if settings.repeats > 1 else 0
    for repeat in range(settings.repeats + warm_ups):
        for name, (module, arguments) in variants.items():
            python = str((pythons or {}).get(name, sys.executable))
            trial = run(python, module, arguments)
            if repeat >= warm_ups:
                trials[name].append({"variant": name, "module": module, **arguments, **trial})
    return trials


def medians(trials: list[dict[str, Any]]) -> Callable[[str], float]:
    """Return a function that gives a number's median over the trials."""
    return lambda name: median(trial[name] for trial in trials)


def _here(python: str, module: str, arguments: dict[str, Any]) -> dict[str, Any]:
    del python
    return importlib.import_module(module).trial(**arguments)


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


def _memory_of(process: psutil.Process) -> dict[str, float]:
    full = process.memory_full_info()
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in status if line.endswith(" kB")}
    return {
        "pss_mib": full.pss / _MEBIBYTE,
        "uss_mib": full.uss / _MEBIBYTE,
        "rss_mib": full.rss / _MEBIBYTE,
        "peak_rss_mib": kibibytes["VmHWM"] / 1024,
        "shared_mib": kibibytes["RssShmem"] / 1024,
        **counts(process.pid),
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _minor_faults(pid: int) -> int:
    # The second field, the name in parentheses, can contain spaces; `minflt` is the eighth field after it.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[7])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
