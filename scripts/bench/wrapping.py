"""Measure what the wrapping datasets cost: the time of an item, and pauses at the edges of shards.

``BufferSortedDataset`` is visited in order, over a base whose items and sort keys are entries of a list.
``DistributedShardedDataset`` reads shards that load a whole file into memory when they are opened. The first case reads
at full speed, and compares that with opening and visiting the same shards one after another, and with the visits alone.
In the second case, the consumer computes on a shard for longer than the next one takes to load.
"""

import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from measure import Result, Settings, Table, medians

from fkat_data.datasets import BufferSortedDataset, DistributedShardedDataset

_SORTED = {"count": 200_000, "buffer_size": 4096, "pack_size": 32}
_SHARDS = {"num_shards": 12, "rows": 8_000, "width": 512}
_PAUSED = {"num_shards": 6, "rows": 200, "width": 65_536, "compute_s": 0.002}
_ROUNDS = 3
_SORTED_TARGET_US, _SPEED_TARGET = 2.0, 0.9


def trial(case: str, **options: Any) -> dict[str, Any]:
    return {"sorted": _sorted, "shards": _shards, "paused": _paused}[case](**options)


def run(settings: Settings) -> Result:
    variants = {
        "sorted": ("wrapping", {"case": "sorted", **_SORTED, "count": settings.count(_SORTED["count"])}),
        "shards": ("wrapping", {"case": "shards", **_SHARDS, "rows": settings.count(_SHARDS["rows"])}),
        **{
            f"paused {prefetch}": (
                "wrapping",
                {"case": "paused", **_PAUSED, "rows": settings.count(_PAUSED["rows"]), "prefetch": prefetch},
            )
            for prefetch in (True, False)
        },
    }
    found = measure.in_turn(settings, variants)
    of_sorted, of_shards = medians(found["sorted"]), medians(found["shards"])
    tables = [
        Table(
            "BufferSortedDataset, visited in order",
            ["base µs an item", "sorted µs an item", "added µs an item", "target (at most)"],
            [
                [
                    *(f"{of_sorted(name):.2f}" for name in ("base_us", "sorted_us", "added_us")),
                    f"{_SORTED_TARGET_US:.0f}",
                ]
            ],
        ),
        Table(
            "DistributedShardedDataset, samples a second",
            ["ours", "opened one after another", "ratio", "target (at least)", "visits alone", "ratio to visits"],
            [
                [
                    *(f"{of_shards(name):,.0f}" for name in ("ours_per_s", "one_after_another_per_s")),
                    f"{of_shards('ratio'):.2f}",
                    f"{_SPEED_TARGET}",
                    f"{of_shards('visits_per_s'):,.0f}",
                    f"{of_shards('ratio_to_visits'):.2f}",
                ]
            ],
        ),
        Table(
            "The first sample of a shard, for a consumer slower than the loader",
            ["prefetch", "longest wait ms", "median wait within a shard ms", "opening a shard takes ms"],
            [
                [
                    str(prefetch),
                    *(
                        f"{medians(found[f'paused {prefetch}'])(name):.3f}"
                        for name in ("edge_ms", "within_ms", "load_ms")
                    ),
                ]
                for prefetch in (True, False)
            ],
        ),
    ]
    return Result(tables, [trial for trials in found.values() for trial in trials])


class _Listed:
    def __init__(self, count: int) -> None:
        self._lengths: list[int] = np.random.default_rng(0).integers(1, 2048, count).tolist()

    def __len__(self) -> int:
        return len(self._lengths)

    def sort_key(self, index: int) -> int:
        return self._lengths[index]

    def __getitem__(self, index: int) -> int:
        return self._lengths[index]


class _File:
    def __init__(self, path: str) -> None:
        self._rows = torch.from_numpy(np.load(path))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index]


def _sorted(count: int, buffer_size: int, pack_size: int) -> dict[str, Any]:
    base = _Listed(count)
    dataset = BufferSortedDataset(base, buffer_size, pack_size, init_seed=0)
    base_us = 1e6 * _visited_s(base) / count
    sorted_us = 1e6 * _visited_s(dataset) / count
    return {"base_us": base_us, "sorted_us": sorted_us, "added_us": sorted_us - base_us}


def _shards(num_shards: int, rows: int, width: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        paths = _written(folder, num_shards, rows, width)
        count = num_shards * rows

        def one_after_another() -> None:
            for path in paths:
                _visited_s(_File(path))

        def ours() -> None:
            deque(_dataset(paths, rows, prefetch=True), maxlen=0)

        one_after_another()  # to bring the files into the page cache
        ours()
        times: list[tuple[float, ...]] = [
            (_timed(ours), _timed(one_after_another), sum(_visited_s(_File(path)) for path in paths))
            for _ in range(_ROUNDS)
        ]
    per_s = [count / float(np.median(each)) for each in zip(*times, strict=True)]
    return {
        **dict(zip(("ours_per_s", "one_after_another_per_s", "visits_per_s"), per_s, strict=True)),
        "ratio": per_s[0] / per_s[1],
        "ratio_to_visits": per_s[0] / per_s[2],
    }


def _paused(num_shards: int, rows: int, width: int, compute_s: float, *, prefetch: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        paths = _written(folder, num_shards, rows, width)
        load_s = min(_timed(lambda: _File(paths[0])) for _ in range(2))
        dataset = _dataset(paths, rows, prefetch=prefetch)
        waits: list[float] = []
        for index in range(len(dataset)):
            began_s = time.perf_counter()
            dataset[index]
            waits.append(time.perf_counter() - began_s)
            time.sleep(compute_s)
    edges = [wait for index, wait in enumerate(waits) if index and index % rows == 0]
    within = [wait for index, wait in enumerate(waits) if index % rows]
    return {
        "edge_ms": 1e3 * max(edges),
        "within_ms": 1e3 * float(np.median(within)),
        "load_ms": 1e3 * load_s,
    }


def _dataset(paths: list[str], rows: int, *, prefetch: bool) -> Any:
    sizes = dict.fromkeys(paths, rows)
    return DistributedShardedDataset.from_uris(
        paths, dataset_type=_File, shard_sizes=sizes, rank=0, world_size=1, prefetch=prefetch
    )


def _written(folder: str, num_shards: int, rows: int, width: int) -> list[str]:
    paths = [str(Path(folder) / f"{place:05d}.npy") for place in range(num_shards)]
    for place, path in enumerate(paths):
        np.save(path, np.full((rows, width), place, np.int32))
    return paths


def _visited_s(dataset: Any) -> float:
    # Keep no rows, because they would keep their shards in memory.
    return _timed(lambda: deque(map(dataset.__getitem__, range(len(dataset))), maxlen=0))


def _timed(function: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    function()
    return time.perf_counter() - began_s
