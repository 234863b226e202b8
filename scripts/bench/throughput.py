"""Measure how many microbatches a second one worker delivers, and at what cost, compared with torch and memcpy.

The clock runs from the end of the first microbatch to the end of the last. start.py measures the start.
"""

import mmap
import time
from collections.abc import Callable
from typing import Any

import measure
import numpy as np
import torch
import workloads
from contestants import CONTESTANTS, OURS, PEERS
from measure import Result, Settings, Table, Usage, medians

# The number of microbatches: for ours, which takes a second or more, then for the other contestants.
_COUNTS = {
    "tiny": (60_000, 2_000),
    "tokens": (30_000, 2_000),
    "images": (500, 100),
    "same images": (1_000, 300),
}
_TARGETS = {"tiny": 20.0, "tokens": 20.0, "images": 5.0, "same images": None}
_MEMCPY_TARGET = 0.7


def trial(contestant: str, workload: str, count: int) -> dict[str, Any]:
    if contestant == "memcpy":
        return _memcpy(workload, count)
    with CONTESTANTS[contestant](workload) as loader:
        microbatches = iter(loader)
        next(microbatches)
        before = Usage.now()
        for _ in range(count):
            next(microbatches)
        after = Usage.now()
        return {**measure.used_between(before, after, count), **measure.memory()}


def run(settings: Settings) -> Result:
    rows, variants_rows, memcpy_rows, trials = [], [], [], []
    variants = ["ours", *(name for name in settings.wanted_contestants(OURS) if name != "ours")]
    for workload in settings.wanted_workloads(_COUNTS):
        contestants = [*variants, "torch", *(["memcpy"] if workload == "same images" else [])]
        found = measure.in_turn(settings, {name: _variant(settings, name, workload) for name in contestants})
        trials += [trial for each in found.values() for trial in each]
        rows.append(_compared(workload, found["ours"], found["torch"], _TARGETS))
        torch_per_s = medians(found["torch"])("per_s")
        rates = [medians(found[name])("per_s") for name in variants]
        variants_rows.append([workload, *(f"{rate:,.0f} ({rate / torch_per_s:.1f} x)" for rate in rates)])
        if "memcpy" in found:
            memcpy_rows.append(_against_memcpy(workload, found["ours"], found["memcpy"]))
    tables = [
        Table("One worker, microbatches/s, against torch's DataLoader", _headers("torch"), rows),
        Table("The same, with other settings of ours (times torch's)", ["microbatch", *variants], variants_rows),
        Table("Against memcpy into mapped memory", _MEMCPY_HEADERS, memcpy_rows),
    ]
    return Result([table for table in tables if table.rows], trials)


def peers(settings: Settings) -> Result:
    """Run the same for the peers in the peers' environment, in turn with ours and torch."""
    python = settings.peers
    if python is None:
        return Result([], [])
    others = ["torch", *settings.wanted_contestants(PEERS)]
    rows: dict[str, list[list[str]]] = {name: [] for name in others}
    trials: list[dict[str, Any]] = []
    for workload in settings.wanted_workloads(_COUNTS):
        names = ["ours", *others]
        found = measure.in_turn(
            settings,
            {name: _variant(settings, name, workload) for name in names},
            pythons=dict.fromkeys(PEERS, python),
        )
        trials += [trial for each in found.values() for trial in each]
        for name in others:
            rows[name].append(_compared(workload, found["ours"], found[name], _TARGETS if name == "torch" else {}))
    title = "One worker, microbatches/s, against"
    return Result([Table(f"{title} {name}", _headers(name), rows[name]) for name in others], trials)


def _headers(other: str) -> list[str]:
    return [
        "microbatch",
        "ours",
        other,
        "ratio",
        "target",
        f"trainer CPU µs, ours / {other}",
        f"worker CPU µs, ours / {other}",
        f"memory MiB (PSS of both processes), ours / {other}",
        "shared memory in the trainer",
        "peak RSS MiB of both, with shared memory twice",
    ]


_MEMCPY_HEADERS = ["microbatch", "ours GiB/s", "memcpy GiB/s", "ratio", "target"]


def _variant(settings: Settings, contestant: str, workload: str) -> tuple[str, dict[str, Any]]:
    ours, others = _COUNTS[workload]
    full = ours if contestant in {*OURS, "memcpy"} else others
    count = settings.count(full)
    return "throughput", {"contestant": contestant, "workload": workload, "count": count}


def _compared(
    workload: str, ours: list[dict[str, Any]], other: list[dict[str, Any]], targets: dict[str, float | None]
) -> list[str]:
    our, their = medians(ours), medians(other)
    target = targets.get(workload)
    return [
        workload,
        f"{our('per_s'):,.0f}",
        f"{their('per_s'):,.0f}",
        f"{our('per_s') / their('per_s'):.1f}",
        f"{target:.0f}" if target else "",
        f"{our('trainer_cpu_us'):.0f} / {their('trainer_cpu_us'):.0f}",
        f"{our('worker_cpu_us'):.0f} / {their('worker_cpu_us'):.0f}",
        f"{our('pss_mib'):.0f} / {their('pss_mib'):.0f}",
        f"{our('trainer_shared_mib'):.0f} / {their('trainer_shared_mib'):.0f}",
        f"{_peak_mib(our):.0f} / {_peak_mib(their):.0f}",
    ]


def _peak_mib(number: Callable[[str], float]) -> float:
    return number("trainer_peak_rss_mib") + number("worker_peak_rss_mib")


def _against_memcpy(workload: str, ours: list[dict[str, Any]], memcpy: list[dict[str, Any]]) -> list[str]:
    size_bytes = workloads.num_bytes(workload)
    rates = [size_bytes * medians(trials)("per_s") / (1 << 30) for trials in (ours, memcpy)]
    return [workload, *(f"{rate:.2f}" for rate in rates), f"{rates[0] / rates[1]:.2f}", f"{_MEMCPY_TARGET}"]


def _memcpy(workload: str, count: int) -> dict[str, Any]:
    """Copy a microbatch's bytes into mapped memory repeatedly, in one thread."""
    microbatch = next(workloads.WORKLOADS[workload]())
    sources = [tensor.numpy().reshape(-1).view(np.uint8) for tensor in microbatch]
    torch.set_num_threads(1)
    with mmap.mmap(-1, sum(source.nbytes for source in sources)) as mapped:
        memory = np.frombuffer(mapped, dtype=np.uint8)
        memory[:] = 1
        began_s = time.perf_counter()
        for _ in range(count):
            offset = 0
            for source in sources:
                np.copyto(memory[offset : offset + source.nbytes], source)
                offset += source.nbytes
        wall_s = time.perf_counter() - began_s
        del memory
    return {"count": count, "wall_s": wall_s, "per_s": count / wall_s}
