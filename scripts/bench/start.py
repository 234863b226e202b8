"""Measure the time from construction to the first microbatch.

Each trial is a new process that imports both libraries before the clock starts, as a training script does.
"""

import importlib
import time
from typing import Any

import measure
from contestants import CONTESTANTS
from measure import Result, Settings, Table, medians

__all__ = ["run", "trial"]

_TARGET = 1.2


def trial(contestant: str, workload: str) -> dict[str, Any]:
    importlib.import_module("fkat_data")
    began_s = time.perf_counter()
    with CONTESTANTS[contestant](workload) as loader:
        microbatches = iter(loader)
        begun_s = time.perf_counter()
        next(microbatches)
        first_s = time.perf_counter()
    return {"constructed_s": begun_s - began_s, "first_s": first_s - began_s}


def run(settings: Settings) -> Result:
    variants = {name: ("start", {"contestant": name, "workload": "tiny"}) for name in ("ours", "torch")}
    found = measure.in_turn(settings, variants)
    ours, other = medians(found["ours"]), medians(found["torch"])
    row = [
        f"{ours('first_s'):.2f}",
        f"{other('first_s'):.2f}",
        f"{ours('first_s') / other('first_s'):.2f}",
        str(_TARGET),
        f"{1e3 * ours('constructed_s'):.0f} / {1e3 * other('constructed_s'):.0f}",
    ]
    headers = ["ours s", "torch s", "ratio", "target (at most)", "until iter() returned, ms, ours / torch"]
    title = "From construction to the first microbatch"
    return Result([Table(title, headers, [row])], [trial for trials in found.values() for trial in trials])
