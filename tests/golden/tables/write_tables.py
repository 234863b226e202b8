"""Write the tables beside this file, as public data has them. It runs by hand, outside of the tests' environment.

They were written by pandas 3.1.1, polars 2.1.0, DuckDB 2.0.0, Hugging Face datasets 5.2.0 and pyarrow 26.0.1:
`pip install pandas polars duckdb datasets pillow pyarrow && python write_tables.py`.
"""

import datetime as dt
import decimal
import shutil
import tempfile
from pathlib import Path

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
from PIL import Image

HERE = Path(__file__).parent
DAY = dt.date(2024, 1, 1)
MOMENT = dt.datetime(2024, 1, 1, 2, 3, 4, 567)  # noqa: DTZ001 - tables have such times


def write_pandas():
    frame = pd.DataFrame(
        {
            "int_with_nan": [1, 2, None],
            "nullable_int": pd.array([1, None, 3], dtype="Int64"),
            "float": [0.5, np.nan, 2],
            "text": ["a", None, "é"],
            "flag": pd.array([True, None, False], dtype="boolean"),
            "time": pd.to_datetime(["2024-01-01", "2024-01-02T03:04:05.123456789", None], format="ISO8601"),
            "zoned": pd.to_datetime(["2024-01-01", "2024-07-02", None]).tz_localize("Europe/Berlin"),
            "duration": pd.to_timedelta(["1s", None, "2 days 00:00:00.000000001"]),
            "category": pd.Categorical(["x", None, "y"]),
            "numbers": [[1, 2], [], None],
            "nested": [[[1], [2, 3]], [], None],
            "record": [{"a": 1, "b": None}, {"a": 2, "b": "z"}, None],
            "price": [decimal.Decimal("1.20"), None, decimal.Decimal(-3)],
            "day": [DAY, None, dt.date(1, 1, 1)],
            "clock": [dt.time(1, 2, 3), None, dt.time(4)],
            "blob": [b"a", b"\xff", b""],
            "nothing": [None] * 3,
            "period": pd.period_range("2024-01", periods=3, freq="M"),
            "interval": pd.interval_range(0, 3),
        },
        index=["r0", "r1", "r2"],
    )
    frame.to_parquet(HERE / "pandas.parquet")


def write_polars():
    frame = pl.DataFrame(
        {
            "int": [1, None, 3],
            "small": pl.Series([1, 2, 3], dtype=pl.UInt8),
            "text": ["a", None, "é"],
            "numbers": [[1, 2], [], None],
            "pair": pl.Series([[1, 2], [3, 4], [5, 6]], dtype=pl.Array(pl.Int32, 2)),
            "record": [{"a": 1, "b": None}, {"a": 2, "b": "z"}, None],
            "category": pl.Series(["x", None, "y"], dtype=pl.Categorical),
            "level": pl.Series(["x", "y", "x"], dtype=pl.Enum(["x", "y"])),
            "price": pl.Series(["1.20", None, "-3"]).cast(pl.Decimal(10, 2)),
            "time": [MOMENT, None, MOMENT],
            "zoned": pl.Series([MOMENT] * 3).dt.replace_time_zone("UTC"),
            "day": [DAY, None, DAY],
            "clock": [dt.time(1, 2, 3), None, dt.time(4)],
            "duration": [dt.timedelta(seconds=1), None, dt.timedelta(days=2)],
            "blob": [b"a", b"\xff", b""],
            "flag": [True, None, False],
            "nothing": [None] * 3,
            "records": [[{"k": 1}], [], None],
        }
    )
    frame.write_parquet(HERE / "polars.parquet")
    frame.write_ipc(HERE / "polars.arrow")
    wide = pl.DataFrame({"wide": pl.Series([1, 2**100], dtype=pl.Int128)})
    wide.write_parquet(HERE / "polars_int128.parquet")


def write_duckdb():
    row = """(1::INTEGER, 2::HUGEINT, 'a', [1, 2], {'a': 1, 'b': 'z'}, MAP{'k': 1, 'l': 2}, MAP{1: 'k'},
        1.5::DECIMAL(10, 2), TIMESTAMP '2024-01-01 00:00:00', TIMESTAMPTZ '2024-01-01 00:00:00+00', DATE '2024-01-01',
        TIME '01:02:03', 'x'::ENUM('x', 'y'), '\\xAA'::BLOB, true,
        'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID, [1.0, 2.0]::FLOAT[2], 5::UTINYINT,
        TIMESTAMP_NS '2024-01-01 00:00:00.123456789', '{"q": 1}'::JSON, [{'at': DATE '2024-01-01', 'price': 1.5}])"""
    nulls = f"(NULL{', NULL' * 12}, ''::BLOB, NULL, NULL, [3.0, 4.0]::FLOAT[2], NULL, NULL, NULL, NULL)"
    names = (
        "int, huge, text, numbers, record, map, int_map, price, time, zoned, day, clock, level, blob, flag, id, pair, "
        "small, fine, json, records"
    )
    duckdb.execute(f"COPY (SELECT * FROM (VALUES {row}, {nulls}) t({names})) TO '{HERE}/duckdb.parquet'")


def write_hugging_face():
    features = {
        "id": datasets.Value("int64"),
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["neg", "pos"]),
        "tokens": datasets.List(datasets.Value("int32")),
        "embedding": datasets.List(datasets.Value("float32"), length=3),
        "grid": datasets.Array2D((2, 2), "float32"),
        "answers": {"text": datasets.List(datasets.Value("string")), "start": datasets.List(datasets.Value("int32"))},
        "time": datasets.Value("timestamp[ns]"),
        "flag": datasets.Value("bool"),
        "long": datasets.Value("large_string"),
        "image": datasets.Image(),
        "json": datasets.Json(),
    }
    rows = {
        "id": [1, 2],
        "text": ["a", None],
        "label": [0, 1],
        "tokens": [[1, 2], []],
        "embedding": [[1, 2, 3], [4, 5, 6]],
        "grid": [[[1, 2], [3, 4]]] * 2,
        "answers": [{"text": ["x"], "start": [1]}, {"text": [], "start": []}],
        "time": [MOMENT] * 2,
        "flag": [True, None],
        "long": ["x", "y"],
        "image": [Image.new("RGB", (2, 1)), Image.new("RGB", (1, 2))],
        "json": [{"a": 1}, [1]],
    }
    dataset = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    dataset.to_parquet(HERE / "hugging_face.parquet")
    with tempfile.TemporaryDirectory() as folder:
        dataset.save_to_disk(folder)
        (file,) = Path(folder).glob("*.arrow")
        shutil.copyfile(file, HERE / "hugging_face.arrow")


for write in (write_pandas, write_polars, write_duckdb, write_hugging_face):
    write()
