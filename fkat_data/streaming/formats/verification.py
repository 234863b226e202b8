"""Verification of a dataset: compare sizes and hashes with its index, and decode every sample."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fkat_data.errors import ShardError, ShardNotFoundError
from fkat_data.interruption import genuine
from fkat_data.streaming.formats.entry import FileInfo, ShardEntry
from fkat_data.streaming.formats.hashing import validate_file
from fkat_data.streaming.formats.index import INDEX_NAME, read_index
from fkat_data.streaming.formats.open_shard import check_safe, open_shard
from fkat_data.streaming.formats.reader import ShardReader
from fkat_data.streaming.formats.unpacking import unpacked

_ROWS_AT_ONCE = 256


@dataclass
class DatasetReport:
    """The result of a verification.

    Attributes:
        num_shards: Shards in the index.
        num_samples: Decoded samples.
        num_bytes: Size of the files that were compared with the index.
        num_hashes: Hashes that were compared with the index.
        problems: The first error of each damaged shard.
    """

    num_shards: int = 0
    num_samples: int = 0
    num_bytes: int = 0
    num_hashes: int = 0
    problems: list[ShardError] = field(default_factory=list[ShardError])


def datasets_in(directory: Path) -> list[Path]:
    """Return ``directory`` if it has an index, otherwise its subdirectories with one: the dataset's splits.

    Raises:
        ShardNotFoundError: None of them has an index.
    """
    if (directory / INDEX_NAME).exists():
        return [directory]
    splits = sorted(path.parent for path in directory.glob(f"*/{INDEX_NAME}"))
    if not splits:
        raise ShardNotFoundError(str(directory / INDEX_NAME), "no such file, and none in a subdirectory")
    return splits


def verify_dataset(
    directory: Path,
    *,
    allow_unsafe_types: bool = False,
    progress: Callable[[int, int], None] | None = None,
    entries: Sequence[ShardEntry] | None = None,
) -> DatasetReport:
    """Compare a dataset's files with its index, decode every sample, and report the problems.

    Verify the files of a shard that exist: compressed, uncompressed or both. Decompress to a temporary directory if
    need be. Decode the pixels of images too.

    Args:
        directory: Directory of the index.
        allow_unsafe_types: Whether to read pickles, which runs code of the file's author.
        progress: Called with (verified samples, total samples).
        entries: The shards; None: those of the index in the directory.

    Raises:
        ConfigurationError: A column holds pickles, and they are not allowed.
        ShardNotFoundError: The index does not exist.
        ShardCorruptError: The index is invalid.
        OSError: A file cannot be read, or the temporary directory cannot be written.
    """
    entries = read_index(directory / INDEX_NAME) if entries is None else entries
    if not allow_unsafe_types:
        for entry in entries:
            check_safe(entry)
    report = DatasetReport(num_shards=len(entries))
    done, total = 0, sum(entry.samples for entry in entries)
    for entry in entries:
        try:
            for count in _verified(directory, entry, report, allow_unsafe_types=allow_unsafe_types):
                report.num_samples += count
                if progress is not None:
                    progress(done + count, total)
                done += count
        except ShardError as error:
            report.problems.append(error)
    return report


def _verified(directory: Path, entry: ShardEntry, report: DatasetReport, *, allow_unsafe_types: bool) -> Iterator[int]:
    """Verify a shard, and yield the number of samples in each decoded chunk."""
    present = [
        info for pair in entry.files for info in pair if info is not None and (directory / info.basename).exists()
    ]
    for info in present:
        _compare_with_index(directory, info, report)
    with tempfile.TemporaryDirectory(prefix="fkat-verify-") as scratch:
        root = unpacked(directory, entry, Path(scratch))
        if root != directory:
            for raw, _ in entry.files:
                _compare_with_index(root, raw, report)
        shard = open_shard(root, entry, allow_unsafe_types=allow_unsafe_types)
        for begin in range(0, entry.samples, _ROWS_AT_ONCE):
            rows = range(begin, min(begin + _ROWS_AT_ONCE, entry.samples))
            _decode(root / entry.name, shard, rows)
            yield len(rows)
        shard.close()


def _compare_with_index(directory: Path, info: FileInfo, report: DatasetReport) -> None:
    whole = info if info.origin is None else FileInfo(info.origin.name, info.origin.size_bytes)
    for algorithm in [None, *info.hashes]:
        validate_file(directory / whole.basename, whole, algorithm)
    report.num_hashes += len(info.hashes)
    report.num_bytes += info.bytes


def _decode(path: Path, shard: ShardReader, rows: range) -> None:
    for row, sample in zip(rows, shard.samples(rows), strict=True):
        for name, value in sample.items():
            try:
                _load(value)
            except genuine(Exception) as error:
                raise ShardError(str(path), f"row {row}, column {name!r}: {error}") from error


def _load(value: object) -> None:
    """Decode the pixels of images, which Pillow otherwise decodes on first use."""
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for item in cast("Sequence[Any]", value):
            _load(item)
    elif isinstance(value, Mapping):
        return  # JSON has no images
    elif hasattr(value, "load") and hasattr(value, "getbands"):
        cast("Any", value).load()
