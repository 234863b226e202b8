"""The contestants that read shards: ours, and the peers on the same files or on their own copy of the data."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from stand_ins import stand_in

BATCH_SIZE = 32
OURS_PARQUET = "ours, Parquet"
#: What contestants read that do not read MDS shards.
_KINDS = {"litdata": "litdata", OURS_PARQUET: "parquet"}
#: Columns of the MDS shards, by workload.
WORKLOADS = {"tokens": {"tokens": "ndarray:uint16:1024"}, "text": {"number": "int", "text": "str"}}


def sample(workload: str, number: int) -> dict[str, Any]:
    if workload == "tokens":
        return {"tokens": (np.arange(1024) * 31 + number).astype(np.uint16)}
    return {"number": number, "text": f"{number:08d}" * 50}


def prepared(folder: str, workload: str, count: int, contestant: str) -> None:
    """Write the data, unless they exist."""
    path = Path(folder) / f"{workload}-{count}-{_KINDS.get(contestant, 'mds')}"
    if path.is_dir():
        return
    if contestant == OURS_PARQUET:
        prepared(folder, workload, count, "ours")
        _write_parquet(path, workload, str(Path(folder) / f"{workload}-{count}-mds"))
        return
    if contestant == "litdata":
        stand_in("litdata")
        litdata = importlib.import_module("litdata")
        # A trial prints only its result. Forked processes inherit the stand-ins.
        with contextlib.redirect_stdout(sys.stderr):
            litdata.optimize(
                fn=_Maker(workload),
                inputs=list(range(count)),
                output_dir=str(path),
                chunk_bytes="8MB",
                num_workers=1,
                start_method="fork",
            )
        return
    from fkat_data.streaming import MDSWriter  # noqa: PLC0415 - the peers' environment does not have it

    with MDSWriter(out=str(path), columns=WORKLOADS[workload]) as writer:
        for number in range(count):
            writer.write(sample(workload, number))


@contextmanager
def opened(folder: str, workload: str, count: int, contestant: str, num_workers: int) -> Iterator[Any]:
    """Yield an iterable of an epoch's batches."""
    path = str(Path(folder) / f"{workload}-{count}-{_KINDS.get(contestant, 'mds')}")
    if contestant in ("ours", OURS_PARQUET):
        from fkat_data import ShardedDataLoader  # noqa: PLC0415  see above

        if num_workers == 0:
            yield _ours(path)
            return
        with ShardedDataLoader(0, [path], _ours, num_shard_prefetches=num_workers) as loader:
            yield loader
        return
    name = {"mosaicml-streaming": "streaming", "litdata": "litdata"}[contestant]
    stand_in(name)
    library = importlib.import_module(name)
    if contestant == "litdata":
        dataset = library.StreamingDataset(path, shuffle=True)
        # It returns NumPy arrays as tensors by itself.
        yield library.StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=num_workers)
        return
    library.base.util.clean_stale_shared_memory()
    dataset = library.StreamingDataset(local=path, shuffle=True, batch_size=BATCH_SIZE)
    yield library.StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=num_workers)


def _ours(path: str) -> Any:
    from fkat_data.streaming import StreamingDataLoader, StreamingDataset  # noqa: PLC0415  see above

    return StreamingDataLoader(StreamingDataset(local=path, shuffle=True, shuffle_algo="block", batch_size=BATCH_SIZE))


def _write_parquet(path: Path, workload: str, mds: str) -> None:
    """Write the samples of MDS shards as one Parquet file, each shard as a row group."""
    import pyarrow as pa  # noqa: PLC0415 - the peers' environment does not have it
    import pyarrow.parquet as pq  # noqa: PLC0415 - see above

    from fkat_data.streaming import LocalDataset, StreamingDataset  # noqa: PLC0415 - see above

    data = LocalDataset(mds)
    sizes = StreamingDataset(local=mds, batch_size=1).samples_per_shard.tolist()
    kinds = {"tokens": pa.list_(pa.uint16(), 1024), "number": pa.int64(), "text": pa.string()}
    schema = pa.schema([(name, kinds[name]) for name in WORKLOADS[workload]])
    path.mkdir()
    with pq.ParquetWriter(path / "0.parquet", schema) as writer:
        start = 0
        for size in sizes:
            samples = data[start : start + size]
            start += size
            columns = {name: [sample[name] for sample in samples] for name in schema.names}
            writer.write_table(pa.table(columns, schema), row_group_size=size)


class _Maker:
    """The function that litdata calls in its own processes."""

    def __init__(self, workload: str) -> None:
        self._workload = workload

    def __call__(self, number: int) -> dict[str, Any]:
        return sample(self._workload, number)
