"""Measure what a script gets that changes one import: the same dataset, arguments and loop, with torch's loader and ours.

- ``windows``: inputs and targets of 2,048 tokens, int64, cut from a mapped file of uint16, in batches of 8.
- ``normalized``: JPEGs of 500 x 375, decoded, cropped, resized to (3, 224, 224) and normalized as float32, in batches of 32.

Both are shuffled. The clock of the first epoch starts before the loader is made, with torch imported; the next epochs have
workers that are there. torch forks its workers, as it does by default. CPU seconds and memory (PSS) are of all processes.
"""

import importlib
import tempfile
import time
from typing import Any

import measure
from items import BATCH_SIZE, Source, make_jpegs, make_tokens
from measure import Result, Settings, Table, medians
from process_tree import ProcessTree

__all__ = ["KINDS", "run", "trial"]

KINDS = ("windows", "normalized")
_MODULES = {"ours": "fkat_data", "torch": "torch.utils.data"}
_COUNTS = {"windows": 64_000, "normalized": 2_000}
_BATCH_SIZES = {"windows": 8, "normalized": BATCH_SIZE}
_WORKERS = (1, 2)


def trial(contestant: str, kind: str, workers: int, count: int, folder: str) -> dict[str, Any]:
    loader_type = importlib.import_module(_MODULES[contestant]).DataLoader
    dataset = Source(kind, folder, count, 1, 0.0).whole()
    batch_size = _BATCH_SIZES[kind]
    measured: dict[str, Any] = {}
    with ProcessTree() as tree:
        begun_cpu_s, begun_s = tree.cpu_s(), time.perf_counter()
        loader = loader_type(dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=True)
        for name in ("first", "next"):
            num_batches = 0
            for _ in loader:
                num_batches += 1
            now_cpu_s, now_s = tree.cpu_s(), time.perf_counter()
            if num_batches != -(-len(dataset) // batch_size):
                raise RuntimeError(f"{contestant} delivered {num_batches} batches of {len(dataset)} samples")
            measured |= {
                f"{name}_per_s": num_batches / (now_s - begun_s),
                f"{name}_cpu_ms": 1e3 * (now_cpu_s - begun_cpu_s) / num_batches,
            }
            begun_cpu_s, begun_s = now_cpu_s, now_s
        measured |= {"peak_mb": tree.peak_mb(), "peak_alone_mb": tree.peak_alone_mb()}
        # The workers' end is not measured: torch's end with their loader.
        del loader
    return measured


def run(settings: Settings) -> Result:
    tables: list[Table] = []
    trials: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for kind in settings.wanted_workloads(KINDS):
            count = settings.count(_COUNTS[kind], at_least=4 * _BATCH_SIZES[kind])
            if kind == "windows":
                make_tokens(folder, count)
            else:
                make_jpegs(folder, "files", count, 1)
            rows: list[list[str]] = []
            for workers in settings.workers or _WORKERS:
                arguments = {"kind": kind, "workers": workers, "count": count, "folder": folder}
                names = settings.wanted_contestants(_MODULES)
                variants = {name: ("changed_import", {"contestant": name, **arguments}) for name in names}
                found = measure.in_turn(settings, variants)
                trials += [trial for each in found.values() for trial in each]
                rows.append([f"{workers}", *_cells([medians(found[name]) for name in names])])
            both = " / ".join(settings.wanted_contestants(_MODULES))
            headers = ["workers", f"next epochs, batches/s: {both}", "ratio", f"CPU ms each: {both}", "ratio"]
            headers += [f"first epoch, batches/s: {both}", f"CPU ms each: {both}", f"peak MB: {both}"]
            headers += [f"without neighbours: {both}"]
            tables.append(Table(f"{kind}: {count:,} samples in batches of {_BATCH_SIZES[kind]}", headers, rows))
    return Result(tables, trials)


def _cells(found: list[Any]) -> list[str]:
    def both(name: str, form: str) -> str:
        return " / ".join(format(middle(name), form) for middle in found)

    ours, last = found[0], found[-1]
    return [
        both("next_per_s", ",.0f"),
        f"{ours('next_per_s') / last('next_per_s'):.2f}",
        both("next_cpu_ms", ",.3f"),
        f"{last('next_cpu_ms') / ours('next_cpu_ms'):.2f}",
        both("first_per_s", ",.0f"),
        both("first_cpu_ms", ",.3f"),
        both("peak_mb", ",.0f"),
        both("peak_alone_mb", ",.0f"),
    ]
