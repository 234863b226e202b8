"""How long does ``next()`` take when the data are ready?

``next()`` is timed, and once more together with the death of the microbatch before, as in a ``for`` loop. The caller
comes in bursts, for which enough is ready; or between two calls it computes, or sleeps, for longer than the worker
needs for a microbatch. After a sleep everything that ``next()`` touches has gone cold, the CPU itself among it.
"""

import time
from itertools import count
from statistics import median, quantiles
from typing import Any

import measure
from contestants import CONTESTANTS
from measure import Result, Settings, Table, medians

__all__ = ["run", "trial"]

_CALLS = 500
_WARM_UP = 50
_PAUSE_S = 0.004
_TARGET_US = 50


def trial(contestant: str, workload: str, pause: str, count: int) -> dict[str, Any]:
    with CONTESTANTS[contestant](workload) as loader:
        microbatches = iter(loader)
        microbatch = next(microbatches)
        called_us: list[float] = []
        step_us: list[float] = []
        for _ in range(count + min(count, _WARM_UP)):
            _PAUSES[pause](_PAUSE_S)
            began_s = time.perf_counter()
            following = next(microbatches)
            called_us.append(1e6 * (time.perf_counter() - began_s))
            # As in a `for` loop: the one before dies when the next takes its name, and gives its memory back.
            microbatch = following
            step_us.append(1e6 * (time.perf_counter() - began_s))
    del microbatch
    called_us, step_us = called_us[-count:], step_us[-count:]
    return {
        "median_us": median(called_us),
        "p90_us": quantiles(called_us, n=10)[-1],
        "max_us": max(called_us),
        "step_us": median(step_us),
    }


def run(settings: Settings) -> Result:
    count = settings.count(_CALLS)
    variants = {
        f"{contestant}, caller {pause}": (
            "latency",
            {"contestant": contestant, "workload": "tokens", "pause": pause, "count": count},
        )
        for contestant in ("ours", "torch")
        for pause in _PAUSES
    }
    found = measure.in_turn(settings, variants)
    rows = []
    for name, trials in found.items():
        middle = medians(trials)
        numbers = [f"{middle(key):,.0f}" for key in ("median_us", "p90_us", "max_us", "step_us")]
        rows.append([name, *numbers, str(_TARGET_US) if trials[0]["contestant"] == "ours" else ""])
    headers = [
        "tokens",
        "median µs",
        "p90 µs",
        "max µs",
        "and letting go of the one before, median µs",
        "target (median)",
    ]
    title = "next() with data ready"
    return Result([Table(title, headers, rows)], [trial for trials in found.values() for trial in trials])


def _compute(duration_s: float) -> None:
    end_s = time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        pass


def _burst(duration_s: float) -> None:
    """Pause before every 40th call only: the calls after it find their data ready and nothing gone cold."""
    if next(_calls) % 40 == 0:
        time.sleep(5 * duration_s)


_calls = count()
_PAUSES = {"comes in bursts": _burst, "computes": _compute, "sleeps": time.sleep}
