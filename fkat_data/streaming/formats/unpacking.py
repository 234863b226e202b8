"""The uncompressed files of a shard, decompressed if need be."""

from pathlib import Path

from fkat_data.streaming.formats.compression import decompress_file
from fkat_data.streaming.formats.entry import ShardEntry


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
