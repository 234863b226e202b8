"""The same small dataset as MDS shards and as Parquet files, with the same samples in each shard."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from streaming_examples import sample, write

from fkat_data.streaming import StreamingDataset

__all__ = ["COLUMNS", "table_of", "write_both", "write_parquet"]

#: As writers of MDS sort them.
COLUMNS = ("number", "ragged", "row", "text")
_TYPES = {
    "number": pa.int64(),
    "text": pa.string(),
    "row": pa.list_(pa.int16(), 3),
    "ragged": pa.list_(pa.uint8()),
}


def table_of(numbers, columns=COLUMNS):
    """A table of the samples of some numbers."""
    samples = [sample(number) for number in numbers]
    return pa.table({name: pa.array([item[name] for item in samples], _TYPES[name]) for name in columns})


def write_parquet(path, numbers, group_sizes, columns=COLUMNS, **options):
    """One file whose row groups have these sizes."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    table = table_of(numbers, columns)
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        for start, stop in pairwise(np.cumsum([0, *group_sizes]).tolist()):
            writer.write_table(table.slice(start, stop - start), row_group_size=stop - start)
    return str(path)


def write_both(folder, count, *, num_files=3, per_shard=10, columns=COLUMNS):
    """Return the directories of the MDS shards and of the Parquet files, which lie in folders of their own."""
    mds, parquet = Path(folder) / "mds", Path(folder) / "parquet"
    write(mds, count, columns=columns, per_shard=per_shard)
    sizes = StreamingDataset(local=str(mds)).samples_per_shard.tolist()
    starts = np.cumsum([0, *sizes]).tolist()
    for number, groups in enumerate(np.array_split(np.arange(len(sizes)), num_files)):
        numbers = range(starts[groups[0]], starts[groups[-1] + 1])
        name = f"part-{number}.parquet" if number < 1 else f"sub/{number}/part.parquet"
        write_parquet(parquet / name, numbers, [sizes[group] for group in groups], columns)
    return str(mds), str(parquet)
