"""The files of a shard as they are read, wherever it is stored compressed."""

from pathlib import Path

from fkat_data.streaming.formats.compression import decompress_file
from fkat_data.streaming.formats.entry import ShardEntry

__all__ = ["unpacked"]


def unpacked(directory: Path, entry: ShardEntry, scratch: Path) -> Path:
    """Return the directory that has a shard's raw files: ``directory``, or else ``scratch`` once they are made there.

    Args:
        directory: The dataset's directory.
        entry: The shard.
        scratch: A directory for files that are made.

    Raises:
        ShardNotFoundError: Neither the raw file nor the compressed one is there.
        ShardCorruptError: A compressed file makes no sense.
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
