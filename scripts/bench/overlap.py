"""Measure the share of time that a compute loop loses to waiting for data, if the loader can keep up.

Each step keeps the CPU busy for 5 ms, like a training step on the CPU.
"""

import gc
import time
from typing import Any

import measure
from contestants import CONTESTANTS
from measure import Result, Settings, Table, medians

_STEPS = 600
_STEP_S = 0.005
_TARGET_PERCENT = 1.0


def trial(contestant: str, workload: str, steps: int) -> dict[str, Any]:
    with CONTESTANTS[contestant](workload) as loader:
        microbatches = iter(loader)
        next(microbatches)
        statistics = getattr(loader, "statistics", None)
        reported_before_s = statistics().waited_s if statistics else 0.0
        # Collect the garbage of the imports now: it takes 50 ms, and is due at about this time.
        gc.collect()
        waited_s, began_s = 0.0, time.perf_counter()
        for _ in range(steps):
            asked_s = time.perf_counter()
            next(microbatches)
            given_s = time.perf_counter()
            waited_s += given_s - asked_s
            while time.perf_counter() < given_s + _STEP_S:
                pass
        wall_s = time.perf_counter() - began_s
        reported_s = statistics().waited_s - reported_before_s if statistics else None
    return {
        "wall_s": wall_s,
        "waited_percent": 100 * waited_s / wall_s,
        "reported_percent": None if reported_s is None else 100 * reported_s / wall_s,
        "lost_percent": 100 * (wall_s - steps * _STEP_S) / wall_s,
    }


def run(settings: Settings) -> Result:
    steps = settings.count(_STEPS)
    variants = {
        name: ("overlap", {"contestant": name, "workload": "tokens", "steps": steps}) for name in ("ours", "torch")
    }
    found = measure.in_turn(settings, variants)
    rows = []
    for name, trials in found.items():
        middle = medians(trials)
        reported = f"{middle('reported_percent'):.2f}" if name == "ours" else ""
        numbers = [f"{middle('waited_percent'):.2f}", reported, f"{middle('lost_percent'):.2f}"]
        rows.append([name, *numbers, f"{_TARGET_PERCENT:.0f}" if name == "ours" else ""])
    headers = ["tokens", "in next() %", "statistics().waited_s %", "not computing %", "target (under)"]
    title = f"A loop of {steps} steps of 5 ms: share of its time lost"
    return Result([Table(title, headers, rows)], [trial for trials in found.values() for trial in trials])
