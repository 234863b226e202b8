"""The contestants that make batches with several workers or threads, each over the same items.

A contestant imports its library only when it is opened, because the peers' environment and ours have different ones.
"""

import functools
import importlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from items import BATCH_SIZE, Source
from torch.utils.data import DataLoader, default_collate

#: Batches ahead of the caller, for those that have no default of their own.
_AHEAD = 4

_Epoch = Callable[[], Iterable[Any]]


def imported(contestant: str) -> None:
    """Import a contestant's library, as a training script does before it makes a loader."""
    libraries = {"grain": "grain", "SPDL": "spdl.pipeline"}
    importlib.import_module("fkat_data" if contestant.startswith("ours") else libraries.get(contestant, "torch"))


@contextmanager
def _ours(source: Source, workers: int, ahead: int | None, kind: Any = "processes") -> Generator[_Epoch]:
    if kind == "actors":
        kind = importlib.import_module("fkat_data.ray").Actors(num_cpus=0)
    loader_type = importlib.import_module("fkat_data").ShardedDataLoader
    with loader_type(
        0,
        [str(number) for number in range(source.num_shards)],
        source,
        num_shard_prefetches=1,
        num_microbatch_prefetches=-1 if ahead is None else ahead,
        num_workers_per_shard=workers,
        workers=kind,
    ) as loader:
        yield lambda: loader


@contextmanager
def _torch(source: Source, workers: int, ahead: int | None) -> Generator[_Epoch]:
    loader = DataLoader(
        source.whole(),
        batch_size=BATCH_SIZE,
        num_workers=workers,
        prefetch_factor=None if ahead is None else max(1, ahead // workers),
        persistent_workers=True,
    )
    yield lambda: loader


@contextmanager
def _grain(source: Source, workers: int, ahead: int | None) -> Generator[_Epoch]:
    grain = importlib.import_module("grain")
    # Its defaults are 16 threads and 500 items.
    options = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=BATCH_SIZE * (ahead or _AHEAD))
    dataset = grain.MapDataset.source(source.whole()).to_iter_dataset(options)
    yield lambda: dataset.batch(BATCH_SIZE, batch_fn=default_collate)


@contextmanager
def _spdl(source: Source, workers: int, ahead: int | None) -> Generator[_Epoch]:
    spdl = importlib.import_module("spdl.pipeline")
    dataset = source.whole()
    starts = range(0, len(dataset), BATCH_SIZE)

    def made(start: int) -> torch.Tensor:
        return default_collate([dataset[index] for index in range(start, min(start + BATCH_SIZE, len(dataset)))])

    def epoch() -> Iterator[torch.Tensor]:
        pipeline = (
            spdl.PipelineBuilder()
            .add_source(starts)
            .pipe(made, concurrency=workers, output_order="input")
            .add_sink(ahead or _AHEAD)
            .build(num_threads=workers)
        )
        with pipeline.auto_stop():
            yield from pipeline

    yield epoch


#: By name: a function of source, workers (or threads) and microbatches ahead of the caller; None: its default.
BATCHERS: dict[str, Callable[[Source, int, int | None], AbstractContextManager[_Epoch]]] = {
    "ours": _ours,
    "ours, threads": functools.partial(_ours, kind="threads"),
    "ours, actors": functools.partial(_ours, kind="actors"),
    "torch": _torch,
    "grain": _grain,
    "SPDL": _spdl,
}
BATCHER_PEERS = ("grain", "SPDL")
