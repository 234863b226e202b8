"""Measure random windows of files of tokens: ours, nanoGPT's loop over a memory map, torch's loader, Megatron-LM's dataset.

And how long a large job takes to its first batch: 10, 20 and 40 files of 5 * 10^8 tokens and 10^6 documents, which are
holes in files, so that they take no room. Megatron-LM's dataset is made of each file, as its blends do, and torch's
loader shuffles it.
"""

import struct
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measure
import numpy as np
import torch
from measure import Settings, Table, cells, medians
from process_tree import ProcessTree

_TOKENS, _WINDOW, _BATCH = 100_000_000, 4097, 8
_BATCHES = 1500
_MEGATRON = "Megatron-LM's GPTDataset, one worker"
_OURS, _THEIRS = ({f"{who}, {num} files": num for num in (10, 20, 40)} for who in ("ours", "Megatron-LM"))
_PEERS = {_MEGATRON, *_THEIRS}
_CONTESTANTS = ("ours, one worker", "ours, in process", "torch, one worker", _MEGATRON, "nanoGPT's get_batch")
_TOKENS_A_FILE, _DOCUMENTS_A_FILE = 5 * 10**8, 10**6


def trial(contestant: str, folder: str, count: int) -> dict[str, Any]:
    if contestant in _OURS.keys() | _THEIRS.keys():
        return _first_batch(folder, contestant)
    path = Path(folder) / "tokens.bin"
    if not path.exists():
        np.random.default_rng(1).integers(0, 50_000, _TOKENS, np.uint16).tofile(path)
        _write_index(path, _TOKENS // 500)
    batches: Iterable[Any]
    if contestant == "nanoGPT's get_batch":
        batches, ending = _mapped(path), nullcontext()
    elif contestant == _MEGATRON:
        windows = _of_megatron(path, folder)
        batches = torch.utils.data.DataLoader(windows, batch_size=_BATCH, shuffle=True, num_workers=1)
        ending = nullcontext()
    else:
        from fkat_data import DataLoader  # noqa: PLC0415 - the peers' environment lacks it
        from fkat_data.datasets import TokenWindows  # noqa: PLC0415 - see above

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


def _of_megatron(path: Path, folder: str) -> Any:
    """Return the dataset of a file; its index is built, and kept in the folder."""
    module = import_module("megatron.core.datasets.gpt_dataset")
    parts = import_module("megatron.core.datasets.utils").Split
    tokenizer = SimpleNamespace(eod=0, pad=1, vocab_size=50_000, unique_identifiers={"class": "none"})
    flags = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    settings = {"random_seed": 1, "sequence_length": _WINDOW - 1, "split": "1,0,0", "tokenizer": tokenizer}
    settings |= {**dict.fromkeys(flags, False), "path_to_cache": tempfile.mkdtemp(dir=folder)}
    config = module.GPTDatasetConfig(**settings)
    prefix = str(path.with_suffix(""))
    stored = module.GPTDataset.build_low_level_dataset(prefix, config)
    documents = np.arange(len(stored), dtype=np.int32)
    return module.GPTDataset(stored, prefix, documents, None, parts.train, config)


def _first_batch(folder: str, contestant: str) -> dict[str, Any]:
    paths = [str(Path(folder) / f"{number}.bin") for number in range((_OURS | _THEIRS)[contestant])]
    for path in paths:
        _write_hole(Path(path))
    if contestant in _THEIRS:
        return _first_of_megatron(paths, folder)
    from fkat_data import DataLoader  # noqa: PLC0415 - the peers' environment lacks it
    from fkat_data.datasets import TokenDocuments, TokenWindows  # noqa: PLC0415 - see above

    before_mib = measure.memory()["peak_rss_mib"]
    began_s = time.perf_counter()
    windows = TokenWindows(paths, _WINDOW, stride=_WINDOW - 1)
    next(iter(DataLoader(windows, batch_size=_BATCH, shuffle=True)))
    windows_s, began_s = time.perf_counter() - began_s, time.perf_counter()
    next(iter(DataLoader(TokenDocuments(paths), batch_size=1, shuffle=True)))
    documents_s = time.perf_counter() - began_s
    return {
        "windows_ms": 1e3 * windows_s,
        "documents_ms": 1e3 * documents_s,
        "memory_mib": measure.memory()["peak_rss_mib"] - before_mib,
    }


def _first_of_megatron(paths: list[str], folder: str) -> dict[str, Any]:
    import_module("megatron.core.datasets.gpt_dataset")
    before_mib = measure.memory()["peak_rss_mib"]
    began_s = time.perf_counter()
    together = torch.utils.data.ConcatDataset([_of_megatron(Path(path), folder) for path in paths])
    next(iter(torch.utils.data.DataLoader(together, batch_size=_BATCH, shuffle=True)))
    windows_ms = 1e3 * (time.perf_counter() - began_s)
    return {"windows_ms": windows_ms, "memory_mib": measure.memory()["peak_rss_mib"] - before_mib}


def _write_hole(path: Path) -> None:
    """Write a pair of files as Megatron-LM does, of equally long documents."""
    if path.exists():
        return
    with path.open("wb") as file:
        file.truncate(2 * _TOKENS_A_FILE)
    _write_index(path, _DOCUMENTS_A_FILE)


def _write_index(path: Path, num_documents: int) -> None:
    length = path.stat().st_size // 2 // num_documents
    numbers = np.arange(num_documents + 1, dtype=np.int64)
    with path.with_suffix(".idx").open("wb") as index:
        index.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, num_documents, num_documents + 1))
        np.full(num_documents, length, np.int32).tofile(index)
        (2 * length * numbers[:-1]).tofile(index)
        numbers.tofile(index)


def run(settings: Settings) -> list[Table]:
    names = [name for name in (*_CONTESTANTS, *_OURS, *_THEIRS) if settings.peers or name not in _PEERS]
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        count = settings.count(_BATCHES)
        found = measure.of_contestants(settings, "tokens", names, peers=_PEERS, folder=folder, count=count)
    ours, theirs = [found.pop(name) for name in _OURS], [found.pop(name, None) for name in _THEIRS]
    loop_per_s = medians(found[_CONTESTANTS[-1]])("tokens_per_s")
    rows: list[list[str]] = []
    for name, done in found.items():
        rate = medians(done)("tokens_per_s")
        rows.append([name, f"{rate / 1e6:,.0f}", f"{rate / loop_per_s:.2f}", *cells(done, cpu_us=",.0f")])
    headers = ["", "million tokens/s", "to the loop (target 0.7)", "CPU µs a batch"]
    first_headers = ["10^6 documents", "ms (target 150)", "MiB (target 64)", "documents, ms", "Megatron-LM, ms", "MiB"]
    first_rows: list[list[str]] = []
    for num, own, of_megatron in zip(_OURS.values(), ours, theirs, strict=True):
        row = [str(num), *cells(own, windows_ms=".0f", memory_mib=".0f", documents_ms=".0f")]
        first_rows.append(row + (cells(of_megatron, windows_ms=",.0f", memory_mib=",.0f") if of_megatron else ["", ""]))
    return [
        Table("Random windows of 4,097 tokens, 8 a batch", headers, rows),
        Table("Files of 5 * 10^8 tokens and 10^6 documents: to the first batch of windows", first_headers, first_rows),
    ]
