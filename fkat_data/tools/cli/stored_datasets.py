"""The datasets in a directory of this machine, with an index or without one."""

from pathlib import Path

from fkat_data.errors import ShardNotFoundError
from fkat_data.streaming.formats.entry import ShardEntry
from fkat_data.streaming.formats.verification import datasets_in
from fkat_data.streaming.reading.file_pattern import NO_DATASET
from fkat_data.streaming.reading.shard_source import sources_of
from fkat_data.streaming.reading.stream import Stream

__all__ = ["stored_datasets"]


def stored_datasets(location: Path) -> list[tuple[Path, list[ShardEntry] | None]]:
    """Return each dataset's directory and shards; None instead of the shards if the directory has an index.

    Args:
        location: The directory of a dataset or of its splits; or files that need no index, as a pattern.

    Raises:
        ShardNotFoundError: Neither an index nor such files exist.
        ShardError: Such a file cannot be read.
    """
    try:
        return [(directory, None) for directory in datasets_in(location)]
    except ShardNotFoundError as error:
        try:
            source = sources_of([Stream(local=str(location))])[0][0]
            return [(source.directory, source.read_index())]
        except ShardNotFoundError:
            if not location.is_dir():
                raise ShardNotFoundError(str(location), "no such directory, and no such files") from None
            raise ShardNotFoundError(error.shard, f"{NO_DATASET}; no subdirectory has an index") from None
