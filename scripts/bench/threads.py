"""Measure a worker whose threads make the items of a microbatch: items that wait, and JPEG files that Pillow decodes.

JPEG decoding is compared with a bare pool of as many threads in this process, on the same function and files.
"""

import functools
import io
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import measure
import numpy as np
import torch
from measure import Result, Settings, Table, Usage, medians
from torch.utils.data import DataLoader, Dataset

_WAIT_S = 0.01
_NUM_FILES = 200
_CROP = 224
_WAIT_TARGET, _JPEG_TARGET = 12.0, 0.9


class Waiting(Dataset[torch.Tensor]):
    """Items that wait 10 ms."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(_WAIT_S)
        return torch.tensor(index)


class JPEGs(Dataset[torch.Tensor]):
    """Images of 500 by 375, decoded and cropped."""

    def __init__(self) -> None:
        self._files = _files()

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        from PIL import Image  # noqa: PLC0415 - Pillow is not needed for the other benchmarks

        image = Image.open(io.BytesIO(self._files[index % len(self._files)])).convert("RGB")
        left, top = (image.width - _CROP) // 2, (image.height - _CROP) // 2
        cropped = np.array(image.crop((left, top, left + _CROP, top + _CROP)))
        return torch.from_numpy(cropped).permute(2, 0, 1).contiguous()


class Factory:
    """A DataLoader over one of the datasets."""

    def __init__(self, dataset: str, batch_size: int) -> None:
        self._dataset = dataset
        self._batch_size = batch_size

    def __call__(self, shard: Any) -> Any:
        del shard
        return DataLoader({"wait": Waiting, "jpeg": JPEGs}[self._dataset](), batch_size=self._batch_size)


def trial(dataset: str, threads: int, count: int) -> dict[str, Any]:
    """Measure ``count`` microbatches; with ``threads`` below 0, of a bare pool of as many."""
    batch_size = {"wait": 64, "jpeg": 32}[dataset]
    if threads < 0:
        return _pool(-threads, batch_size, count)
    from fkat_data import ShardedDataLoader  # noqa: PLC0415 - a bare pool needs no loader

    factory = Factory(dataset, batch_size)
    with ShardedDataLoader(
        0, ["shard"], factory, num_microbatch_prefetches=4, num_threads_per_worker=threads
    ) as loader:
        microbatches = iter(loader)
        for _ in range(2):
            next(microbatches)
        before = Usage.now()
        for _ in range(count):
            next(microbatches)
        return {**measure.used_between(before, Usage.now(), count), **measure.memory()}


def run(settings: Settings) -> Result:
    counts = {"wait": settings.count(20, at_least=2), "jpeg": settings.count(60, at_least=2)}
    variants = {"wait 1": ("wait", 1), "wait 16": ("wait", 16)}
    if _has_pillow():
        variants |= {"jpeg 1": ("jpeg", 1), "jpeg 4": ("jpeg", 4), "pool 4": ("jpeg", -4)}
    found = measure.in_turn(
        settings,
        {
            name: ("threads", {"dataset": dataset, "threads": threads, "count": counts[dataset]})
            for name, (dataset, threads) in variants.items()
        },
    )
    rate = {name: medians(each)("per_s") for name, each in found.items()}
    rows = [["64 items that wait 10 ms, 16 threads against 1", *_compared(rate["wait 16"], rate["wait 1"], 64)]]
    rows[0].append(f"{_WAIT_TARGET:.0f}")
    if "pool 4" in rate:
        rows.append(["JPEG, 4 threads against 1", *_compared(rate["jpeg 4"], rate["jpeg 1"], 32), ""])
        rows.append(
            [
                "JPEG, 4 threads against a bare pool of 4",
                *_compared(rate["jpeg 4"], rate["pool 4"], 32),
                f"{_JPEG_TARGET}",
            ]
        )
    headers = ["one worker", "items/s", "items/s of the other", "ratio", "target"]
    trials = [trial for each in found.values() for trial in each]
    return Result([Table("Threads that make the items of a microbatch", headers, rows)], trials)


def _compared(one: float, other: float, num_items: int) -> list[str]:
    return [f"{one * num_items:,.0f}", f"{other * num_items:,.0f}", f"{one / other:.2f}"]


def _pool(num_threads: int, batch_size: int, count: int) -> dict[str, Any]:
    """Make the items in a bare pool, stack them, and drop them."""
    dataset = JPEGs()
    torch.set_num_threads(1)
    with ThreadPoolExecutor(num_threads) as pool:
        made = pool.map(dataset.__getitem__, range((count + 2) * batch_size))
        for _ in range(2):
            torch.stack([next(made) for _ in range(batch_size)])
        before = Usage.now()
        for _ in range(count):
            torch.stack([next(made) for _ in range(batch_size)])
        return {**measure.used_between(before, Usage.now(), count), **measure.memory()}


@functools.cache
def _files() -> list[bytes]:
    from PIL import Image  # noqa: PLC0415 - Pillow is not needed for the other benchmarks

    files: list[bytes] = []
    generator = np.random.default_rng(0)
    for _ in range(_NUM_FILES):
        coarse = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize((500, 375)).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return files


def _has_pillow() -> bool:
    try:
        import PIL  # noqa: F401, PLC0415 - only looked for
    except ImportError:
        return False
    return True
