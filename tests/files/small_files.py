"""Small files of each format, as bytes; ``archive_examples`` has tar files."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def rows(number):
    return [{"number": row, "text": f"row {row}"} for row in range(number)]


def json_lines(samples):
    return b"".join(json.dumps(sample).encode() + b"\n" for sample in samples)


def parquet(samples, **options):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(samples), file, **options)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
