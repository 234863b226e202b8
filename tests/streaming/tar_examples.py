"""The same small dataset as MDS shards and as tar files, with the same samples in each shard."""

import io
from pathlib import Path

import numpy as np
from archive_examples import archive

from fkat_data.streaming import MDSWriter, StreamingDataset

__all__ = ["COLUMNS", "DECODE", "archive", "write_both", "write_tar"]

COLUMNS = {"__key__": "str", "json": "json", "npy": "ndarray:int16:3", "number": "int", "txt": "str"}
#: How the tar files give what the MDS shards give.
DECODE = {"number": "integer"}


def sample(number):
    return {
        "__key__": f"folder/{number:05}",
        "json": {"even": number % 2 == 0},
        "npy": np.arange(number, number + 3, dtype=np.int16),
        "number": number,
        "txt": f"sample {number}",
    }


def members(number):
    file = io.BytesIO()
    np.save(file, sample(number)["npy"])
    contents = {
        "txt": f"sample {number}".encode(),
        "npy": file.getvalue(),
        "number": b"%d" % number,
        "json": b'{"even": true}' if number % 2 == 0 else b'{"even": false}',
    }
    return [(f"folder/{number:05}.{name}", content) for name, content in contents.items()]


def write_tar(path, numbers):
    """One file with the samples of some numbers."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(archive([member for number in numbers for member in members(number)]))


def write_both(folder, count, per_shard=10):
    """Return the directories of the MDS shards and of the tar files, some of which lie in folders of their own."""
    mds, tars = Path(folder) / "mds", Path(folder) / "tars"
    with MDSWriter(out=str(mds), columns=COLUMNS, size_limit=300 + 73 * per_shard) as writer:
        for number in range(count):
            writer.write(sample(number))
    sizes = StreamingDataset(local=str(mds)).samples_per_shard.tolist()
    starts = np.cumsum([0, *sizes]).tolist()
    for number, (start, size) in enumerate(zip(starts, sizes, strict=False)):
        write_tar(tars / ("", "sub")[number > 3] / f"{number:03}.tar", range(start, start + size))
    return str(mds), str(tars)
