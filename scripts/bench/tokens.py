"""Measure random windows of files of tokens: ours, a loop over a memory map as nanoGPT has it, and torch's loader.

And how long a large job takes to its first batch: 10^10 tokens in 20 files with 2 * 10^7 documents, which are holes in
files, so that they take no room.
"""

import struct
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from measure import Settings, Table, cells, medians
from process_tree import ProcessTree

from fkat_data import DataLoader
from fkat_data.datasets import TokenDocuments, TokenWindows

_TOKENS, _WINDOW, _BATCH = 100_000_000, 4097, 8
_BATCHES = 1500
_CONTESTANTS = ("ours, one worker", "ours, in process", "torch, one worker", "a loop over a memory map")
_FILES, _TOKENS_A_FILE, _DOCUMENTS_A_FILE = 20, 5 * 10**8, 10**6


def trial(contestant: str, folder: str, count: int) -> dict[str, Any]:
    if contestant == "first batch":
        return _first_batch(folder)
    path = Path(folder) / "tokens.bin"
    if not path.exists():
        np.random.default_rng(1).integers(0, 50_000, _TOKENS, np.uint16).tofile(path)
    batches: Iterable[torch.Tensor]
    if contestant == "a loop over a memory map":
        batches, ending = _mapped(path), nullcontext()
    else:
        windows = TokenWindows(str(path), _WINDOW, dtype="uint16")
        make: Any = torch.utils.data.DataLoader if contestant == "torch, one worker" else DataLoader
        workers = 0 if contestant == "ours, in process" else 1
        loader = make(windows, batch_size=_BATCH, shuffle=True, num_workers=workers)
        batches, ending = loader, closing(loader) if make is DataLoader else nullcontext()
    with ending:
        iterator, tree = iter(batches), ProcessTree()
        measure.take(iterator, 100)
        began_s, began_cpu_s = time.perf_counter(), tree.cpu_s()
        num_batches = measure.take(iterator, count)
        wall_s, cpu_s = time.perf_counter() - began_s, tree.cpu_s() - began_cpu_s
    return {"tokens_per_s": num_batches * _BATCH * _WINDOW / wall_s, "cpu_us": 1e6 * cpu_s / num_batches}


def _mapped(path: Path) -> Iterator[torch.Tensor]:
    data = np.memmap(path, np.uint16, "r")
    while True:
        starts = torch.randint(len(data) - _WINDOW, (_BATCH,)).tolist()
        yield torch.stack([torch.from_numpy(data[first : first + _WINDOW].astype(np.int64)) for first in starts])


def _first_batch(folder: str) -> dict[str, Any]:
    paths = [str(Path(folder) / f"{number}.bin") for number in range(_FILES)]
    for path in paths:
        _write_hole(Path(path))
    before_mib = measure.memory()["rss_mib"]
    began_s = time.perf_counter()
    windows = TokenWindows(paths, _WINDOW, stride=_WINDOW - 1)
    next(iter(DataLoader(windows, batch_size=_BATCH, shuffle=True)))
    windows_s, began_s = time.perf_counter() - began_s, time.perf_counter()
    next(iter(DataLoader(TokenDocuments(paths), batch_size=1, shuffle=True)))
    documents_s = time.perf_counter() - began_s
    return {
        "windows_ms": 1e3 * windows_s,
        "documents_ms": 1e3 * documents_s,
        "memory_mib": measure.memory()["rss_mib"] - before_mib,
    }


def _write_hole(path: Path) -> None:
    """Write a pair of files as Megatron-LM does, of equally long documents."""
    if path.exists():
        return
    length = _TOKENS_A_FILE // _DOCUMENTS_A_FILE
    numbers = np.arange(_DOCUMENTS_A_FILE + 1, dtype=np.int64)
    with path.with_suffix(".idx").open("wb") as index:
        index.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, _DOCUMENTS_A_FILE, _DOCUMENTS_A_FILE + 1))
        np.full(_DOCUMENTS_A_FILE, length, np.int32).tofile(index)
        (2 * length * numbers[:-1]).tofile(index)
        numbers.tofile(index)
    with path.open("wb") as file:
        file.truncate(2 * _TOKENS_A_FILE)


def run(settings: Settings) -> list[Table]:
    names = (*_CONTESTANTS, "first batch")
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        found = measure.of_contestants(settings, "tokens", names, folder=folder, count=settings.count(_BATCHES))
    start = found.pop("first batch")
    loop_per_s = medians(found[_CONTESTANTS[-1]])("tokens_per_s")
    rows: list[list[str]] = []
    for name, done in found.items():
        rate = medians(done)("tokens_per_s")
        rows.append([name, f"{rate / 1e6:,.0f}", f"{rate / loop_per_s:.2f}", *cells(done, cpu_us=",.0f")])
    headers = ["", "million tokens/s", "to the loop (target 0.7)", "CPU µs a batch"]
    first_headers = ["windows, ms (target 150)", "documents, ms", "memory, MiB (target 64)"]
    first_row = cells(start, windows_ms=".0f", documents_ms=".0f", memory_mib=".0f")
    return [
        Table("Random windows of 4,097 tokens, 8 a batch", headers, rows),
        Table("10^10 tokens in 20 files with 2 * 10^7 documents: to the first batch", first_headers, [first_row]),
    ]
