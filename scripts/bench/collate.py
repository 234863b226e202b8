"""Measure how fast default collate fills microbatches, compared with torch.stack into warm memory and with torch.

Samples cost nothing: a dataset returns the same few tensors again and again.
"""

import itertools
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import measure
import torch
from contestants import PREFETCHED
from measure import Result, Settings, Table, Usage, medians
from torch.utils.data import DataLoader, Dataset

_SHAPES = {"images": (3, 224, 224), "tokens": (2048,), "tiny": (8,)}
_BATCH = {"images": 32, "tokens": 8, "tiny": 8}
_COUNTS = {"images": (600, 100), "tokens": (20_000, 1_000), "tiny": (30_000, 2_000)}
_STACK_TARGET, _TORCH_TARGET, _ADDED_TARGET_US = 0.6, 10.0, 15.0


class Samples(Dataset[torch.Tensor]):
    """A few samples, again and again."""

    def __init__(self, workload: str) -> None:
        dtype = torch.float32 if workload == "images" else torch.int64
        self._samples = [torch.full(_SHAPES[workload], index, dtype=dtype) for index in range(_BATCH[workload])]

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._samples[index % len(self._samples)]


class Order:
    """Batches of indices without an end."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __iter__(self) -> Iterator[list[int]]:
        for start in itertools.count(0, self._size):
            yield list(range(start, start + self._size))


class Factory:
    """The samples of a shard: through a DataLoader, or stacked by a generator."""

    def __init__(self, workload: str, *, is_generator: bool) -> None:
        self._workload = workload
        self._is_generator = is_generator

    def __call__(self, shard: Any) -> Any:
        del shard
        dataset = Samples(self._workload)
        order = Order(_BATCH[self._workload])
        if self._is_generator:
            return (torch.stack([dataset[index] for index in indices]) for indices in order)
        return DataLoader(dataset, batch_sampler=order)


def trial(contestant: str, workload: str, count: int) -> dict[str, Any]:
    if contestant == "stack":
        return _stack(workload, count)
    with _opened(contestant, workload) as loader:
        microbatches = iter(loader)
        for _ in range(1 + count // 10):
            next(microbatches)
        before = Usage.now()
        for _ in range(count):
            next(microbatches)
        return measure.used_between(before, Usage.now(), count)


def run(settings: Settings) -> Result:
    rows, trials = [], []
    for workload in settings.wanted_workloads(_SHAPES):
        ours, others = (settings.count(count) for count in _COUNTS[workload])
        counts = {"ours": ours, "generator": ours, "torch": others, "stack": ours}
        found = measure.in_turn(
            settings,
            {
                name: ("collate", {"contestant": name, "workload": workload, "count": count})
                for name, count in counts.items()
            },
        )
        trials += [trial for each in found.values() for trial in each]
        rows.append(_row(workload, {name: medians(each) for name, each in found.items()}))
    headers = [
        "microbatch",
        "ours GiB/s",
        "torch.stack into warm memory GiB/s",
        f"ratio (target {_STACK_TARGET})",
        "torch GiB/s",
        f"ratio (target {_TORCH_TARGET:.0f})",
        "CPU µs of both, DataLoader inside / generator",
        f"added by the DataLoader µs (target at most {_ADDED_TARGET_US:.0f})",
    ]
    return Result([Table("Default collate of samples that cost nothing, one worker", headers, rows)], trials)


def _row(workload: str, found: dict[str, Any]) -> list[str]:
    dataset = Samples(workload)
    size_bytes = _BATCH[workload] * dataset[0].nbytes
    rates = {name: number("per_s") * size_bytes / (1 << 30) for name, number in found.items()}
    cpu = {name: found[name]("trainer_cpu_us") + found[name]("worker_cpu_us") for name in ("ours", "generator")}
    return [
        workload,
        f"{rates['ours']:.2f}",
        f"{rates['stack']:.2f}",
        f"{rates['ours'] / rates['stack']:.2f}",
        f"{rates['torch']:.2f}",
        f"{rates['ours'] / rates['torch']:.1f}",
        f"{cpu['ours']:.0f} / {cpu['generator']:.0f}",
        f"{cpu['ours'] - cpu['generator']:.0f}",
    ]


@contextmanager
def _opened(contestant: str, workload: str) -> Generator[Iterable[Any]]:
    if contestant == "torch":
        yield DataLoader(
            Samples(workload),
            batch_sampler=Order(_BATCH[workload]),
            num_workers=1,
            prefetch_factor=PREFETCHED,
            multiprocessing_context="spawn",
        )
        return
    from fkat_data import ShardedDataLoader  # noqa: PLC0415 - torch's workers import this file again

    factory = Factory(workload, is_generator=contestant == "generator")
    with ShardedDataLoader(0, ["shard"], factory) as loader:
        yield loader


def _stack(workload: str, count: int) -> dict[str, Any]:
    """Stack a microbatch's samples into the same memory repeatedly, in one thread."""
    dataset = Samples(workload)
    samples = [dataset[index] for index in range(_BATCH[workload])]
    torch.set_num_threads(1)
    memory = torch.stack(samples)
    began_s = time.perf_counter()
    for _ in range(count):
        torch.stack(samples, out=memory)
    wall_s = time.perf_counter() - began_s
    return {"count": count, "wall_s": wall_s, "per_s": count / wall_s}
