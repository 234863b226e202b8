"""Decode the row groups of a Parquet file by pyarrow: whole, or in batches of rows, for every reader."""

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from fkat_data.errors import ConfigurationError, FkatDataError, ShardCorruptError, ShardError, ShardNotFoundError
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import required

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_parquet = required("pyarrow.parquet", "parquet")

#: What a file of this kind begins with: `PAR1`.
_MAGIC_BYTES = 4
#: What pyarrow says, by another class of error, of what it does not read: a schema that Presto wrote, more than 2 GiB, and LZO.
_UNSUPPORTED = re.compile("Map keys must be annotated|offset overflow|LZO compression is supported")


def leaves_of(file: Any, names: Collection[str]) -> list[int]:
    """Return the numbers of the column chunks that hold some columns.

    Names are ambiguous to pyarrow: "a.b" is a column, and also the field "b" of a column "a".

    Args:
        file: pyarrow's open file.
        names: The columns.
    """
    paths: list[list[str]] = file.reader.column_paths
    return [index for index, path in enumerate(paths) if path[0] in names]


def row_group(file: Any, group_index: int, leaves: list[int]) -> Any:
    """Return columns of a row group as a table.

    Args:
        file: pyarrow's open file.
        group_index: The row group.
        leaves: The numbers of the column chunks.

    Raises:
        ArrowException: pyarrow cannot decode it.
        OSError: The file cannot be read, or it is damaged.
    """
    try:
        # One thread, because a worker shares the machine with the trainer.
        return file.reader.read_row_group(group_index, column_indices=leaves, use_threads=False)
    except genuine(_arrow.ArrowNotImplementedError):
        # pyarrow makes no nested column of more than 2 GiB of texts or bytes at once.
        num_rows: int = file.metadata.row_group(group_index).num_rows
        batches = list(row_batches(file, group_index, leaves, max(1, num_rows // 2)))
    return _arrow.Table.from_batches(batches)


def row_batches(file: Any, group_index: int, leaves: list[int], rows_at_once: int) -> Iterator[Any]:
    """Yield columns of a row group as record batches, of fewer rows where a nested column would exceed 2 GiB in one.

    Args:
        file: pyarrow's open file.
        group_index: The row group.
        leaves: The numbers of the column chunks.
        rows_at_once: Rows of a batch.

    Raises:
        ArrowException: pyarrow cannot decode it.
        OSError: The file cannot be read, or it is damaged.
    """
    num_rows = 0  # yielded so far
    while True:
        num_passed = 0
        try:
            for batch in file.reader.iter_batches(rows_at_once, [group_index], leaves, use_threads=False):
                passed = min(batch.num_rows, max(0, num_rows - num_passed))
                num_passed += batch.num_rows
                if passed < batch.num_rows:
                    num_rows = num_passed
                    yield batch.slice(passed)
        except genuine(_arrow.ArrowNotImplementedError):
            rows_at_once = min(rows_at_once, file.metadata.row_group(group_index).num_rows) // 2
            if not rows_at_once:
                raise
        else:
            return


def int96_in_seconds(
    source: Callable[[], Any], metadata: Any, group_index: int, names: Collection[str]
) -> dict[str, Any]:
    """Return the columns of a row group that have times of 96 bits, these as seconds: pyarrow wraps nanoseconds.

    Args:
        source: Makes a file for pyarrow.
        metadata: What the file's footer says.
        group_index: The row group.
        names: The columns.
    """
    if not names:
        return {}
    file = _parquet.ParquetFile(source(), metadata=metadata, coerce_int96_timestamp_unit="s")
    table = row_group(file, group_index, leaves_of(file, names))
    return {name: table.column(name) for name in names}


def unreadable(path: str, location: str, error: Exception) -> FkatDataError:
    """Return what a reader raises for an error of pyarrow's.

    A file of a kind that pyarrow does not read is not damaged, nor is one that the disk or the memory failed for.

    Args:
        path: The file.
        location: What of it cannot be read, or that it cannot.
        error: The error.
    """
    if re.search("encrypt|decrypt", str(error), re.IGNORECASE):
        return encrypted(path)
    if isinstance(error, FileNotFoundError):
        return ShardNotFoundError(path, "no such file")
    if isinstance(error, MemoryError):
        return ShardError(path, f"{location}: no memory ({error}); fewer columns, or smaller row groups, take less")
    # For some damage, pyarrow raises a bare OSError without errno.
    if isinstance(error, OSError) and error.errno is not None:
        return ShardError(path, f"{location}: {error}")
    if isinstance(error, (_arrow.ArrowNotImplementedError, _arrow.ArrowCapacityError)) or _UNSUPPORTED.search(
        str(error)
    ):
        return ConfigurationError("file", path, f"what pyarrow {_arrow.__version__} reads; {location}: {error}")
    return ShardCorruptError(path, f"{location}: {error}", location)


def check_own_columns(path: str, metadata: Any, footer_start: int) -> None:
    """Check that a file has its columns itself, and is no summary of a folder's files.

    pyarrow would say in which file they are, and ends the process where it is asked of a damaged footer.

    Args:
        path: The file.
        metadata: What its footer says.
        footer_start: Where the footer begins in the file.

    Raises:
        ConfigurationError: They are in other files.
    """
    if metadata.num_rows and metadata.num_columns and footer_start <= _MAGIC_BYTES:
        expected = (
            "a Parquet file with columns of its own; it is a summary of other files, and has a footer alone: read those"
        )
        raise ConfigurationError("file", path, expected)


def encrypted(path: str) -> ConfigurationError:
    """Return the error of a file that is encrypted."""
    return ConfigurationError("file", path, "a Parquet file without encryption, which fkat_data does not read")
