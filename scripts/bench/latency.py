"""Measure how long ``next()`` takes when the data are ready.

``next()`` is timed alone, and together with the release of the previous microbatch, as in a ``for`` loop. The caller
either comes in bursts, for which enough data are ready, or it computes or sleeps between two calls for longer than the
worker needs for a microbatch. After a sleep, everything that ``next()`` touches is cold, including the CPU.
"""

import time
from itertools import count
from statistics import median, quantiles
from typing import Any

import measure
from contestants import CONTESTANTS
from measure import Settings, Table, cells

_CALLS = 500
_WARM_UP = 50
_PAUSE_S = 0.004
_TARGET_US = 50


def trial(contestant: str, pause: str, count: int) -> dict[str, Any]:
    with CONTESTANTS[contestant]("tokens") as loader:
        microbatches = iter(loader)
        microbatch = next(microbatches)
        called_us: list[float] = []
        step_us: list[float] = []
        for _ in range(count + min(count, _WARM_UP)):
            _PAUSES[pause](_PAUSE_S)
            began_s = time.perf_counter()
            following = next(microbatches)
            called_us.append(1e6 * (time.perf_counter() - began_s))
            # As in a `for` loop, assigning the next microbatch releases the previous one and its memory.
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


def run(settings: Settings) -> list[Table]:
    count = settings.count(_CALLS)
    variants = {
        f"{contestant}, caller {pause}": {"contestant": contestant, "pause": pause, "count": count}
        for contestant in ("ours", "torch")
        for pause in _PAUSES
    }
    rows: list[list[str]] = []
    for name, done in measure.in_turn(settings, "latency", variants).items():
        numbers = cells(done, median_us=",.0f", p90_us=",.0f", max_us=",.0f", step_us=",.0f")
        rows.append([name, *numbers, str(_TARGET_US) if done[0]["contestant"] == "ours" else ""])
    headers = ["tokens", "median µs", "p90 µs", "max µs"]
    headers += ["with the release of the previous one, median µs", "target (median)"]
    return [Table("next() with data ready", headers, rows)]


def _compute(duration_s: float) -> None:
    end_s = time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        pass


def _burst(duration_s: float) -> None:
    """Pause before every 40th call only, so that the other calls find their data ready and everything warm."""
    if next(_calls) % 40 == 0:
        time.sleep(5 * duration_s)


_calls = count()
_PAUSES = {"comes in bursts": _burst, "computes": _compute, "sleeps": time.sleep}
