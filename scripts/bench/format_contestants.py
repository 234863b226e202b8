"""The contestants that read files: MDS, Parquet and tar, and litdata's copy; each by its plainest code."""

import contextlib
import importlib
import io
import json
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stand_ins import imported

BATCH_SIZE = 32
#: Columns of the MDS shards, by workload.
WORKLOADS = {"tokens": {"tokens": "ndarray:uint16:1024"}, "text": {"number": "int", "text": "str"}}


def sample(workload: str, number: int) -> dict[str, Any]:
    if workload == "tokens":
        return {"tokens": (np.arange(1024) * 31 + number).astype(np.uint16)}
    return {"number": number, "text": f"{number:08d}" * 50}


#: What each contestant reads.
CONTESTANTS = {
    "ours, MDS": "mds",
    "ours, Parquet": "parquet",
    "ours, tar": "tar",
    "mosaicml-streaming, MDS": "mds",
    "datasets, Parquet": "parquet",
    "webdataset, tar": "tar",
    "litdata, its own": "litdata",
}
#: Those of the peers' environment.
PEERS = [name for name in CONTESTANTS if not name.startswith("ours")]
_NUM_FILES = 8
_ROWS_A_GROUP = 1000
#: The buffer of the peers that shuffle in one, as in their documentation.
_BUFFER_SAMPLES = 1000


class Reader(NamedTuple):
    """A shuffled epoch of a contestant.

    Attributes:
        batches: The batches.
        save: Returns its state between two batches; None: it has none.
        load: Takes such a state, before the first batch.
    """

    batches: Iterable[Any]
    save: Callable[[], Any] | None = None
    load: Callable[[Any], None] | None = None


def prepared(folder: str, workload: str, count: int, kind: str) -> str:
    """Write the rows in a format unless they are there; return their directory."""
    path = Path(folder) / f"{workload}-{count}-{kind}"
    if not path.is_dir():
        path.mkdir()
        {"mds": write_mds, "parquet": _write_parquet, "tar": _write_tar, "litdata": _write_litdata}[kind](
            path, workload, count
        )
    return str(path)


def opened(contestant: str, path: str, workload: str) -> Reader:
    """Open a contestant's rows."""
    return {
        "ours": _ours,
        "mosaicml-streaming": _mosaicml,
        "datasets": _datasets,
        "webdataset": _webdataset,
        "litdata": _litdata,
    }[contestant.partition(",")[0]](path, workload)


def numbers_of(batch: Any) -> list[int]:
    """Return the numbers of a batch's rows, however the contestant names its columns."""
    if isinstance(batch, (tuple, list)):
        (batch,) = batch
    if isinstance(batch, dict):
        found = next(batch[name] for name in ("tokens", "npy", "number", "json") if name in batch)
        if isinstance(found, dict):
            found = found["number"]
    else:
        found = batch
    if isinstance(found, list):
        return [int(row["number"] if isinstance(row, dict) else row[0]) for row in found]
    rows = np.asarray(found)
    return (rows[:, 0] if rows.ndim > 1 else rows).tolist()


def _ours(path: str, _workload: str) -> Reader:
    from fkat_data.streaming import StreamingDataLoader, StreamingDataset  # noqa: PLC0415 - peers do not have it

    dataset = StreamingDataset(local=path, shuffle=True, shuffle_algo="block", batch_size=BATCH_SIZE)
    return _stateful(StreamingDataLoader(dataset))


def _stateful(loader: Any) -> Reader:
    return Reader(loader, loader.state_dict, loader.load_state_dict)


def _mosaicml(path: str, _workload: str) -> Reader:
    library = imported("streaming")
    library.base.util.clean_stale_shared_memory()
    dataset = library.StreamingDataset(local=path, shuffle=True, batch_size=BATCH_SIZE)
    return _stateful(library.StreamingDataLoader(dataset, batch_size=BATCH_SIZE))


def _datasets(path: str, _workload: str) -> Reader:
    from torch.utils.data import DataLoader  # noqa: PLC0415 - the interpreter that lists contestants needs no torch

    library = importlib.import_module("datasets")
    files = sorted(glob(f"{path}/*.parquet"))  # noqa: PTH207 - a list of texts is what the library takes
    rows = library.load_dataset("parquet", data_files=files, split="train", streaming=True)
    rows = rows.shuffle(seed=0, buffer_size=_BUFFER_SAMPLES).with_format("torch")
    return Reader(DataLoader(rows, BATCH_SIZE), rows.state_dict, rows.load_state_dict)


def _webdataset(path: str, workload: str) -> Reader:
    library = importlib.import_module("webdataset")
    files = sorted(glob(f"{path}/*.tar"))  # noqa: PTH207 - see above
    rows = library.WebDataset(files, shardshuffle=_NUM_FILES, seed=0).shuffle(_BUFFER_SAMPLES, seed=0).decode()
    rows = rows.to_tuple("npy" if workload == "tokens" else "json").batched(BATCH_SIZE)
    return Reader(library.WebLoader(rows, batch_size=None))


def _litdata(path: str, _workload: str) -> Reader:
    library = imported("litdata")
    dataset = library.StreamingDataset(path, shuffle=True)
    return _stateful(library.StreamingDataLoader(dataset, batch_size=BATCH_SIZE))


def write_mds(path: Path, workload: str, count: int, **options: Any) -> None:
    """Write rows as MDS shards."""
    from fkat_data.streaming import MDSWriter  # noqa: PLC0415 - peers do not have it

    with MDSWriter(out=str(path), columns=WORKLOADS[workload], exist_ok=True, **options) as writer:
        for number in range(count):
            writer.write(sample(workload, number))


def _write_parquet(path: Path, workload: str, count: int) -> None:
    import pyarrow as pa  # noqa: PLC0415 - only who writes needs it
    import pyarrow.parquet as pq  # noqa: PLC0415 - see above

    kinds = {"tokens": pa.list_(pa.uint16(), 1024), "number": pa.int64(), "text": pa.string()}
    schema = pa.schema([(name, kinds[name]) for name in WORKLOADS[workload]])
    for file, numbers in _files(count):
        with pq.ParquetWriter(path / f"{file:05}.parquet", schema) as writer:
            for start in range(numbers.start, numbers.stop, _ROWS_A_GROUP):
                group = [sample(workload, row) for row in range(start, min(start + _ROWS_A_GROUP, numbers.stop))]
                columns = {name: [row[name] for row in group] for name in schema.names}
                writer.write_table(pa.table(columns, schema))


def _write_tar(path: Path, workload: str, count: int) -> None:
    for file, numbers in _files(count):
        with tarfile.open(path / f"{file:05}.tar", "w") as archive:
            for number in numbers:
                row, buffer = sample(workload, number), io.BytesIO()
                if workload == "tokens":
                    np.save(buffer, row["tokens"])
                else:
                    buffer.write(json.dumps(row).encode())
                suffix = "npy" if workload == "tokens" else "json"
                add_member(archive, f"{number:08d}.{suffix}", buffer.getvalue())


def add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file to a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _write_litdata(path: Path, workload: str, count: int) -> None:
    litdata = imported("litdata")
    settings = {"chunk_bytes": "8MB", "num_workers": 1, "start_method": "fork"}
    # A trial prints only its result. Forked processes inherit the stand-ins.
    with contextlib.redirect_stdout(sys.stderr):
        litdata.optimize(
            fn=partial(sample, workload), inputs=list(range(count)), output_dir=str(path), mode="overwrite", **settings
        )


def _files(count: int) -> Iterator[tuple[int, range]]:
    for file in range(_NUM_FILES):
        yield file, range(count * file // _NUM_FILES, count * (file + 1) // _NUM_FILES)
