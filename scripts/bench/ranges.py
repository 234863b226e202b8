"""Measure random reads of a remote file, and reading it in order, against a local one.

A trial reads from files on this machine, or over S3 or HTTP from a store on loopback that waits 10 ms before each answer.
Shuffled: a DataLoader with 2 workers and microbatches of 32. In order: one pass in the caller's process, and one by a
DataLoader as before but for the order, from a store that sends 100 MB/s, or what ``--link-mb-per-s`` says: the link limits the
pass only where this machine decodes the file faster. *Fetched* is what 20 samples at random cost, one by one, over what they hold; of Parquet, over the
column chunks that hold them. In order, a local file shows what decoding allows.
"""

import functools
import io
import itertools
import json
import random
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import Settings, Table, in_turn, medians
from store_server import served

from fkat_data import DataLoader
from fkat_data.datasets import (
    IterableJsonDataset,
    IterableParquetDataset,
    JsonDataset,
    ParquetDataset,
    TarDataset,
    TokenWindows,
)

_COUNT = 40_000
#: In order, opening the file and the first answer must not weigh.
_TIMES_IN_ORDER = 4
_BATCH_SIZE = 32
_SHUFFLED_S = 4.0
_LATENCY_S, _FAST_BYTES_PER_S = 0.01, 10e9
#: Small ones, of 8 KB a column chunk; and such as writers make that do not say how many.
_ROWS_OF_A_GROUP, _ROWS_OF_A_LARGE_GROUP = 1000, 1 << 17


class _Workload(NamedTuple):
    write: Callable[[Path, int], None]
    open: Callable[..., Any]
    open_in_order: Callable[..., Any]
    sample_bytes: int
    rows_of_a_group: int = 0


def _write_lines(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"n": n, "text": f"{n:09} " * 98}) + "\n" for n in range(count))


def _write_tar(path: Path, count: int) -> None:
    content = np.random.default_rng(0).bytes(15_000)
    with tarfile.open(path, "w") as archive:
        for number in range(count // 8):
            member = tarfile.TarInfo(f"{number:06}.bin")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _write_parquet(rows_of_a_group: int, path: Path, count: int) -> None:
    columns = {f"c{column:02}": np.random.default_rng(column).random(count) for column in range(60)}
    pq.write_table(pa.table(columns), path, row_group_size=rows_of_a_group, use_dictionary=False)


def _parquet(rows_of_a_group: int) -> _Workload:
    return _Workload(
        functools.partial(_write_parquet, rows_of_a_group),
        lambda path, **options: ParquetDataset(path, ["c07"], **options),
        IterableParquetDataset,
        0,
        rows_of_a_group,
    )


def _write_tokens(path: Path, count: int) -> None:
    np.random.default_rng(0).integers(0, 50_000, count * 512, dtype=np.uint16).tofile(path)


_WORKLOADS = {
    "lines": _Workload(_write_lines, JsonDataset, IterableJsonDataset, 1000),
    "tar": _Workload(_write_tar, TarDataset, TarDataset, 15_000),
    "parquet": _parquet(_ROWS_OF_A_GROUP),
    "row-groups": _parquet(_ROWS_OF_A_LARGE_GROUP),
    "windows": _Workload(
        _write_tokens,
        *(2 * (lambda path, **options: TokenWindows(path, 2048, dtype="uint16", **options),)),
        4096,
    ),
}
_NAMES = {
    "lines": "JSON lines of 1 KB",
    "tar": "tar, members of 15 KB",
    "parquet": "Parquet, one column of 60",
    "row-groups": "the same, row groups of 131,072",
    "windows": "windows of 2,048 tokens",
}
_PLACES = ("local", "s3", "http")


def trial(folder: str, workload: str, count: int, place: str, link_mb_per_s: float) -> dict[str, Any]:
    data = Path(folder, f"{workload}-{count}")
    if not data.is_dir():
        data.mkdir()
        _WORKLOADS[workload].write(data / "file", count)
        # The last rows of a large group come when all of it is there: among many groups, that does not weigh.
        is_of_large_groups = _WORKLOADS[workload].rows_of_a_group == _ROWS_OF_A_LARGE_GROUP
        times = 4 * _TIMES_IN_ORDER if is_of_large_groups else _TIMES_IN_ORDER
        _WORKLOADS[workload].write(data / "long", times * count)
    link = 1e6 * link_mb_per_s
    if place == "local":
        path = str(data / "file")
        return {"samples_per_s": _shuffled(workload, path, {}), **_of_link(workload, data, link, path, {})}
    with served(data, _FAST_BYTES_PER_S, _LATENCY_S) as port:
        uri, options = _uri(place, port)
        found = {"fetched": _fetched(workload, uri, options, port), "samples_per_s": _shuffled(workload, uri, options)}
        num_answers, cpu_s = _cost(port)
        found["server_s"] = cpu_s / num_answers
    with served(data, link, _LATENCY_S) as port:
        return {**found, **_of_link(workload, data, link, *_uri(place, port))}


def _of_link(workload: str, data: Path, link: float, uri: str, options: dict[str, Any]) -> dict[str, float]:
    readers = {"of_link": _in_order, "of_link_by_workers": _by_workers}
    if _WORKLOADS[workload].rows_of_a_group:
        del readers["of_link_by_workers"]  # torch collates 60 numbers of a row in ten times the time of reading them
    found: dict[str, float] = {}
    for name, read in readers.items():
        began_s = time.perf_counter()
        for _ in read(workload, uri[: -len("file")] + "long", options):
            pass
        found[name] = (data / "long").stat().st_size / (time.perf_counter() - began_s) / link
    return found


def _uri(place: str, port: int) -> tuple[str, dict[str, Any]]:
    if place == "http":
        return f"http://127.0.0.1:{port}/bucket/file", {}
    endpoint = {"key": "anyone", "secret": "nothing", "endpoint_url": f"http://127.0.0.1:{port}"}
    return "s3://bucket/file", {"storage_options": endpoint}


def _shuffled(workload: str, path: str, options: dict[str, Any]) -> float:
    dataset = _WORKLOADS[workload].open(path, **options)
    loader = DataLoader(dataset, batch_size=_BATCH_SIZE, shuffle=True, num_workers=2)
    batches = iter(itertools.chain.from_iterable(itertools.repeat(loader)))
    for _ in range(8):
        next(batches)  # workers start, and files are opened
    began_s, num_batches = time.perf_counter(), 0
    while time.perf_counter() < began_s + _SHUFFLED_S:
        next(batches)
        num_batches += 1
    return num_batches * _BATCH_SIZE / (time.perf_counter() - began_s)


def _fetched(workload: str, uri: str, options: dict[str, Any], port: int) -> float:
    dataset = _WORKLOADS[workload].open(uri, **options)
    dataset[0]
    chosen = random.Random(0).sample(range(len(dataset)), 20)
    _num_sent(port)
    for index in chosen:
        dataset[index]
    num_sent = _num_sent(port)
    if not (num_rows := _WORKLOADS[workload].rows_of_a_group):
        return num_sent / (20 * _WORKLOADS[workload].sample_bytes)
    # Of random numbers, a column chunk is as large as they are.
    firsts = {index - index % num_rows for index in chosen}
    return num_sent / sum(8 * min(num_rows, len(dataset) - first) for first in firsts)


def _cost(port: int) -> tuple[int, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/cost") as answer:
        num_answers, cpu_s = answer.read().split()
    return int(num_answers), float(cpu_s)


def _num_sent(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/sent") as answer:
        return int(answer.read())


def _in_order(workload: str, uri: str, options: dict[str, Any]) -> Any:
    dataset = _WORKLOADS[workload].open_in_order(uri, **options)
    if not hasattr(dataset, "__getitems__"):
        yield from dataset
        return
    if workload != "tar":  # of which the constructor reads all, in order
        for start in range(0, len(dataset), _BATCH_SIZE):
            yield dataset.__getitems__(range(start, min(start + _BATCH_SIZE, len(dataset))))


def _by_workers(workload: str, uri: str, options: dict[str, Any]) -> Any:
    dataset = _WORKLOADS[workload].open_in_order(uri, **options)
    return DataLoader(dataset, batch_size=_BATCH_SIZE, num_workers=2)


def run(settings: Settings) -> list[Table]:
    """Read each kind of file from this machine and from both kinds of stores, in turn."""
    count = settings.count(_COUNT, at_least=4000)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for workload in settings.wanted_workloads(_WORKLOADS) or _WORKLOADS:
            trial_of = {"folder": folder, "workload": workload, "count": count, "link_mb_per_s": settings.link_mb_per_s}
            places = {place: trial_of | {"place": place} for place in _PLACES}
            found = in_turn(settings, "ranges", places)
            local = medians(found["local"])("samples_per_s")
            for place in ("s3", "http"):
                number = medians(found[place])
                speed = number("samples_per_s")
                speeds = [f"{local:,.0f}", f"{speed:,.0f}", f"{speed / local:.3f}"]
                in_order = [
                    f"{medians(trials)(name):.2f}" if name in trials[0] else ""
                    for name in ("of_link", "of_link_by_workers")
                    for trials in (found["local"], found[place])
                ]
                costs = [f"{number('fetched'):.2f}", f"{1e6 * number('server_s'):.0f}"]
                rows.append([_NAMES[workload], place, *speeds, *costs, *in_order])
    headers = ["files", "store", "local, samples/s", "remote", "ratio", "fetched", "server, us of CPU a request"]
    headers += ["in order, local, of the link", "remote", "the same by 2 workers, local", "remote"]
    caption = f"Shuffled, 2 workers, 10 ms before each answer; in order, {settings.link_mb_per_s:g} MB/s"
    return [Table(caption, headers, rows)]
