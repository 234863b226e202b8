"""Read folders of files by every reader, and print a table of the verdicts: `scripts/file_suites FOLDER...`.

A verdict compares a reader with one that shares no code with it: pyarrow, or Python's json for each line.

right: the same samples; or an error of a damaged file, where the other one refuses it, too.
refused by name: a ConfigurationError that names the file, or a SampleError that names the value.
wrong: other samples, samples of a file that the other one refuses, another error, or the end of the process.
corrupt: a file is called damaged that the other one reads; or that it decodes, and has values that are none of Python's.
too long: not done within LIMIT_S seconds, 60 unless the environment says otherwise.

Each file is read in a process of its own. What is not right is listed below the table, and
so is each file that not all readers say the same of.
"""

import datetime as dt
import json
import logging
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import torch

from fkat_data import ConfigurationError, SampleError, ShardError
from fkat_data.datasets import IterableJsonDataset, IterableParquetDataset, JsonDataset, ParquetDataset
from fkat_data.streaming import LocalDataset, StreamingDataset
from fkat_data.tools import convert

VERDICTS = ("right", "refused by name", "wrong", "corrupt", "too long")
LIMIT_S = float(os.environ.get("LIMIT_S", "60"))


def streamed(path: Path) -> list[Any]:
    """Read a file as a stream."""
    stream = StreamingDataset(local=str(path), batch_size=1)
    return [stream[row] for row in range(len(stream))]


def converted(path: Path) -> list[Any]:
    """Convert a file, and read the result."""
    out = path.parent / "out"
    return list(LocalDataset(out)) if convert(path, out, nulls="json") else []


READERS: dict[str, dict[str, Callable[[Path], list[Any]]]] = {
    ".parquet": {
        "ParquetDataset": lambda path: list(ParquetDataset(path)),
        "IterableParquetDataset": lambda path: list(IterableParquetDataset(path)),
        "StreamingDataset": streamed,
        "convert": converted,
    },
    ".jsonl": {
        "JsonDataset": lambda path: list(JsonDataset(path)),
        "IterableJsonDataset": lambda path: list(IterableJsonDataset(path)),
    },
}


class BeyondError(Exception):
    """A file is sound, and has a value that is none of Python's."""


def by_pyarrow(path: Path) -> list[Any]:
    """Return what pyarrow reads: times of 96 bits in microseconds, as Python has them."""
    file: Any = pq.ParquetFile(path, page_checksum_verification=True, coerce_int96_timestamp_unit="us")
    batches = list(file.iter_batches(1))
    groups = range(file.num_row_groups)
    if sum(batch.num_rows for batch in batches) != sum(file.metadata.row_group(group).num_rows for group in groups):
        raise ValueError("rows are missing")
    try:
        return [row for batch in batches for row in batch.to_pylist()]
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError) as error:
        raise BeyondError(str(error)) from error


def by_json(path: Path) -> list[Any]:
    """Return what Python's json makes of each line that is not blank."""
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip(b"\t\r\v\f ")]
    try:
        return [json.loads(line) for line in lines]
    except RecursionError as error:
        raise BeyondError(str(error)) from error


def plain(value: Any) -> Any:
    """Return a sample's value with lists for arrays, naive times in UTC, and a text for NaN."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        is_time = isinstance(value, (np.datetime64, np.timedelta64))
        return plain((value.astype(f"{value.dtype.kind}8[us]") if is_time else value).item())
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in cast("dict[str, Any]", value).items()}
    is_nan = isinstance(value, (float, Decimal)) and math.isnan(value)
    return (
        [plain(item) for item in cast("list[Any]", value)]
        if isinstance(value, (list, tuple))
        else "NaN"
        if is_nan
        else value
    )


def verdict(
    reader: str, read: Callable[[Path], list[Any]], path: Path, expected: list[Any] | BeyondError | None
) -> tuple[str, str]:
    """Return a reader's verdict on a file, and what it said."""
    try:
        rows = read(path)
    except (ConfigurationError, SampleError) as error:
        return "refused by name", str(error)
    except ShardError as error:
        return ("right" if expected is None else "corrupt"), str(error)
    except Exception as error:  # noqa: BLE001 - what it is, is the verdict
        return "wrong", f"{type(error).__name__}: {error}"
    if expected is None:
        return "wrong", "it reads what the other one refuses"
    if isinstance(expected, BeyondError):
        return "right", f"it has values that are none of Python's: {expected}"
    sys.setrecursionlimit(1 << 16)
    # A conversion has JSON for what its format lacks: the number of samples is compared.
    is_right = len(rows) == len(expected) if reader == "convert" else plain(rows) == plain(expected)
    return ("right", "") if is_right else ("wrong", "other samples")


def judge(original: Path, suffix: str, reader: str, sink: Any) -> None:
    """Send the verdict of one reader on one file."""
    warnings.simplefilter("ignore")
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        # Other names than those of tables and lines would be refused as such.
        path = Path(folder, original.name.replace(".", "_") + suffix)
        shutil.copy(original, path)
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            expected = (by_pyarrow if suffix == ".parquet" else by_json)(path)
        except BeyondError as error:
            expected = error
        except Exception:  # noqa: BLE001 - it refuses the file
            expected = None
        sink.send(verdict(reader, READERS[suffix][reader], path, expected))


def verdicts(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield file, reader, verdict and what the reader said."""
    context = multiprocessing.get_context("fork")
    for file in sorted(folder.rglob("*")):
        kinds = {".parquet": ".parquet", ".encrypted": ".parquet", ".json": ".jsonl"}
        suffix = kinds.get(file.suffix)
        if suffix is None or not file.is_file() or file.name.startswith("_"):
            continue
        for reader in READERS[suffix]:
            source, sink = context.Pipe(duplex=False)
            process = context.Process(target=judge, args=(file, suffix, reader, sink))
            process.start()
            sink.close()
            found = ("too long", "")
            if source.poll(LIMIT_S):
                try:
                    found = source.recv()
                except EOFError:
                    found = ("wrong", "the process has ended")
            process.kill()
            process.join()
            yield str(file.relative_to(folder)), reader, found[0], found[1]


def main() -> None:
    """Print the table of each folder."""
    torch.set_num_threads(1)
    for folder in map(Path, sys.argv[1:]):
        counts: dict[str, Counter[str]] = {}
        others: list[str] = []
        by_file: dict[str, dict[str, str]] = {}
        for file, reader, found, said in verdicts(folder):
            counts.setdefault(reader, Counter())[found] += 1
            by_file.setdefault(file, {})[reader] = found
            if found != "right":
                others.append(f"{found}: {file}, {reader}: {said[:300]}")
        print(f"\n{folder}\n\n| | {' | '.join(VERDICTS)} |\n|{'---|' * (len(VERDICTS) + 1)}")
        for reader, found in counts.items():
            print(f"| {reader} | {' | '.join(str(found[name]) for name in VERDICTS)} |")
        differing = [f"{file}: {found}" for file, found in by_file.items() if len(set(found.values())) > 1]
        print("", *others, "", f"readers differ in {len(differing)} files", *differing, sep="\n")


if __name__ == "__main__":
    main()
