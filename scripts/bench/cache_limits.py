"""Measure what a cache costs: its calls, and files of which each evicts another."""

import tempfile
import time
from collections.abc import Callable
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


def trial(count: int, num_files: int | None = None) -> dict[str, Any]:
    place = None if num_files is None else _MEMORY
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_", dir=place) as folder:
        return _calls(Path(folder), count) if num_files is None else _evicting(Path(folder), count, num_files)


def _calls(folder: Path, count: int) -> dict[str, Any]:
    cache = Cache(folder, CacheBudget([folder], None, _is_evictable))
    content = bytes(1 << 20)
    names = [f"{number}.mds" for number in range(min(count, 20))]
    make_s = [_timed(lambda name=name: cache.get(name, len(content), _writer(content))) for name in names]
    calls = {
        "has_us": lambda: cache.has(names[0], len(content)),
        "touch_us": lambda: cache.touch(names[0]),
        "get_us": lambda: cache.get(names[0], len(content), _writer(content)),
    }
    found = {name: 1e6 * median(_timed(call) for _ in range(count)) for name, call in calls.items()}
    return {**found, "make_ms": 1e3 * median(make_s)}


def _evicting(folder: Path, count: int, num_files: int) -> dict[str, Any]:
    for number in range(num_files):
        (folder / f"old-{number}.mds").write_bytes(bytes(_FILE_BYTES))
    cache = Cache(folder, CacheBudget([folder], num_files * _FILE_BYTES, _is_evictable))
    write = _writer(bytes(_FILE_BYTES))
    first_s, *rest_s = (_timed(lambda n=n: cache.get(f"new-{n}.mds", _FILE_BYTES, write)) for n in range(count + 1))
    mean_ms = 1e3 * fmean([first_s, *rest_s])
    return {"median_ms": 1e3 * median(rest_s), "mean_ms": mean_ms, "first_ms": 1e3 * first_s}


def _is_evictable(directory: Path, name: str) -> bool:
    del directory
    return name.endswith(".mds")


def _writer(content: bytes) -> Callable[[BinaryIO], None]:
    def write(file: BinaryIO) -> None:
        file.write(content)

    return write


def _timed(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def run(settings: Settings) -> list[Table]:
    found = in_turn(settings, "cache_limits", {"calls": {"count": settings.count(_EVICTED)}})
    row = cells(found["calls"], has_us=".1f", touch_us=".1f", get_us=".1f", make_ms=".1f")
    calls = Table("A cache without a limit", ["has, µs", "touch, µs", "get, µs", "make 1 MiB, ms"], [row])
    sizes = {f"{number:,}": settings.count(number, at_least=20) for number in _FILES}
    variants = {name: {"count": _EVICTED, "num_files": number} for name, number in sizes.items()}
    found = in_turn(settings, "cache_limits", variants)
    rows = [[name, *cells(done, median_ms=".2f", mean_ms=".2f", first_ms=".2f")] for name, done in found.items()]
    headers = ["files in the cache", "median, ms a file", "mean", "the first, which counts and lists all"]
    return [calls, Table("New files of 100 bytes, each of which evicts one", headers, rows)]
