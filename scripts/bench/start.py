"""Measure starts: of one worker and of eight, and of one that replaces a dead one.

Each trial is a new process that imports both libraries before the clock starts, as a training script does. CPU counts
all processes, up to the time when every worker has made what it may make ahead. Memory is the proportional set size of
all processes but the trainer.

The second table is about a program that makes a loader for each phase: ours and torch's in turn, in one process, each
closed before the next one is made. torch forks the trainer here, as it does by default on Linux. ``--workloads
starts`` chooses both tables; ``first_batches`` has the others.
"""

import importlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from statistics import median
from typing import Any

import first_batches
import measure
import origins
import workloads
from contestants import ours, torchs
from measure import Settings, Table, Usage, cells, medians

_AHEAD = 2
_MANY = 8
_SMALLEST_SCALE = 0.1
_RESTARTS = 5
_NUM_PHASES = 30
_PHASES = "ours and torch in turn"
_PHASE_TARGET = 1.5
_SETTLED_S, _LONGEST_S = 0.5, 60.0
_CONTESTANTS = (*origins.OURS, "torch")
# Of eight workers' clock and CPU to one's, of one worker's clock to torch's, of memory in MiB, of a restart in seconds.
_CLOCK_TARGET, _CPU_TARGET, _ONE_TARGET, _MEMORY_TARGET, _RESTART_TARGET = 1.3, 1.5, 1.2, 30, 0.3


def trial(contestant: str, num_workers: int = 1, num_phases: int = 0) -> dict[str, Any]:
    importlib.import_module("fkat_data")
    if num_phases:
        return _trial_of_phases(num_phases)
    before = Usage.now()
    with _open(contestant, num_workers, _AHEAD) as loader:
        microbatches = iter(loader)
        begun_s = time.perf_counter()
        next(microbatches)
        first_s = time.perf_counter()
        cpu_s = _settled_cpu_s() - before.trainer_cpu_s - before.worker_cpu_s
        found: dict[str, Any] = {
            "constructed_s": begun_s - before.wall_s,
            "first_s": first_s - before.wall_s,
            "cpu_s": cpu_s,
            "pss_mib": measure.memory()["worker_pss_mib"],
        }
        if contestant != "torch" and num_workers == 1:
            found["restart_s"] = median(_restart_s(loader, microbatches) for _ in range(_RESTARTS))
    return found


def _trial_of_phases(num_phases: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"ours": [], "torch": []}
    for _ in range(num_phases):
        for contestant, found in seconds.items():
            began_s = time.perf_counter()
            with _open(contestant) as loader:
                microbatches = iter(loader)
                next(microbatches)
                found.append(time.perf_counter() - began_s)
                del microbatches  # torch ends its worker then
    places = {
        "first": lambda each: each[0],
        "later": lambda each: median(each[1:]),
        "slowest": lambda each: max(each[1:]),
    }
    return {f"{name}_{place}_s": of(found) for name, found in seconds.items() for place, of in places.items()}


def _open(contestant: str, num_workers: int = 1, ahead: int | None = None) -> AbstractContextManager[Iterable[Any]]:
    """Open a loader; without ``ahead``, with what it does by default."""
    options: dict[str, Any]
    if contestant == "torch":
        method = None if ahead is None else "spawn"
        options = {"num_workers": num_workers, "prefetch_factor": ahead, "multiprocessing_context": method}
        return torchs(workloads.Stream("tiny"), **options)
    options = {"num_shard_prefetches": num_workers, "num_microbatch_prefetches": ahead}
    options |= {"start_method": contestant.removeprefix("ours, "), "max_worker_restarts": _RESTARTS}
    shards = [str(index) for index in range(num_workers)]
    return ours(workloads.Factory("tiny"), shards, **({} if ahead is None else options))


def run(settings: Settings) -> Iterator[Table]:
    if settings.wanted_workloads(["starts"]):
        yield _starts(settings)
        yield _phases(settings)
    yield from first_batches.run(settings)


def _starts(settings: Settings) -> Table:
    num_many = _MANY if settings.scale >= _SMALLEST_SCALE else 2  # a test starts fewer
    variants = {
        f"{contestant}, {count}": {"contestant": contestant, "num_workers": count}
        for contestant in _CONTESTANTS
        for count in (1, num_many)
    }
    value = {name: medians(done) for name, done in measure.in_turn(settings, "start", variants).items()}
    torch_first_s = value["torch, 1"]("first_s")
    rows: list[list[str]] = []
    for contestant in _CONTESTANTS:
        one, many = value[f"{contestant}, 1"], value[f"{contestant}, {num_many}"]
        rows.append(
            [
                contestant,
                f"{1e3 * one('constructed_s'):.0f} / {1e3 * many('constructed_s'):.0f}",
                f"{one('first_s'):.2f} / {many('first_s'):.2f}",
                f"{many('first_s') / one('first_s'):.2f}",
                f"{one('first_s') / torch_first_s:.2f}",
                f"{one('cpu_s'):.2f} / {many('cpu_s'):.2f}",
                f"{many('cpu_s') / one('cpu_s'):.2f}",
                f"{(many('pss_mib') - one('pss_mib')) / (num_many - 1):.0f}",
                "-" if contestant == "torch" else f"{one('restart_s'):.2f}",
            ]
        )
    targets = (_CLOCK_TARGET, _ONE_TARGET, "", _CPU_TARGET, _MEMORY_TARGET, _RESTART_TARGET)
    rows.append(["target (at most)", "", "", *map(str, targets)])
    headers = [f"workers: 1 / {num_many}", "until iter() returned, ms", "first microbatch, s", "ratio"]
    headers += ["one worker, to torch", "CPU, s", "ratio", "PSS of each further worker, MiB"]
    headers += ["restart until the next microbatch, s"]
    return Table("From construction to the first microbatch", headers, rows)


def _phases(settings: Settings) -> Table:
    num_phases = max(2, round(_NUM_PHASES * min(1.0, settings.scale)))
    done = measure.of_contestants(settings, "start", [_PHASES], num_phases=num_phases)[_PHASES]
    rows: list[list[str]] = []
    for name in ("ours", "torch"):
        ratio = medians(done)(f"{name}_later_s") / medians(done)("torch_later_s")
        seconds = cells(done, **{f"{name}_{place}_s": ".3f" for place in ("first", "later", "slowest")})
        rows.append([name, *seconds, f"{ratio:.2f}"])
    rows.append(["target (at most)", "", "", "", str(_PHASE_TARGET)])
    headers = ["", "first loader, s", f"each of {num_phases - 1} later ones, s", "slowest of them, s", "to torch"]
    return Table("A loader for each phase, to its first microbatch", headers, rows)


def _settled_cpu_s() -> float:
    """Wait until no process computes, and return the CPU seconds of all so far."""
    deadline_s = time.monotonic() + _LONGEST_S
    used_s = -1.0
    while time.monotonic() < deadline_s:
        usage = Usage.now()
        if usage.worker_cpu_s - used_s < 0.02:
            return usage.trainer_cpu_s + usage.worker_cpu_s
        used_s = usage.worker_cpu_s
        time.sleep(_SETTLED_S)
    raise RuntimeError(f"the workers still compute after {_LONGEST_S:.0f} s")


def _restart_s(loader: Any, microbatches: Any) -> float:
    """Kill the worker, and return the seconds until a microbatch that another has made."""
    os.kill(loader._session.running.engine.pool.workers[0].pid, signal.SIGKILL)  # noqa: SLF001 - no user kills workers
    began_s = time.perf_counter()
    for _ in range(_AHEAD + 1):  # what the dead one has made is delivered first
        next(microbatches)
    return time.perf_counter() - began_s
