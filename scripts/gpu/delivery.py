"""Measure how many bytes a second arrive on the device if only the loader limits that."""

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from feeds import FEEDS, opened
from measure import Table
from workloads import WORKLOADS

_SECONDS = 2.5
_WARM_UP_S = 1.5
_GIBIBYTE = 1 << 30
_TARGET_RATIO = 2.0


def run(num_workers: int, repeats: int) -> tuple[Table, dict[str, Any]]:
    """Return a table and the numbers: GiB a second, by workload and feed."""
    rows: list[list[str]] = []
    numbers: dict[str, Any] = {}
    names = [name for name in FEEDS if name != "on the device"]
    for workload in ("tokens", "images", "blocks"):
        num_bytes = sum(tensor.nbytes for tensor in next(WORKLOADS[workload]()))
        found: dict[str, list[float]] = {name: [] for name in names}
        with opened(names, workload, num_workers) as feeds:
            for microbatches in feeds.values():  # wait until every worker has started
                next(microbatches)
            for _ in range(repeats):
                for name, microbatches in feeds.items():
                    found[name].append(_rate(microbatches) * num_bytes / _GIBIBYTE)
        for name, rates in found.items():
            ratio = median(found["ours"]) / median(rates)
            target = f"{_TARGET_RATIO:.0f}" if name == "torch, pinned" else ""
            rows.append([workload, name, f"{median(rates):.2f}", f"{ratio:.2f}", target])
            numbers[f"{workload}, {name}"] = {"gib_per_s": rates, "ours_to_it": ratio}
    title = f"Delivered to the device, GiB/s, medians of {repeats}, {num_workers} workers"
    return Table(title, ["microbatch", "feed", "GiB/s", "ours / feed", "target"], rows), numbers


def _rate(microbatches: Iterator[Any]) -> float:
    """Return microbatches a second, not counting those prefetched during the turns of the other feeds."""
    _take_for(microbatches, _WARM_UP_S)
    began_s = time.perf_counter()
    count = _take_for(microbatches, _SECONDS)
    return count / (time.perf_counter() - began_s)


def _take_for(microbatches: Iterator[Any], duration_s: float) -> int:
    end_s = time.perf_counter() + duration_s
    total = torch.zeros((), device="cuda")
    count = 0
    while time.perf_counter() < end_s:
        for tensor in next(microbatches):
            total += tensor.flatten()[0]  # forces a wait for the copy
        count += 1
        if count % 16 == 0:  # so that microbatches do not pile up in front of a slow device
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return count
