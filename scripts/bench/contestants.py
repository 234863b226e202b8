"""The contestants: each opens a loader with one worker over a workload, and closes it.

A contestant imports its library only when it is opened, because the peers' environment and ours have different ones.
"""

import importlib
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import measure
import workloads
from torch.utils.data import DataLoader

# The same for every contestant with such a setting.
PREFETCHED = 8


def ours(factory: Any, shards: Sequence[str] = ("shard",), **options: Any) -> AbstractContextManager[Iterable[Any]]:
    """Open our loader over shards that ``factory`` makes."""
    return importlib.import_module("fkat_data").ShardedDataLoader(0, shards, factory, **options)


def torchs(dataset: Any, loader_type: Any = DataLoader, **options: Any) -> AbstractContextManager[Iterable[Any]]:
    """Open torch's loader, or one with its arguments: with one worker that is spawned, unless ``options`` differ."""
    options = {"num_workers": 1, "prefetch_factor": PREFETCHED, "multiprocessing_context": "spawn", **options}
    return nullcontext(loader_type(dataset, batch_size=None, **options))


@contextmanager
def _traced(workload: str) -> Generator[Iterable[Any]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        ours(workloads.Factory(workload), trace=Path(folder, "run.json")) as loader,
    ):
        yield loader


def _torchdata(workload: str) -> AbstractContextManager[Iterable[Any]]:
    loader_type = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    return torchs(workloads.Stream(workload), loader_type)


@contextmanager
def _fkat(workload: str) -> Generator[Iterable[Any]]:
    fkat = importlib.import_module("fkat.data.sharded")
    sampler = fkat.ShardSampler()
    sampler.shards = ["shard"]
    loader = fkat.ShardedDataLoader(
        seed=0,
        shard_sampler=sampler,
        dataloader_factory=workloads.Factory(workload),
        num_shard_prefetches=1,
        num_microbatch_prefetches=PREFETCHED,
    )
    # Its destructor waits for the end of a shard, and these are endless. Keep it alive until this process is killed.
    _not_ended.append(loader)
    try:
        yield loader
    finally:
        for worker in measure.workers():
            worker.kill()
        for path in (loader.path, *(path for _, path, _ in loader.data_jobs)):
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)


_not_ended: list[Any] = []

CONTESTANTS: dict[str, Callable[[str], AbstractContextManager[Iterable[Any]]]] = {
    "ours": lambda workload: ours(workloads.Factory(workload)),
    "ours, traced": _traced,
    "torch": lambda workload: torchs(workloads.Stream(workload)),
    "torchdata": _torchdata,
    "fkat": _fkat,
}
PEERS = ("torchdata", "fkat")
