"""Look at a dataset as a whole: its summary, its first samples, and whether every file and sample is sound."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardError, ShardNotFoundError
from fkat_data.files.formats import check_safe, open_shard
from fkat_data.files.index import INDEX_NAME, read_index
from fkat_data.files.lines import LineIndex, lines_of, parsed
from fkat_data.files.opening import TextFile
from fkat_data.files.shard import Column, FileInfo, ShardEntry, ShardReader
from fkat_data.files.stored import decompress_file, validate_file
from fkat_data.runtime.interruption import genuine

_LONGEST_LINE_BYTES = 1 << 62


def unpacked(directory: Path, entry: ShardEntry, scratch: Path) -> Path:
    """Return the directory with a shard's uncompressed files. Decompress them to ``scratch`` if they are missing.

    Args:
        directory: Directory of the dataset.
        entry: The shard.
        scratch: Directory for decompressed files.

    Raises:
        ShardNotFoundError: Both the uncompressed file and the compressed one are missing.
        ShardCorruptError: A compressed file is invalid.
        OSError: ``scratch`` cannot be written.
    """
    if entry.compression is None or all((directory / raw.basename).exists() for raw, _ in entry.files):
        return directory
    for raw, compressed in entry.files:
        if compressed is not None:
            target = scratch / raw.basename
            target.parent.mkdir(parents=True, exist_ok=True)
            decompress_file(entry.compression, directory / compressed.basename, target, raw)
    return scratch


@dataclass(frozen=True)
class DatasetSummary:
    """Formats, columns and sizes of a dataset, from its index. Each tuple has distinct values.

    Attributes:
        formats: Formats of the shards.
        compressions: Compressions of the shards; None stands for uncompressed.
        hashes: Hash algorithms of the files.
        columns: Columns of the shards: one tuple if all shards have the same ones.
        num_shards: Number of shards.
        num_samples: Number of samples.
        raw_bytes: Size of the uncompressed files, in bytes.
        stored_bytes: Size of the files as stored, in bytes.
        least_samples: Samples in the smallest shard.
        most_samples: Samples in the largest shard.
    """

    formats: tuple[str, ...]
    compressions: tuple[str | None, ...]
    hashes: tuple[str, ...]
    columns: tuple[tuple[Column, ...], ...]
    num_shards: int
    num_samples: int
    raw_bytes: int
    stored_bytes: int
    least_samples: int
    most_samples: int


def summary_of(directory: Path, entries: Sequence[ShardEntry] | None = None) -> DatasetSummary:
    """Return the summary of a dataset. Read the index only, unless its shards are given.

    Raises:
        ShardNotFoundError: The index does not exist.
        ShardCorruptError: The index is invalid.
    """
    entries = read_index(directory / INDEX_NAME) if entries is None else entries
    counts = [entry.samples for entry in entries]
    return DatasetSummary(
        tuple(dict.fromkeys(entry.format for entry in entries)),
        tuple(dict.fromkeys(entry.compression for entry in entries)),
        tuple(dict.fromkeys(name for entry in entries for name in entry.hashes)),
        tuple(dict.fromkeys(entry.columns for entry in entries)),
        len(entries),
        sum(counts),
        sum(entry.raw_bytes for entry in entries),
        sum(entry.stored_bytes for entry in entries),
        min(counts, default=0),
        max(counts, default=0),
    )


def first_samples(
    directory: Path,
    count: int,
    *,
    allow_unsafe_types: bool = False,
    entries: Sequence[ShardEntry] | None = None,
) -> list[dict[str, Any]]:
    """Return the first samples of a dataset, decoded. Decompress shards to a temporary directory.

    Args:
        directory: Directory of the index.
        count: Maximum number of samples.
        allow_unsafe_types: Whether to read pickles, which runs code of the file's author.
        entries: The shards; None: those of the index in the directory.

    Raises:
        ConfigurationError: A column holds pickles, and they are not allowed.
        ShardError: The index or a shard is missing or invalid.
    """
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fkat-inspect-") as scratch:
        for entry in read_index(directory / INDEX_NAME) if entries is None else entries:
            if len(found) >= count:
                break
            found += _samples(directory, entry, Path(scratch), count - len(found), allow_unsafe_types)
    return found


def summary_of_lines(files: Sequence[str]) -> DatasetSummary:
    """Return the summary of files of JSON lines, plain or compressed, which are its shards. Reads all of their text.

    Raises:
        ShardError: A file is missing, or cannot be read.
        ConfigurationError: A file is no text.
    """
    indices = [LineIndex.of(file, TextFile(file, {}).chunks(), _LONGEST_LINE_BYTES) for file in files]
    counts = [index.num_lines for index in indices]
    return DatasetSummary(
        ("JSON lines",),
        tuple(dict.fromkeys(TextFile(file, {}).compression() for file in files)),
        (),
        (),
        len(files),
        sum(counts),
        sum(index.num_bytes for index in indices),
        sum(Path(file).stat().st_size for file in files),
        min(counts, default=0),
        max(counts, default=0),
    )


def first_lines(files: Sequence[str], count: int) -> list[Any]:
    """Return the values of the first lines of files of JSON lines.

    Args:
        files: The files.
        count: Maximum number of lines.

    Raises:
        ShardError: A file is missing, or a line is damaged.
        ConfigurationError: A file is no text, or a line exceeds a limit.
    """
    lines = (
        parsed(file, line, offset, text)
        for file in files
        for line, (offset, text) in enumerate(lines_of(file, TextFile(file, {}).chunks(), _LONGEST_LINE_BYTES))
    )
    return list(islice(lines, count))


def _samples(directory: Path, entry: ShardEntry, scratch: Path, count: int, allow: bool) -> list[dict[str, Any]]:
    root = unpacked(directory, entry, scratch)
    shard = open_shard(root, entry, allow_unsafe_types=allow, writable=True)
    return shard.samples(range(min(count, entry.samples)))


_ROWS_AT_ONCE = 256
#: Damaged lines that are shown of one file.
_MOST_LINES = 20


@dataclass
class DatasetReport:
    """The result of a verification.

    Attributes:
        num_shards: Shards in the index.
        num_samples: Decoded samples.
        num_bytes: Size of the files that were compared with the index.
        num_hashes: Hashes that were compared with the index.
        problems: The first error of each damaged shard, or of the first damaged lines of each file.
        unread: The first error of each shard, or of lines, that is no damage: a value exceeds a limit of this machine.
        num_lines: Lines of JSON that are damaged, or unread.
    """

    num_shards: int = 0
    num_samples: int = 0
    num_bytes: int = 0
    num_hashes: int = 0
    problems: list[ShardError] = field(default_factory=list[ShardError])
    unread: list[ConfigurationError] = field(default_factory=list[ConfigurationError])
    num_lines: int = 0

    def add(self, error: ShardError | ConfigurationError) -> None:
        """Take an error into account."""
        if isinstance(error, ShardError):
            self.problems.append(error)
        else:
            self.unread.append(error)


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
        except (ShardError, ConfigurationError) as error:
            report.add(error)
    return report


def verify_lines(files: Sequence[str], *, progress: Callable[[int], None] | None = None) -> DatasetReport:
    """Parse each line of files of JSON lines, plain or compressed, and report the damaged ones.

    Args:
        files: The files. They are the shards of the report.
        progress: Called with the number of lines so far, from time to time.

    Raises:
        ShardNotFoundError: A file does not exist.
        OSError: A file cannot be read.
    """
    report = DatasetReport(num_shards=len(files))
    for file in files:
        num_before = report.num_lines
        try:
            for line, (offset, text) in enumerate(lines_of(file, TextFile(file, {}).chunks(), _LONGEST_LINE_BYTES)):
                report.num_bytes += len(text)
                try:
                    parsed(file, line, offset, text)
                except (ShardCorruptError, ConfigurationError) as error:
                    report.num_lines += 1
                    if report.num_lines - num_before <= _MOST_LINES:
                        report.add(error)
                else:
                    report.num_samples += 1
                if progress is not None and line % _ROWS_AT_ONCE == 0:
                    progress(report.num_samples)
        except ShardNotFoundError:
            raise
        except (ShardError, ConfigurationError) as error:
            report.add(error)
        if (num_more := report.num_lines - num_before - _MOST_LINES) > 0:
            report.add(ShardCorruptError(file, f"{num_more:,} more lines cannot be read"))
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
