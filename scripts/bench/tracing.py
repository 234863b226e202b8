"""Measure what a timeline costs: the same loop with and without `trace`, in turn, with steps of 5 ms and without steps.

Without steps it costs most, because the loop takes every microbatch as soon as it is ready.
"""

import gc
import importlib
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import workloads
from measure import Result, Settings, Table, Usage, medians

_STEPS = {"tiny": 40_000, "tokens": 20_000, "images": 400}
_STEPS_OF_WORK = 500
_STEP_S = 0.005
_TARGET_PERCENT = 2.0


def trial(workload: str, steps: int, step_s: float, *, is_traced: bool) -> dict[str, Any]:
    loader_type = importlib.import_module("fkat_data").ShardedDataLoader
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        options = {"trace": path} if is_traced else {}
        with loader_type(0, ["shard"], workloads.Factory(workload), **options) as loader:
            microbatches = iter(loader)
            for _ in range(1 + steps // 10):
                next(microbatches)
            gc.collect()
            before = Usage.now()
            for _ in range(steps):
                next(microbatches)
                if step_s:
                    given_s = time.perf_counter()
                    while time.perf_counter() < given_s + step_s:
                        pass
            used = measure.used_between(before, Usage.now(), steps)
        size_bytes = path.stat().st_size if is_traced else 0
    us = {"us": 1e6 * used["wall_s"] / steps, "cpu_us": used["trainer_cpu_us"] + used["worker_cpu_us"]}
    return {"contestant": "ours", **used, **us, "bytes": size_bytes / steps}


def run(settings: Settings) -> Result:
    rows: list[list[str]] = []
    trials: list[dict[str, Any]] = []
    for workload in settings.wanted_workloads(_STEPS):
        for step_s in (_STEP_S, 0.0):
            steps = settings.count(_STEPS_OF_WORK if step_s else _STEPS[workload])
            arguments = {"workload": workload, "steps": steps, "step_s": step_s}
            variants = {
                name: ("tracing", {**arguments, "is_traced": is_traced})
                for name, is_traced in (("without", False), ("with", True))
            }
            found = measure.in_turn(settings, variants)
            trials += [trial for each in found.values() for trial in each]
            without, traced = medians(found["without"]), medians(found["with"])
            row = [workload, f"{1e3 * step_s:.0f} ms"]
            for key in ("us", "cpu_us"):
                overhead = 100 * (traced(key) / without(key) - 1)
                row += [f"{without(key):,.1f}", f"{traced(key):,.1f}", f"{overhead:.2f}"]
            rows.append([*row, f"{traced('bytes'):,.0f}", f"{_TARGET_PERCENT:.0f}"])
    times = ["without, µs each", "with", "overhead %"]
    headers = [
        "microbatch",
        "step",
        *times,
        "CPU of both, without, µs",
        "with",
        "overhead %",
        "bytes each",
        "target (under)",
    ]
    return Result([Table("What a timeline costs", headers, rows)], trials)
