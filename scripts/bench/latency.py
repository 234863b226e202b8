"""How long does ``next()`` take when the data are ready?

The caller sleeps between two calls, longer than the worker needs for a microbatch, and only ``next()`` is timed.
"""

import time
from statistics import median, quantiles
from typing import Any

import measure
from contestants import CONTESTANTS
from measure import Result, Settings, Table, medians

__all__ = ["run", "trial"]

_CALLS = 500
_WARM_UP = 50
_SLEEP_S = 0.004
_TARGET_US = 50


def trial(contestant: str, workload: str, count: int) -> dict[str, Any]:
    with CONTESTANTS[contestant](workload) as loader:
        microbatches = iter(loader)
        next(microbatches)
        times_us: list[float] = []
        for _ in range(count + min(count, _WARM_UP)):
            time.sleep(_SLEEP_S)
            began_s = time.perf_counter()
            next(microbatches)
            times_us.append(1e6 * (time.perf_counter() - began_s))
    times_us = times_us[-count:]
    return {"median_us": median(times_us), "p90_us": quantiles(times_us, n=10)[-1], "max_us": max(times_us)}


def run(settings: Settings) -> Result:
    count = settings.count(_CALLS)
    variants = {
        name: ("latency", {"contestant": name, "workload": "tokens", "count": count}) for name in ("ours", "torch")
    }
    found = measure.in_turn(settings, variants)
    rows = []
    for name, trials in found.items():
        middle = medians(trials)
        numbers = [f"{middle(key):,.0f}" for key in ("median_us", "p90_us", "max_us")]
        rows.append([name, *numbers, str(_TARGET_US) if name == "ours" else ""])
    headers = ["tokens", "median µs", "p90 µs", "max µs", "target (median)"]
    title = "next() with data ready"
    return Result([Table(title, headers, rows)], [trial for trials in found.values() for trial in trials])
