"""Run one trial of a cache with a limit."""

import json
import os
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any, BinaryIO

import numpy as np
from measure import counts

from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from fkat_data.streaming.cache import Cache, CacheBudget

_FILE_BYTES = 100
_BATCH_SIZE = 8
_HELD_LIMIT_BYTES = 1_050_000
#: Where memory stands for the disk: what a cache's own work costs.
_MEMORY = "/dev/shm"  # noqa: S108 - a folder of this trial's own is made in it


def trial(case: str, **options: Any) -> dict[str, Any]:
    cases: dict[str, Callable[..., dict[str, Any]]] = {
        "calls": _calls,
        "evicting": _evicting,
        "epoch": _epoch,
        "held": _held,
    }
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_", dir=_MEMORY if case == "evicting" else None) as folder:
        return cases[case](Path(folder), **options)


def _is_evictable(directory: Path, name: str) -> bool:
    del directory
    return name.endswith(".mds")


def _calls(folder: Path, count: int) -> dict[str, Any]:
    cache = Cache(folder, CacheBudget([folder], None, _is_evictable))
    content = bytes(1 << 20)
    names = [f"{number}.mds" for number in range(min(count, 20))]
    make_s = [_timed(lambda name=name: cache.get(name, len(content), _writer(content))) for name in names]
    found = {
        name: 1e6 * median(_timed(call) for _ in range(count))
        for name, call in {
            "has_us": lambda: cache.has(names[0], len(content)),
            "touch_us": lambda: cache.touch(names[0]),
            "get_us": lambda: cache.get(names[0], len(content), _writer(content)),
        }.items()
    }
    many = folder / "many"
    many.mkdir()
    for number in range(10_000):
        (many / f"{number}.mds").write_bytes(b"x")
    budget = CacheBudget([many], None, _is_evictable)
    counted_s = _timed(lambda: budget.usage_bytes)
    listed_s = _timed(budget.evict_coldest)
    return {**found, "make_ms": 1e3 * median(make_s), "count_ms": 1e3 * counted_s, "list_ms": 1e3 * listed_s}


def _evicting(folder: Path, num_files: int, count: int) -> dict[str, Any]:
    for number in range(num_files):
        (folder / f"old-{number}.mds").write_bytes(bytes(_FILE_BYTES))
    cache = Cache(folder, CacheBudget([folder], num_files * _FILE_BYTES, _is_evictable))
    write = _writer(bytes(_FILE_BYTES))
    first_s, *rest_s = (_timed(lambda n=n: cache.get(f"new-{n}.mds", _FILE_BYTES, write)) for n in range(count + 1))
    mean_ms = 1e3 * fmean([first_s, *rest_s])
    return {"median_ms": 1e3 * median(rest_s), "mean_ms": mean_ms, "first_ms": 1e3 * first_s}


def _epoch(folder: Path, num_shards: int, share: float | None) -> dict[str, Any]:
    with MDSWriter(out=str(folder / "data"), columns={"number": "int"}, size_limit=1) as writer:
        for number in range(num_shards):
            writer.write({"number": number})
    index = folder / "data" / "index.json"
    shard_bytes = max(shard["raw_data"]["bytes"] for shard in json.loads(index.read_bytes())["shards"])
    limit = None if share is None else index.stat().st_size + max(8, int(share * num_shards)) * shard_bytes
    dataset = StreamingDataset(
        remote=str(folder / "data"),
        local=str(folder / "cache"),
        batch_size=_BATCH_SIZE,
        shuffle=True,
        shuffle_algo="block",
        cache_limit=limit,
    )
    cpu_s, began_s, most_fds, num_samples = time.process_time(), time.perf_counter(), 0, 0
    batches = iter(StreamingDataLoader(dataset))
    while batch := list(islice(batches, 50)):
        num_samples += sum(len(part["number"]) for part in batch)
        most_fds = max(most_fds, counts(os.getpid())["fds"])
    if num_samples < num_shards:
        raise RuntimeError(f"{num_samples} of {num_shards} samples came")
    return {"wall_s": time.perf_counter() - began_s, "cpu_s": time.process_time() - cpu_s, "fds": most_fds}


def _held(folder: Path) -> dict[str, Any]:
    with MDSWriter(out=str(folder / "data"), columns={"x": "ndarray:uint8"}, size_limit=205_000) as writer:
        for number in range(400):
            writer.write({"x": np.full(20_000, number % 256, np.uint8)})
    dataset = StreamingDataset(
        remote=str(folder / "data"),
        local=str(folder / "cache"),
        batch_size=1,
        shuffle=True,
        cache_limit=_HELD_LIMIT_BYTES,
    )
    kept: list[Any] = []
    most_bytes = 0
    for _ in range(2):
        for sample in dataset:
            kept.append(sample)
            most_bytes = max(most_bytes, _held_bytes(folder / "cache"))
    data_bytes = sum(path.stat().st_size for path in (folder / "data").iterdir())
    return {"limit_mb": _HELD_LIMIT_BYTES / 1e6, "held_mb": most_bytes / 1e6, "data_mb": data_bytes / 1e6}


def _held_bytes(folder: Path) -> int:
    """Return the bytes that the disk keeps: files, files that are being made, and evicted files that are mapped."""
    found = 0
    for path in folder.rglob("*"):
        try:
            found += path.stat().st_size if path.suffix in (".mds", ".json") or "making" in path.parts else 0
        except FileNotFoundError:
            continue
    mapped: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if line.endswith("(deleted)") and str(folder) in line:
            start, _, stop = line.split()[0].partition("-")
            mapped[line.split()[4]] = int(stop, 16) - int(start, 16)
    return found + sum(mapped.values())


def _writer(content: bytes) -> Callable[[BinaryIO], None]:
    def write(file: BinaryIO) -> None:
        file.write(content)

    return write


def _timed(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s
