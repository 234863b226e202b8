"""The contestants, each with the plainest code that its documentation shows.

Each imports its library when it makes its loader. Two read files of their own, which they write first.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset, RandomSampler, default_collate

from robustness.source import BATCH_SIZE, NUM_SAMPLES, NUM_SHARDS, NUM_WORKERS, Source

_SAMPLES_PER_SHARD = NUM_SAMPLES // NUM_SHARDS
_SHARDS = [str(number) for number in range(NUM_SHARDS)]
_OF_TORCH = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": NUM_WORKERS}


class Indexed(Dataset[dict[str, Any]]):
    """All samples, or those of one shard."""

    def __init__(self, source: Source, start: int = 0, count: int = NUM_SAMPLES) -> None:
        self.source = source
        self.start = start
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.source.sample(self.start + index)

    def __repr__(self) -> str:  # grain compares it when it resumes
        return "Samples"


def _shard(source: Source, shard: Any) -> Indexed:
    """Open a shard, whose name is its number."""
    return Indexed(source, int(shard) * _SAMPLES_PER_SHARD, _SAMPLES_PER_SHARD)


def ours(source: Source, **setting: Any) -> Any:
    """``ShardedDataLoader``, as in the README."""
    library = import_module("fkat_data")
    return _sharded(library, library.ShuffledShardSampler(_SHARDS, seed=0), source, **setting)


def fkat(source: Source, **setting: Any) -> Any:
    """fkat's ``ShardedDataLoader``, the system that this one follows. Its state needs a process group."""
    library = import_module("fkat.data.sharded")
    sampler = library.ShardSampler()
    sampler.shards = _SHARDS
    return _sharded(library, library.ShuffledShardSampler(sampler), source, **setting)


def _sharded(library: Any, sampler: Any, source: Source, **setting: Any) -> Any:
    factory = library.DataLoaderFactory(partial(_shard, source), sampler_generator=RandomSampler, batch_size=BATCH_SIZE)
    return library.ShardedDataLoader(
        seed=0, shard_sampler=sampler, dataloader_factory=factory, num_shard_prefetches=NUM_WORKERS, **setting
    )


def torch(source: Source, **setting: Any) -> Any:
    """torch's ``DataLoader``."""
    return DataLoader(Indexed(source), **_OF_TORCH, **setting)


def torchdata(source: Source, **setting: Any) -> Any:
    """torchdata's ``StatefulDataLoader``, as in its tutorial."""
    return import_module("torchdata.stateful_dataloader").StatefulDataLoader(Indexed(source), **_OF_TORCH, **setting)


def grain(source: Source, **setting: Any) -> Any:
    """grain's ``DataLoader``, as in its tutorial. The state is the iterator's."""
    library = import_module("grain")
    return library.DataLoader(
        data_source=Indexed(source),
        sampler=library.samplers.IndexSampler(NUM_SAMPLES, shuffle=True, seed=0, num_epochs=1),
        operations=[library.transforms.Batch(BATCH_SIZE)],
        worker_count=NUM_WORKERS,
        shard_options=library.sharding.NoSharding(),
        **setting,
    )


def spdl_threads(source: Source, **setting: Any) -> Any:
    """SPDL's ``DataLoader``, which works in threads, as in its reference."""
    return import_module("spdl.dataloader").DataLoader(
        RandomSampler(range(NUM_SAMPLES)),
        preprocessor=source.sample,
        batch_size=BATCH_SIZE,
        aggregator=default_collate,
        num_threads=NUM_WORKERS,
        **setting,
    )


def spdl_processes(source: Source, **setting: Any) -> Any:
    """SPDL's loader for datasets of torch, which works in processes, as in its reference."""
    return import_module("spdl.dataloader").get_pytorch_dataloader(Indexed(source), **_OF_TORCH, **setting)


def _imported(library: str) -> Any:
    return import_module("stand_ins").imported(library)  # of scripts/bench, which only cells have on their path


def _of_files(library: Any, source: Source, setting: dict[str, Any], **options: Any) -> Any:
    """Return a loader of a dataset whose samples are the source's, by the numbers in its files."""

    class Samples(library.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return source.sample(super().__getitem__(index)["number"])

    samples = Samples(shuffle=True, **options)
    return library.StreamingDataLoader(samples, batch_size=BATCH_SIZE, num_workers=NUM_WORKERS, **setting)


def mosaicml(source: Source, data: str, **setting: Any) -> Any:
    """MosaicML's ``StreamingDataset`` and ``StreamingDataLoader``, with local shards."""
    return _of_files(_imported("streaming"), source, setting, local=data, batch_size=BATCH_SIZE)


def write_mds(data: str) -> None:
    with _imported("streaming").MDSWriter(out=data, columns={"number": "int"}, size_limit=512) as writer:
        for number in range(NUM_SAMPLES):
            writer.write(record(number))


def litdata(source: Source, data: str, **setting: Any) -> Any:
    """litdata's ``StreamingDataset`` and ``StreamingDataLoader``, with local chunks."""
    return _of_files(_imported("litdata"), source, setting, input_dir=data)


def write_chunks(data: str) -> None:
    options = {"output_dir": data, "chunk_size": 20, "num_workers": 1}
    _imported("litdata").optimize(fn=record, inputs=list(range(NUM_SAMPLES)), **options)


def record(number: int) -> dict[str, int]:
    return {"number": number}


class Contestant(NamedTuple):
    """A library.

    Attributes:
        package: The distribution whose version the table shows.
        open: Makes an iterable of an epoch's batches.
        settings: By fault, the arguments that its documentation has for that case.
        state: What has a state: ``loader``, ``iterator`` or ``loader of a group``; empty: nothing has.
        is_peer: Whether it needs the peers' environment.
        write: Writes the dataset, where the contestant reads files of its own.
    """

    package: str
    open: Callable[..., Any]
    settings: dict[str, dict[str, Any]]
    state: str = ""
    is_peer: bool = True
    write: Callable[[str], None] | None = None

    def loader(self, source: Source, data: str, **setting: Any) -> Any:
        """Return an iterable of an epoch's batches."""
        where = {} if self.write is None else {"data": data}
        return self.open(source, **where, **setting)

    def save(self, loader: Any, iterator: Any) -> Any:
        """Return the state."""
        self._join()
        return iterator.get_state() if self.state == "iterator" else loader.state_dict()

    def resumed(self, loader: Any, state: Any) -> Iterator[Any]:
        """Return an iterator that goes on at a state."""
        self._join()
        if self.state == "iterator":
            iterator = iter(loader)
            iterator.set_state(state)
            return iterator
        loader.load_state_dict(state)
        return iter(loader)

    def _join(self) -> None:
        group = import_module("torch.distributed")
        if self.state.endswith("of a group") and not group.is_initialized():
            group.init_process_group("gloo", init_method=f"file://{tempfile.mkstemp()[1]}", rank=0, world_size=1)


_TIMEOUT = {"sample-hangs-setting": {"timeout": 10}}
_OURS = {"worker-killed-setting": {"max_worker_restarts": 1}, "sample-hangs-setting": {"stall_timeout_s": 10}}

CONTESTANTS = {
    "ours": Contestant("fkat_data", ours, _OURS, "loader", is_peer=False),
    "torch": Contestant("torch", torch, _TIMEOUT, is_peer=False),
    "torchdata": Contestant("torchdata", torchdata, _TIMEOUT, "loader"),
    "fkat": Contestant("fkat", fkat, {}, "loader of a group"),
    "mosaicml-streaming": Contestant("mosaicml-streaming", mosaicml, _TIMEOUT, "loader", write=write_mds),
    "litdata": Contestant("litdata", litdata, _TIMEOUT, "loader", write=write_chunks),
    "grain": Contestant("grain", grain, {}, "iterator"),
    "SPDL": Contestant("spdl-core", spdl_threads, _TIMEOUT),
    "SPDL, processes": Contestant("spdl-core", spdl_processes, _TIMEOUT),
}
