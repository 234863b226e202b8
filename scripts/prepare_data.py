"""Cut source code into Parquet shards of byte-level token sequences.

The default source is the standard library of the Python that runs this: about 30 MB of real text on every machine,
without a download. A row has ``sequence_length + 1`` bytes: a model reads all but the last and predicts all but the
first. Every shard has the same number of rows, so that all ranks of a distributed run have the same number of
microbatches.

The manifest is written last, so if it exists, the shards are complete. If the source and the settings are unchanged,
existing shards are kept.
"""

import argparse
import fcntl
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

SEPARATOR = b"\0"  # Python source cannot contain it, so it marks the end of a file
MANIFEST = "manifest.json"
LAYOUT_VERSION = 1  # of the shards: raise it when the same source gives different bytes
NOT_SOURCE = {"__pycache__", "site-packages", "dist-packages"}


def prepare(
    destination: Path,
    source: Path | None = None,
    *,
    sequence_length: int = 256,
    num_shards: int = 8,
    row_group_rows: int = 4096,
) -> dict[str, Any]:
    """Write the shards to ``destination`` unless they are there, and return their manifest.

    Args:
        destination: The folder for the shards.
        source: The folder whose ``*.py`` files are the text; None: the standard library.
        sequence_length: The number of bytes that a model reads at once.
        num_shards: The number of shards.
        row_group_rows: The number of rows in a row group, the unit in which a shard is read.
    """
    numbers = {"sequence_length": sequence_length, "num_shards": num_shards, "row_group_rows": row_group_rows}
    for name, value in numbers.items():
        if value < 1:
            raise SystemExit(f"{name} = {value}: expected at least 1")
    source = source or Path(sysconfig.get_path("stdlib"))
    destination.mkdir(parents=True, exist_ok=True)
    with _only_one(destination):
        text, num_files = read_text(source)
        settings = {
            "layout_version": LAYOUT_VERSION,
            "source": str(source),
            "num_files": num_files,
            "sha256": hashlib.sha256(text).hexdigest(),
            **numbers,
        }
        manifest = whole_manifest(destination)
        if manifest is not None and manifest["settings"] == settings:
            tqdm.write(f"data: found {_summary(manifest)} in {destination}")
            return manifest
        rows = cut_into_rows(text, sequence_length + 1, num_shards)
        manifest = {"settings": settings, "shards": _write_shards(rows, destination, num_shards, row_group_rows)}
        partial = destination / f".{MANIFEST}.partial"
        partial.write_text(json.dumps(manifest, indent=1))
        os.sync()  # so that no manifest outlives a loss of power without its shards
        partial.rename(destination / MANIFEST)
        tqdm.write(f"data: wrote {_summary(manifest)} to {destination}")
        return manifest


def read_text(source: Path) -> tuple[bytes, int]:
    """Return the text of all ``*.py`` files under ``source``, sorted by path, and their number."""
    paths = sorted(
        path for path in source.rglob("*.py") if not NOT_SOURCE & set(path.relative_to(source).parts) and path.is_file()
    )
    if not paths:
        raise SystemExit(f"no *.py files under {source}")
    return SEPARATOR.join(path.read_bytes() for path in tqdm(paths, "reading", unit=" files", leave=False)), len(paths)


def cut_into_rows(text: bytes, row_length: int, num_shards: int) -> npt.NDArray[np.uint8]:
    """Cut ``text`` into rows, dropping the end that does not fill a row in every shard."""
    num_rows = len(text) // row_length // num_shards * num_shards
    if num_rows == 0:
        raise SystemExit(
            f"{len(text):,} bytes are too few for {num_shards} shards with a row of {row_length} bytes each"
        )
    return np.frombuffer(text, np.uint8, num_rows * row_length).reshape(num_rows, row_length)


def whole_manifest(destination: Path) -> dict[str, Any] | None:
    """Return the manifest in ``destination`` if the shards exist in the sizes that it names, else None."""
    try:
        manifest: dict[str, Any] = json.loads((destination / MANIFEST).read_bytes())
        sizes = {shard["name"]: shard["bytes"] for shard in manifest["shards"]}
        is_whole = all((destination / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if is_whole else None


def _write_shards(
    rows: npt.NDArray[np.uint8], destination: Path, num_shards: int, row_group_rows: int
) -> list[dict[str, Any]]:
    # Remove the manifest first: it must never describe a mixture of old and new shards.
    for stale in (destination / MANIFEST, *destination.glob("shard-*.parquet")):
        stale.unlink(missing_ok=True)
    shards: list[dict[str, Any]] = []
    for index in tqdm(range(num_shards), "writing", unit=" shards", leave=False):
        # Take every n-th row, so that each shard is a sample of the whole text.
        mine = rows[index::num_shards]
        tokens = pa.FixedSizeListArray.from_arrays(pa.array(mine.reshape(-1)), mine.shape[1])
        path = destination / f"shard-{index:05d}.parquet"
        options = {"row_group_size": row_group_rows, "compression": "zstd", "use_dictionary": False}
        pq.write_table(pa.table({"tokens": tokens}), path, **options)
        shards.append({"name": path.name, "rows": len(mine), "bytes": path.stat().st_size})
    return shards


@contextmanager
def _only_one(destination: Path) -> Iterator[None]:
    """Make a second preparation wait until this one ends, even if it crashes."""
    with (destination / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _summary(manifest: dict[str, Any]) -> str:
    settings, shards = manifest["settings"], manifest["shards"]
    num_rows = sum(shard["rows"] for shard in shards)
    return (
        f"{len(shards)} shards, {num_rows:,} sequences of {settings['sequence_length']} bytes "
        f"from {settings['num_files']:,} files"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--destination", type=Path, default=Path("data/stdlib"), help="default: %(default)s")
    parser.add_argument("--source", type=Path, help="default: the standard library of this Python")
    parser.add_argument("--sequence-length", type=int, default=256, help="default: %(default)s")
    parser.add_argument("--num-shards", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--row-group-rows", type=int, default=4096, help="default: %(default)s")
    prepare(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
