"""Measure whether either process grows over 10,000 microbatches: its memory, descriptors and mappings.

They are measured when the worker is as far ahead as it can get, and after 1,000, 5,500 and 10,000 microbatches taken at
full speed, with microbatches of one size and of 64 sizes. Each page counts with its proportional share (PSS), so shared
memory counts once.
"""

import time
from typing import Any

import measure
from contestants import CONTESTANTS
from measure import Result, Settings, Table

_MARKS = (1_000, 5_500, 10_000)
_WORKLOADS = ("tokens", "varying")
_FILL_S = 1.0


def trial(contestant: str, workload: str, marks: list[int]) -> dict[str, Any]:
    snapshots: list[dict[str, float]] = []
    with CONTESTANTS[contestant](workload) as loader:
        microbatches = iter(loader)
        next(microbatches)
        time.sleep(_FILL_S)
        snapshots.append(measure.memory())
        done = 0
        for mark in marks:
            for _ in range(mark - done):
                next(microbatches)
            done = mark
            snapshots.append(measure.memory())
    return {"marks": marks, "snapshots": snapshots}


def run(settings: Settings) -> Result:
    marks = [settings.count(mark, at_least=2 + place) for place, mark in enumerate(_MARKS)]
    variants = {
        f"{contestant}: {workload}": (
            "growth",
            {"contestant": contestant, "workload": workload, "marks": marks},
        )
        for workload in settings.wanted_workloads(_WORKLOADS)
        for contestant in settings.wanted_contestants(("ours", "ours, 8 ahead"))
    }
    # Growth has little noise, so one trial is enough.
    found = measure.in_turn(settings._replace(repeats=1), variants)
    rows = [_row(name, trials[0]["snapshots"]) for name, trials in found.items()]
    numbers = ", ".join(f"{mark:,}" for mark in marks)
    title = f"Growth: with the worker as far ahead as it can get, then after {numbers} microbatches"
    headers = [
        "microbatch",
        "trainer PSS MiB",
        "worker PSS MiB",
        "trainer descriptors",
        "worker descriptors",
        "trainer maps",
        "worker maps",
    ]
    return Result([Table(title, headers, rows)], [trial for trials in found.values() for trial in trials])


def _row(name: str, snapshots: list[dict[str, float]]) -> list[str]:
    def series(key: str) -> str:
        return ", ".join(f"{snapshot[key]:,.0f}" for snapshot in snapshots)

    keys = ("trainer_pss_mib", "worker_pss_mib", "trainer_fds", "worker_fds", "trainer_maps", "worker_maps")
    return [name, *(series(key) for key in keys)]
