"""Measure what a script gets that changes one import: the same dataset, arguments and loop, with torch's loader and ours.

- ``windows``: inputs and targets of 2,048 tokens, int64, cut from a mapped file of uint16, in batches of 8.
- ``normalized``: JPEGs of 500 x 375, decoded, cropped, resized to (3, 224, 224) and normalized as float32, in batches of 32.
- ``stream``: a ``StreamingDataset`` of MDS shards, 32 int64 a sample, in batches of 8 (2 KiB).
- ``normalized stream``: the same JPEGs in MDS shards, with a ``transform``.

All are shuffled. Streams are read by ``StreamingDataLoader`` and by torch's loader over the same dataset. The clock of
the first epoch starts before the loader is made, with torch imported; the next epochs have workers that are there. torch
forks its workers, as it does by default. CPU seconds and memory (PSS) are of all processes.
"""

import importlib
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np
from items import BATCH_SIZE, Source, cropped, make_jpegs, make_tokens
from measure import Settings, Table, Trials, medians
from process_tree import ProcessTree

KINDS = ("windows", "normalized", "stream", "normalized stream")
_MODULES = {"ours": "fkat_data", "torch": "torch.utils.data"}
_COUNTS = {"windows": 64_000, "normalized": 2_000, "stream": 128_000, "normalized stream": 2_000}
_BATCH_SIZES = {"windows": 8, "normalized": BATCH_SIZE, "stream": 8, "normalized stream": BATCH_SIZE}
_WORKERS = (1, 2)


def trial(contestant: str, kind: str, workers: int, count: int, folder: str) -> dict[str, Any]:
    loader_type, dataset = _loader_and_dataset(contestant, kind, count, folder)
    batch_size = _BATCH_SIZES[kind]
    order = {} if "stream" in kind else {"shuffle": True}
    measured: dict[str, Any] = {}
    with ProcessTree() as tree:
        begun_cpu_s, begun_s = tree.cpu_s(), time.perf_counter()
        loader = loader_type(dataset, batch_size, num_workers=workers, persistent_workers=True, **order)
        for name in ("first", "next"):
            num_batches = sum(1 for _ in loader)
            now_cpu_s, now_s = tree.cpu_s(), time.perf_counter()
            if num_batches != -(-len(dataset) // batch_size):
                raise RuntimeError(f"{contestant} delivered {num_batches} batches of {len(dataset)} samples")
            measured |= {
                f"{name}_per_s": num_batches / (now_s - begun_s),
                f"{name}_cpu_ms": 1e3 * (now_cpu_s - begun_cpu_s) / num_batches,
            }
            begun_cpu_s, begun_s = now_cpu_s, now_s
        measured["peak_mb"] = tree.peak_mb()
        # The workers' end is not measured: torch's end with their loader.
        del loader
    return measured


def _loader_and_dataset(contestant: str, kind: str, count: int, folder: str) -> tuple[Any, Any]:
    module = importlib.import_module(_MODULES[contestant])
    if "stream" not in kind:
        return module.DataLoader, Source(kind, folder, count, 1, 0.0).whole()
    streaming = importlib.import_module("fkat_data.streaming")
    options = {"shuffle": True, "shuffle_algo": "block", "batch_size": _BATCH_SIZES[kind]}
    path = Path(folder, "stream" if kind == "stream" else "mds-0")
    dataset = streaming.StreamingDataset(local=str(path), transform=None if kind == "stream" else _image, **options)
    return streaming.StreamingDataLoader if contestant == "ours" else module.DataLoader, dataset


def _image(sample: dict[str, Any]) -> Any:
    return cropped(sample["jpeg"], len(sample["jpeg"]), is_normalized=True)


def _make(kind: str, folder: str, count: int) -> None:
    if kind == "windows":
        make_tokens(folder, count)
    elif kind == "stream":
        from fkat_data.streaming import MDSWriter  # noqa: PLC0415 - the peers' environment does not have it

        with MDSWriter(out=str(Path(folder, kind)), columns={"tokens": "ndarray:int64:32"}) as writer:
            for number in range(count):
                writer.write({"tokens": np.arange(32) + number})
    else:
        make_jpegs(folder, "files" if kind == "normalized" else "mds", count, 1)


def run(settings: Settings) -> list[Table]:
    tables: list[Table] = []
    names = settings.wanted_contestants(_MODULES)
    both = " / ".join(names)
    headers = ["workers", f"next epochs, batches/s: {both}", "ratio", f"CPU ms each: {both}", "ratio"]
    headers += [f"first epoch, batches/s: {both}", f"CPU ms each: {both}", f"peak MB: {both}"]
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for kind in settings.wanted_workloads(KINDS):
            count = settings.count(_COUNTS[kind], at_least=4 * _BATCH_SIZES[kind])
            _make(kind, folder, count)
            rows: list[list[str]] = []
            for workers in settings.workers or _WORKERS:
                arguments = {"kind": kind, "workers": workers, "count": count, "folder": folder}
                found = measure.of_contestants(settings, "changed_import", names, **arguments)
                rows.append([f"{workers}", *_cells(list(found.values()))])
            tables.append(Table(f"{kind}: {count:,} samples in batches of {_BATCH_SIZES[kind]}", headers, rows))
    return tables


def _cells(found: list[Trials]) -> list[str]:
    def both(name: str, form: str) -> str:
        return " / ".join(format(medians(done)(name), form) for done in found)

    ours, last = medians(found[0]), medians(found[-1])
    rates = [both("next_per_s", ",.0f"), f"{ours('next_per_s') / last('next_per_s'):.2f}"]
    costs = [both("next_cpu_ms", ",.3f"), f"{last('next_cpu_ms') / ours('next_cpu_ms'):.2f}"]
    return [*rates, *costs, both("first_per_s", ",.0f"), both("first_cpu_ms", ",.3f"), both("peak_mb", ",.0f")]
