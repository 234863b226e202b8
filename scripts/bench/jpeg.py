"""Measure 2,000 JPEGs of 500 x 375, decoded, cropped and resized to (3, 224, 224) in batches of 32: ours and others.

The clock of the cold epoch starts before the loader is made, when all libraries are imported; the warm epoch is the next
one. The first batch is measured again, with items that wait 5 ms more and more workers. CPU seconds and memory (PSS) are
of all processes together. PSS divides a library's pages by all processes of the machine that map them: the column
without neighbours counts them in full, once.
"""

import tempfile
import time
from typing import Any, NamedTuple

import measure
from batchers import BATCHER_PEERS, BATCHERS, imported
from items import BATCH_SIZE, Source, make_jpegs
from measure import Result, Settings, Table, medians
from process_tree import ProcessTree

_COUNT = 2000
_WAIT_S = 0.005


class _Row(NamedTuple):
    """A row of the table.

    Attributes:
        name: What it says, with places for the two numbers.
        contestant: Who makes the batches.
        workers: Workers or threads.
        more: The same, where items wait 5 ms more.
        targets: By column.
    """

    name: str
    contestant: str
    workers: int
    more: int
    targets: dict[str, str]


_TARGETS = {"cold_per_s": "550", "cold_cpu_s": "2.9", "peak_mb": "300", "first_s": "1.5"}
_ROWS = (
    _Row("ours, {} workers ({})", "ours", 4, 8, _TARGETS),
    _Row("ours, 1 worker with {} threads ({})", "ours, threads", 4, 16, {}),
    _Row("torch, spawn: {} ({})", "torch, spawn", 4, 8, {}),
    _Row("torch, fork: {} ({})", "torch", 4, 8, {}),
    _Row("a bare pool of {} threads ({})", "pool of threads", 4, 16, {}),
    _Row("grain, {} threads ({})", "grain", 4, 16, {}),
    _Row("SPDL, a batch a task, {} ({})", "SPDL", 2, 2, {}),
)


def trial(contestant: str, case: str, workers: int, count: int, folder: str) -> dict[str, Any]:
    imported(contestant)
    source = Source("files", folder, count, 1, _WAIT_S if case == "first" else 0.0)
    with ProcessTree() as tree:
        begun_cpu_s, begun_s = tree.cpu_s(), time.perf_counter()
        with BATCHERS[contestant](source, workers, None) as epoch:
            if case == "first":
                next(iter(epoch()))
                return {"first_s": time.perf_counter() - begun_s}
            measured: dict[str, Any] = {}
            for name in ("cold", "warm"):
                num_images = sum(len(batch) for batch in epoch())
                now_cpu_s, now_s = tree.cpu_s(), time.perf_counter()
                if num_images != count:
                    raise RuntimeError(f"{contestant} delivered {num_images} of {count} images")
                measured |= {
                    f"{name}_per_s": count / (now_s - begun_s),
                    f"{name}_cpu_s": 1000 * (now_cpu_s - begun_cpu_s) / count,
                }
                begun_cpu_s, begun_s = now_cpu_s, now_s
            return measured | {"peak_mb": tree.peak_mb(), "peak_alone_mb": tree.peak_alone_mb()}


def run(settings: Settings) -> Result:
    count = settings.count(_COUNT, at_least=2 * BATCH_SIZE)
    names = [row.contestant for row in _ROWS if settings.peers or row.contestant not in BATCHER_PEERS]
    wanted = settings.wanted_contestants(names)
    rows = {row.contestant: row for row in _ROWS if row.contestant in wanted}
    if settings.workers:
        rows = {
            name: row._replace(workers=min(settings.workers), more=max(settings.workers)) for name, row in rows.items()
        }
    variants: dict[str, tuple[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        make_jpegs(folder, "files", count, 1)
        for name, row in rows.items():
            for case, workers in (("epochs", row.workers), ("first", row.more)):
                arguments = {"contestant": name, "case": case, "workers": workers, "count": count, "folder": folder}
                variants[f"{name}: {case}"] = ("jpeg", arguments)
        peers = [f"{name}: {case}" for name in BATCHER_PEERS for case in ("epochs", "first")]
        found = measure.in_turn(settings, variants, pythons=settings.pythons(peers))
    headers = [
        "",
        "cold epoch, images/s",
        "warm, images/s",
        "CPU s/1,000, cold",
        "warm",
        "peak MB (PSS)",
        "without neighbours",
        "first batch, +5 ms an item, s",
    ]
    table = Table(
        f"{count:,} JPEGs in batches of {BATCH_SIZE} (in brackets: with +5 ms an item; after a slash: the target)",
        headers,
        [_cells(row, found) for row in rows.values()],
    )
    return Result([table], [trial for trials in found.values() for trial in trials])


def _cells(row: _Row, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    epochs, first = (medians(found[f"{row.contestant}: {case}"]) for case in ("epochs", "first"))
    numbers = {
        "cold_per_s": f"{epochs('cold_per_s'):,.0f}",
        "warm_per_s": f"{epochs('warm_per_s'):,.0f}",
        "cold_cpu_s": f"{epochs('cold_cpu_s'):.2f}",
        "warm_cpu_s": f"{epochs('warm_cpu_s'):.2f}",
        "peak_mb": f"{epochs('peak_mb'):,.0f}",
        "peak_alone_mb": f"{epochs('peak_alone_mb'):,.0f}",
        "first_s": f"{first('first_s'):.2f}",
    }
    name = row.name.format(row.workers, row.more)
    return [name, *(f"{text} / {row.targets[key]}" if key in row.targets else text for key, text in numbers.items())]
