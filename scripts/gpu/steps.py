"""Measure the time that a training step of 5 ms loses to its data, compared with tensors that are on the device already.

The step is a series of matrix products. It also reads the microbatch, so that no copy can be skipped.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

import torch
from feeds import FEEDS, opened
from measure import Table

_STEP_S = 0.006
_NUM_STEPS = 300
_NUM_WARM_UP = 60
_SIZE = 4096
_TARGET_PERCENT = 1.0


def run(num_workers: int, repeats: int) -> tuple[Table, dict[str, Any]]:
    """Return a table and the numbers: seconds of a step, by workload and feed."""
    step = _calibrated_step()
    rows: list[list[str]] = []
    numbers: dict[str, Any] = {}
    for workload in ("tokens", "images"):
        found: dict[str, list[float]] = {name: [] for name in FEEDS}
        with opened(list(FEEDS), workload, num_workers) as feeds:
            for turn in range(repeats):
                # Rotate the order, because the device's clock drifts while it warms up.
                for name in list(feeds)[turn % len(feeds) :] + list(feeds)[: turn % len(feeds)]:
                    found[name].append(_timed(feeds[name], step))
        for name, times_s in found.items():
            lost = [100 * (own / base - 1) for own, base in zip(times_s, found["on the device"], strict=True)]
            target = f"{_TARGET_PERCENT:.0f}" if name == "ours" else ""
            each = ", ".join(f"{percent:.2f}" for percent in lost)
            rows.append([workload, name, f"{1e3 * median(times_s):.3f}", f"{median(lost):.2f} ({each})", target])
            numbers[f"{workload}, {name}"] = {"step_s": times_s, "lost_percent": lost}
    title = f"Steps of at least 5 ms: time lost compared with (a), medians of {repeats}, {num_workers} workers"
    headers = ["microbatch", "feed", "ms a step", "lost %, median (each turn)", "target (ours, median under)"]
    return Table(title, headers, rows), numbers


def _timed(microbatches: Iterator[Any], step: Callable[[Any], None]) -> float:
    for _ in range(_NUM_WARM_UP):
        step(next(microbatches))
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(_NUM_STEPS):
        step(next(microbatches))
    torch.cuda.synchronize()
    return (time.perf_counter() - began_s) / _NUM_STEPS


def _calibrated_step() -> Callable[[Any], None]:
    """Return a step that keeps the device busy for about 6 ms."""
    matrix = torch.randn(_SIZE, _SIZE, device="cuda", dtype=torch.bfloat16) / _SIZE**0.5
    total = torch.zeros((), device="cuda")

    def product(count: int) -> torch.Tensor:
        out = matrix
        for _ in range(count):
            out = out @ matrix
        return out

    product(20)
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    product(200)
    torch.cuda.synchronize()
    count = max(1, round(_STEP_S / ((time.perf_counter() - began_s) / 200)))

    def step(microbatch: Iterable[torch.Tensor]) -> None:
        for tensor in microbatch:
            total.add_(tensor.sum())
        total.add_(product(count)[0, 0])

    return step
