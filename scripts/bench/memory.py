"""Measure how many copies of a dataset in memory all processes have together, and how fast a dead worker's successor is.

The dataset holds 512 MiB: an array, or a list of 250,000 bytes objects. Memory is the proportional set size of trainer and
workers, less the trainer's before it made the dataset, in copies: with workers that have begun, at the end of an epoch that
has read all rows, and the most at any time. Then a worker is killed: the longest wait for a batch is what follows from it.
"""

import importlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from statistics import median
from typing import Any

import held
import measure
import origins
from measure import Settings, Table
from process_tree import ProcessTree

_KINDS = ("array", "list")
_WORKERS = (4, 16)
_BATCH_SIZE = 500
_TARGETS = {"array": 2.3, "list": 2.6}
_RESTARTS = 3
_RESTART_TARGET = 0.3
_AHEAD = 2
_BEGUN_S, _LONGEST_S = 0.5, 100.0


def trial(kind: str, contestant: str, num_workers: int, busy: int, scale: float, folder: str) -> dict[str, Any]:
    importlib.import_module("fkat_data")
    size_bytes = int(scale * held.HELD_BYTES)
    with ExitStack() as closed:
        closed.enter_context(measure.busy_processes(busy))
        before_bytes = origins.memory_bytes()
        dataset = held.Rows(kind, size_bytes, folder)
        tree = closed.enter_context(ProcessTree())
        options: dict[str, Any] = {"batch_size": _BATCH_SIZE, "persistent_workers": True, "prefetch_factor": _AHEAD}
        if contestant in origins.OURS:
            options["max_worker_restarts"] = 2 * _RESTARTS
        begun_cpu_s, begun_s = tree.cpu_s(), time.perf_counter()
        loader = origins.map_style(contestant, dataset, num_workers, shuffle=True, **options)
        batches = iter(loader)
        next(batches)
        found: dict[str, Any] = {"first_s": time.perf_counter() - begun_s}
        _wait_for_workers(num_workers)
        found["begun_copies"] = max(0, origins.memory_bytes() - before_bytes) / size_bytes
        for _ in batches:
            pass
        found["epoch_copies"] = max(0, origins.memory_bytes() - before_bytes) / size_bytes
        found["peak_copies"] = max(0, 1e6 * tree.peak_mb() - before_bytes) / size_bytes
        found["cpu_s"] = tree.cpu_s() - begun_cpu_s
        del batches
        if contestant in origins.OURS:
            found["restart_s"] = _restart_s(loader, folder, num_workers)
        origins.close(loader)
    return found


def _wait_for_workers(num_workers: int) -> None:
    """Wait until there are as many processes as will be, and none computes."""
    deadline_s, before = time.monotonic() + _LONGEST_S, (0, 0.0)
    while time.monotonic() < deadline_s:
        processes = measure.workers()
        now = (len(processes), sum(sum(process.cpu_times()[:2]) for process in processes))
        if now[0] >= num_workers and now[0] == before[0] and now[1] - before[1] < 0.02:
            return
        before = now
        time.sleep(_BEGUN_S)


def _restart_s(loader: Any, folder: str, num_workers: int) -> float:
    """Kill the last worker that has begun to read, a few times; return the median of the longest waits for a batch then."""
    longest_s: list[float] = []
    for _ in range(_RESTARTS):
        batches = iter(loader)
        list(islice(batches, 2 * _AHEAD * num_workers))
        there = {process.pid for process in measure.workers()}
        os.kill([reader for reader in held.readers(folder) if reader in there][-1], signal.SIGKILL)
        waits_s: list[float] = []
        for _ in range(2 * _AHEAD * num_workers):
            begun_s = time.perf_counter()
            if next(batches, None) is None:
                break
            waits_s.append(time.perf_counter() - begun_s)
        longest_s.append(max(waits_s, default=0.0))
        for _ in batches:
            pass
    return median(longest_s)


def run(settings: Settings) -> Iterator[Table]:
    scale = min(1.0, settings.scale)
    headers = ["workers", "busy", "", "first batch, s", "copies: workers that have begun", "at the end of an epoch"]
    headers += ["at most", "CPU of the epoch, s", "a worker killed, until the next batch, s"]
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for kind in settings.wanted_workloads(_KINDS):
            arguments: dict[str, Any] = {"kind": kind, "scale": scale, "folder": folder}
            rows = [row for workers in settings.workers or _WORKERS for row in _rows(settings, workers, arguments)]
            rows.append(["target (at most)", "", "", "", str(_TARGETS[kind]), "", "", "", str(_RESTART_TARGET)])
            yield Table(f"{int(scale * held.HELD_BYTES) >> 20} MiB in memory, {kind}", headers, rows)


def _rows(settings: Settings, workers: int, arguments: dict[str, Any]) -> Iterator[list[str]]:
    names = origins.contestants(settings)
    for busy, variants in origins.variants_of(names, settings.busy, num_workers=workers, **arguments):
        for name, done in measure.in_turn(settings, "memory", variants).items():
            copies = measure.cells(done, begun_copies=".2f", epoch_copies=".2f", peak_copies=".2f")
            restart = measure.cells(done, restart_s=".2f") if name in origins.OURS else [""]
            yield [
                str(workers),
                str(busy),
                name,
                *measure.cells(done, first_s=".2f"),
                *copies,
                *measure.cells(done, cpu_s=".1f"),
                *restart,
            ]
