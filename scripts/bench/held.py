"""Datasets that hold much, or that come from a package that takes long to import: what starting workers has to bring.

A separate module, so that spawned workers can import it without the benchmarks.
"""

import os
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

NUM_ROWS = 250_000
NUM_PAIRS = 1_000_000
MEBIBYTE = 1 << 20
#: A list's rows are of 2,147 bytes: 250,000 of them take 512 MiB.
HELD_BYTES = 512 * MEBIBYTE
PACKAGE = "long_to_import"
IMPORTS = "IMPORTS_OF_A_LONG_PACKAGE"
_TAKEN = 64


class Rows(Dataset[Any]):
    """Rows in memory: an array, a memory map of a file, or a list of bytes; each process that reads writes down its id."""

    def __init__(self, kind: str, size_bytes: int, folder: str) -> None:
        row_bytes = max(_TAKEN, size_bytes // NUM_ROWS)
        self._folder = folder
        shape = (max(1, size_bytes // row_bytes), row_bytes)
        self.rows: Any
        if kind == "array":
            self.rows = np.ones(shape, np.uint8)
        elif kind == "list":
            self.rows = [bytes([number % 256]) * row_bytes for number in range(shape[0])]
        else:
            path = Path(folder, "rows")
            if not path.exists():
                with path.open("wb") as file:
                    file.truncate(shape[0] * shape[1])
            self.rows = np.memmap(path, np.uint8, "r", shape=shape)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        if os.getpid() not in _told:
            _told.add(os.getpid())
            Path(self._folder, f"reader-{os.getpid()}").touch()
        row = self.rows[index]
        return np.frombuffer(row[:_TAKEN], np.uint8).copy()


_told: set[int] = set()


def readers(folder: str) -> list[int]:
    """Return the processes that have read rows, the latest last."""
    paths = sorted(Path(folder).glob("reader-*"), key=lambda path: path.stat().st_mtime_ns)
    return [int(path.name.removeprefix("reader-")) for path in paths]


class Pairs(Dataset[tuple[str, int]]):
    """Paths and labels, as datasets of folders hold them."""

    def __init__(self, count: int) -> None:
        self.pairs = [
            (f"train/class_{number % 1000:04d}/image_{number:08d}.jpg", number % 1000) for number in range(count)
        ]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.pairs[index]


class Model:
    """What a ``collate_fn`` is bound to: a model whose weights it does not need."""

    def __init__(self, size_bytes: int) -> None:
        self.module = torch.nn.Linear(1024, max(1, size_bytes // 4096), bias=False)

    def collate(self, items: list[int]) -> torch.Tensor:
        return torch.tensor(items)


def make_package(folder: str, cpu_s: float) -> None:
    """Write a package that computes ``cpu_s`` while it is imported, and writes down which process imports it."""
    text = f"""
    import os, time
    with open(os.environ[{IMPORTS!r}], "a") as imports:
        imports.write(f"{{os.getpid()}}\\n")
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < {cpu_s}:
        sum(range(10_000))

    class Numbers:
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            return index
    """
    package = Path(folder, PACKAGE)
    package.mkdir()
    (package / "__init__.py").write_text(textwrap.dedent(text), encoding="utf-8")
