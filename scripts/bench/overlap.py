"""Measure the share of time that a compute loop loses to waiting for data, if the loader can keep up.

Each step keeps the CPU busy for 5 ms, like a training step on the CPU. With a timeline (`trace`), the CPU of trainer and
worker says what that costs.
"""

import gc
import time
from typing import Any

import measure
from contestants import CONTESTANTS
from measure import Settings, Table, Usage, cells, medians

_STEPS = 600
_STEP_S = 0.005
_TARGETS = {"ours": "waited: 1 %", "ours, traced": "CPU: 2 % more than ours"}


def trial(contestant: str, workload: str, steps: int) -> dict[str, Any]:
    with CONTESTANTS[contestant](workload) as loader:
        microbatches = iter(loader)
        measure.take(microbatches, 1 + steps // 10)
        statistics = getattr(loader, "statistics", None)
        reported_before_s = statistics().waited_s if statistics else 0.0
        # Collect the garbage of the imports now: it takes 50 ms, and is due at about this time.
        gc.collect()
        waited_s, before = 0.0, Usage.now()
        for _ in range(steps):
            asked_s = time.perf_counter()
            next(microbatches)
            given_s = time.perf_counter()
            waited_s += given_s - asked_s
            while time.perf_counter() < given_s + _STEP_S:
                pass
        used = measure.used_between(before, Usage.now(), steps)
        reported_s = statistics().waited_s - reported_before_s if statistics else None
    wall_s = used["wall_s"]
    return {
        **used,
        "waited_percent": 100 * waited_s / wall_s,
        "reported_percent": None if reported_s is None else 100 * reported_s / wall_s,
        "lost_percent": 100 * (wall_s - steps * _STEP_S) / wall_s,
    }


def run(settings: Settings) -> list[Table]:
    steps = settings.count(_STEPS)
    names = ("ours", "ours, traced", "torch")
    found = measure.of_contestants(settings, "overlap", names, workload="tokens", steps=steps)
    rows: list[list[str]] = []
    for name, done in found.items():
        reported = "" if name == "torch" else f"{medians(done)('reported_percent'):.2f}"
        rest = cells(done, lost_percent=".2f", cpu_us=",.1f")
        rows.append([name, *cells(done, waited_percent=".2f"), reported, *rest, _TARGETS.get(name, "")])
    headers = ["tokens", "in next() %", "statistics().waited_s %", "not computing %", "CPU µs a step", "target (under)"]
    return [Table(f"A loop of {steps} steps of 5 ms: share of its time lost", headers, rows)]
