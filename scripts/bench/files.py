"""Measure how long a microbatch of rows from a Parquet file takes, compared with the usual way, row by row.

The rows have tokens, a label and a text, in one row group that is decoded already, so only the way from a decoded row
group to samples is measured. The usual way is ``frame.iloc[indices]`` in pandas, then ``iloc[index].to_dict()`` for each
row; without pandas, ``table.slice(index, 1).to_pylist()`` in pyarrow.
"""

import importlib.util
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import Result, Settings, Table, medians

from fkat_data.datasets import ParquetDataset

_TARGET = 20
_ROWS, _ROWS_A_MICROBATCH, _TOKENS = 4096, 32, 512


def trial(contestant: str, num_microbatches: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(_table(random), path)
        take = {"ours": _ours, "pandas": _pandas, "pyarrow": _pyarrow}[contestant](str(path))
        take(list(range(0, _ROWS, _ROWS // _ROWS_A_MICROBATCH)))  # decodes the row group
        orders = [random.integers(0, _ROWS, _ROWS_A_MICROBATCH).tolist() for _ in range(num_microbatches)]
        began_s = time.perf_counter()
        for order in orders:
            take(order)
        return {"microbatch_us": 1e6 * (time.perf_counter() - began_s) / num_microbatches}


def run(settings: Settings) -> Result:
    other = "pandas" if importlib.util.find_spec("pandas") else "pyarrow"
    count = settings.count(500)
    variants = {name: ("files", {"contestant": name, "num_microbatches": count}) for name in ("ours", other)}
    found = measure.in_turn(settings, variants)
    ours, theirs = (medians(found[name])("microbatch_us") for name in variants)
    row = [f"{ours:,.0f}", f"{theirs:,.0f}", f"{theirs / ours:.1f}", str(_TARGET)]
    headers = ["`ParquetDataset.__getitems__`, µs", f"{other}, row by row, µs", "ratio", "target (at least)"]
    title = f"{_ROWS_A_MICROBATCH} rows of {_TOKENS} tokens, a label and a text"
    return Result([Table(title, headers, [row])], [trial for trials in found.values() for trial in trials])


def _table(random: np.random.Generator) -> Any:
    tokens = pa.array(random.integers(0, 50_000, _ROWS * _TOKENS, np.int32))
    return pa.table(
        {
            "tokens": pa.FixedSizeListArray.from_arrays(tokens, _TOKENS),
            "label": random.integers(0, 10, _ROWS),
            "text": [f"the text of row {row}" for row in range(_ROWS)],
        }
    )


def _ours(path: str) -> Any:
    return ParquetDataset(path).__getitems__


def _pandas(path: str) -> Any:
    import pandas as pd  # noqa: PLC0415 - not a dependency of this project: a peer, measured only if it is installed

    frame = pd.read_parquet(path)

    def rows(order: list[int]) -> list[Any]:
        taken = frame.iloc[order]
        return [taken.iloc[index].to_dict() for index in range(len(order))]

    return rows


def _pyarrow(path: str) -> Any:
    table = pq.read_table(path)
    return lambda order: [table.slice(index, 1).to_pylist()[0] for index in order]
