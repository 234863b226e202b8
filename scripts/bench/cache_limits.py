"""Measure what a full cache costs: files of which each evicts another."""

import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any, BinaryIO

from measure import Settings, Table, cells, in_turn

from fkat_data.streaming.cache import Cache, CacheBudget

_FILES = (100, 10_000, 100_000)
_FILE_BYTES = 100
_EVICTED = 500
#: Where memory stands for the disk: what a cache's own work costs.
_MEMORY = "/dev/shm"  # noqa: S108 - a folder of this trial's own is made in it


def trial(count: int, num_files: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_", dir=_MEMORY) as name:
        folder = Path(name)
        for number in range(num_files):
            (folder / f"old-{number}.mds").write_bytes(bytes(_FILE_BYTES))
        cache = Cache(folder, CacheBudget([folder], num_files * _FILE_BYTES, _is_evictable))
        first_s, *rest_s = (_timed(cache, f"new-{number}.mds") for number in range(count + 1))
    mean_ms = 1e3 * fmean([first_s, *rest_s])
    return {"median_ms": 1e3 * median(rest_s), "mean_ms": mean_ms, "first_ms": 1e3 * first_s}


def _is_evictable(directory: Path, name: str) -> bool:
    del directory
    return name.endswith(".mds")


def _write(file: BinaryIO) -> None:
    file.write(bytes(_FILE_BYTES))


def _timed(cache: Cache, name: str) -> float:
    began_s = time.perf_counter()
    cache.get(name, _FILE_BYTES, _write)
    return time.perf_counter() - began_s


def run(settings: Settings) -> list[Table]:
    sizes = {f"{number:,}": settings.count(number, at_least=20) for number in _FILES}
    variants = {name: {"count": _EVICTED, "num_files": number} for name, number in sizes.items()}
    found = in_turn(settings, "cache_limits", variants)
    rows = [[name, *cells(done, median_ms=".2f", mean_ms=".2f", first_ms=".2f")] for name, done in found.items()]
    headers = ["files in the cache", "median, ms a file", "mean", "the first, which counts and lists all"]
    return [Table("New files of 100 bytes, each of which evicts one", headers, rows)]
