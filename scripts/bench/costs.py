"""Count the system calls and page faults of a microbatch, in the trainer and in the worker.

If strace is installed, it is attached to a running loader to count system calls. It slows the processes down, which
slightly changes how often they wait for each other.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, Any, Self

import measure
from contestants import CONTESTANTS
from measure import Result, Settings, Table, Usage, medians

_COUNTS = {"tokens": (20_000, 2_000), "images": (300, 100)}
_TRACED = {"tokens": 1_000, "images": 100}
_ATTACH_S = 10.0


def trial(contestant: str, workload: str, count: int, traced: int) -> dict[str, Any]:
    with CONTESTANTS[contestant](workload) as loader:
        microbatches = iter(loader)
        # Warm up, until segments and allocators are filled.
        for _ in range(1 + count // 4):
            next(microbatches)
        before = Usage.now()
        for _ in range(count):
            next(microbatches)
        measured = measure.used_between(before, Usage.now(), count)
        if shutil.which("strace"):
            with contextlib.ExitStack() as stack:
                # Trace the trainer last and stop it first, because starting and stopping a tracer makes system calls.
                pids = {"worker": [worker.pid for worker in measure.workers()], "trainer": [os.getpid()]}
                tracers = {who: stack.enter_context(_Tracer(group)) for who, group in pids.items()}
                for _ in range(traced):
                    next(microbatches)
                for who, tracer in reversed(tracers.items()):
                    calls = tracer.stop()
                    measured[f"{who}_syscalls"] = sum(calls.values()) / traced
                    measured[f"{who}_syscalls_by_name"] = {name: number / traced for name, number in calls.items()}
        return measured


def run(settings: Settings) -> Result:
    rows, trials = [], []
    for workload in settings.wanted_workloads(_COUNTS):
        full = dict(zip(("ours", "torch"), _COUNTS[workload], strict=True))
        variants = {
            name: (
                "costs",
                {
                    "contestant": name,
                    "workload": workload,
                    "count": settings.count(number),
                    "traced": settings.count(_TRACED[workload]),
                },
            )
            for name, number in full.items()
        }
        found = measure.in_turn(settings, variants)
        trials += [trial for each in found.values() for trial in each]
        rows += [_row(f"{workload}: {name}", each) for name, each in found.items()]
    headers = [
        "microbatch",
        "trainer faults",
        "worker faults",
        "trainer system calls",
        "worker system calls",
        "most frequent, trainer",
        "most frequent, worker",
    ]
    return Result([Table("Page faults and system calls per microbatch", headers, rows)], trials)


class _Tracer:
    """Counts the system calls of processes, in all their threads."""

    def __init__(self, pids: list[int]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._output = Path(self._folder.name) / "counts"
        attach = [part for pid in pids for part in ("-p", str(pid))]
        self._process = subprocess.Popen(
            ["strace", "-f", "-c", "-o", str(self._output), *attach], stderr=subprocess.PIPE, text=True
        )
        attached = threading.Event()
        threading.Thread(target=_read, args=(self._process.stderr, len(pids), attached), daemon=True).start()
        attached.wait(_ATTACH_S)

    def stop(self) -> dict[str, int]:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        lines = self._output.read_text(encoding="utf-8").splitlines() if self._output.exists() else []
        rows = [line.split() for line in lines]
        # % time, seconds, usecs/call, calls, errors (if any), syscall
        return {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[3].isdigit() and row[-1] != "total"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self.stop()
        self._folder.cleanup()


def _read(stream: IO[str], num_processes: int, attached: threading.Event) -> None:
    found = 0
    for line in stream:
        found += " attached" in line
        if found >= num_processes:
            attached.set()


def _row(name: str, trials: list[dict[str, Any]]) -> list[str]:
    middle = medians(trials)
    row = [name, f"{middle('trainer_faults'):,.2f}", f"{middle('worker_faults'):,.2f}"]
    if "trainer_syscalls" not in trials[0]:
        return [*row, "(no strace)", "(no strace)", "", ""]
    row += [f"{middle(f'{who}_syscalls'):,.1f}" for who in ("trainer", "worker")]
    return [*row, *(_frequent(trials[0][f"{who}_syscalls_by_name"]) for who in ("trainer", "worker"))]


def _frequent(by_name: dict[str, float]) -> str:
    most = sorted(by_name.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"{name} {number:.1f}" for name, number in most)
