"""Small Parquet and tar datasets, read through caches that all trainers of a campaign share and that hold half of them."""

import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fkat_data.streaming import StreamingDataset

STREAM_KINDS = ("parquet", "tar")
NUM_SAMPLES = 9

_TEXT_BYTES = 4000
#: About half of the parts fit: most reads evict another part.
_LIMITS_BYTES = {"parquet": 32_000, "tar": 45_000}


def write_streams(folder: Path) -> None:
    """Write both datasets; each sample is a part of its own: a row group, or a tar file."""
    for kind in STREAM_KINDS:
        (folder / kind).mkdir(parents=True)
    table = pa.table({"number": range(NUM_SAMPLES), "text": [_text(number) for number in range(NUM_SAMPLES)]})
    for start in range(0, NUM_SAMPLES, 3):
        path = folder / "parquet" / f"{start}.parquet"
        pq.write_table(
            table.slice(start, 3),
            path,
            row_group_size=1,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )
    for number in range(NUM_SAMPLES):
        with tarfile.open(folder / "tar" / f"{number}.tar", "w") as file:
            for name, content in (("cls", str(number)), ("txt", _text(number))):
                member = tarfile.TarInfo(f"{number:03}.{name}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content.encode()))


def opened(folder: Path, kind: str, *, is_cached: bool) -> StreamingDataset:
    """Open a dataset, through the cache or in place."""
    data = str(folder / kind)
    if not is_cached:
        return StreamingDataset(local=data, batch_size=1)
    cache = str(folder / f"{kind}-cache")
    return StreamingDataset(remote=data, local=cache, batch_size=1, cache_limit=_LIMITS_BYTES[kind])


def number_of(sample: dict[str, Any]) -> int:
    """Return the number of a sample.

    Raises:
        ValueError: Its text is another one's.
    """
    number = int(sample["number"] if "number" in sample else sample["cls"])
    if sample["text" if "text" in sample else "txt"] != _text(number):
        raise ValueError(f"sample {number} has the text of another one")
    return number


def cache_complaints(folder: Path) -> list[str]:
    """Return what is wrong with the caches once every process has ended."""
    found: list[str] = []
    for kind in STREAM_KINDS:
        cache = folder / f"{kind}-cache"
        if not cache.exists():
            continue
        dataset = opened(folder, kind, is_cached=True)
        numbers = [number_of(dataset[index]) for index in range(NUM_SAMPLES)]
        if numbers != list(range(NUM_SAMPLES)):
            found.append(f"{cache} gives {numbers}")
        left = list((cache / ".fkat_data" / "making").iterdir())
        if left:
            found.append(f"left in {cache}: {left}")
        dataset.evict_coldest_shard()
        if dataset.cache_usage > _LIMITS_BYTES[kind]:
            found.append(f"{cache} has {dataset.cache_usage} bytes: expected at most {_LIMITS_BYTES[kind]}")
    return found


def _text(number: int) -> str:
    return random.Random(number).randbytes(_TEXT_BYTES // 2).hex()
