"""The contestants that make batches with several workers or threads, each over the same items.

A contestant imports its library only when it is opened, because the peers' environment and ours have different ones.
"""

import contextlib
import functools
import importlib
import time
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
    libraries = {"grain": "grain", "SPDL": "spdl.pipeline", "Ray Data": "ray.data"}
    importlib.import_module("fkat_data" if contestant.startswith("ours") else libraries.get(contestant, "torch"))


@contextmanager
def _ours(source: Source, workers: int, ahead: int | None, kind: Any = "processes") -> Generator[_Epoch]:
    made = contextlib.ExitStack()
    if kind in {"actors", "two nodes"}:
        made.enter_context(_cluster(1 if kind == "actors" else 2, workers))
        kind = importlib.import_module("fkat_data.ray").Actors(num_cpus=1)
    is_elsewhere = kind != "in the caller"
    loader_type = importlib.import_module("fkat_data").ShardedDataLoader
    with (
        made,
        loader_type(
            0,
            [str(number) for number in range(source.num_shards)],
            source,
            num_shard_prefetches=1,
            num_microbatch_prefetches=-1 if ahead is None else ahead,
            num_workers_per_shard=workers if is_elsewhere else 1,
            workers=kind if is_elsewhere else "processes",
            multiprocessing=is_elsewhere,
        ) as loader,
    ):
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


@contextmanager
def _cluster(num_nodes: int, workers: int) -> Generator[None]:
    """Have a Ray cluster of ``num_nodes`` nodes, with a CPU for each worker, and one more."""
    ray, utils = importlib.import_module("ray"), importlib.import_module("ray.cluster_utils")
    cluster = utils.Cluster()
    for _ in range(num_nodes):
        cluster.add_node(num_cpus=-(-workers // num_nodes) + 1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def _ray_data(source: Source, workers: int, ahead: int | None) -> Generator[_Epoch]:
    dataset: Any = source.whole()

    def made(batch: dict[str, Any]) -> dict[str, Any]:
        return {"items": default_collate([dataset[int(index)] for index in batch["id"]]).numpy()}

    with _cluster(1, workers):
        indices = importlib.import_module("ray.data").range(len(dataset), override_num_blocks=-(-len(dataset) // 256))
        batches = indices.map_batches(made, batch_size=BATCH_SIZE, concurrency=workers)
        yield lambda: batches.iter_torch_batches(batch_size=BATCH_SIZE, prefetch_batches=ahead or _AHEAD)
        time.sleep(5)  # its own threads end some time after their iterator, and may not outlive the cluster


#: By name: a function of source, workers (or threads) and microbatches ahead of the caller; None: its default.
BATCHERS: dict[str, Callable[[Source, int, int | None], AbstractContextManager[_Epoch]]] = {
    "ours": _ours,
    **{
        f"ours, {kind}": functools.partial(_ours, kind=kind)
        for kind in ("threads", "actors", "two nodes", "in the caller")
    },
    "torch": _torch,
    "grain": _grain,
    "SPDL": _spdl,
    "Ray Data": _ray_data,
}
BATCHER_PEERS = ("grain", "SPDL")
