"""What share of a compute loop's time is lost to waiting for data, if the loader can keep up?

Steps of 5 ms that keep the CPU busy, as a training step on the CPU does.
"""

import gc
import time
from typing import Any

import measure
from contestants import CONTESTANTS
from measure import Result, Settings, Table, medians

__all__ = ["run", "trial"]

_STEPS = 600
_STEP_S = 0.005
_TARGET_PERCENT = 1.0


def trial(contestant: str, workload: str, steps: int) -> dict[str, Any]:
    with CONTESTANTS[contestant](workload) as loader:
        microbatches = iter(loader)
        next(microbatches)
        statistics = getattr(loader, "statistics", None)
        told_before_s = statistics().waited_s if statistics else 0.0
        # What the imports left over for Python's own collector takes 50 ms, and is due about now.
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
        told_s = statistics().waited_s - told_before_s if statistics else None
    return {
        "wall_s": wall_s,
        "waited_percent": 100 * waited_s / wall_s,
        "told_percent": None if told_s is None else 100 * told_s / wall_s,
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
        told = f"{middle('told_percent'):.2f}" if name == "ours" else ""
        numbers = [f"{middle('waited_percent'):.2f}", told, f"{middle('lost_percent'):.2f}"]
        rows.append([name, *numbers, f"{_TARGET_PERCENT:.0f}" if name == "ours" else ""])
    headers = ["tokens", "in next() %", "statistics().waited_s %", "all that is not computing %", "target (under)"]
    title = f"A loop of {steps} steps of 5 ms: share of its time lost"
    return Result([Table(title, headers, rows)], [trial for trials in found.values() for trial in trials])
