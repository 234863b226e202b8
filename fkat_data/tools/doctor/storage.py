"""Whether a directory is a good place for a cache of shards."""

import os
import tempfile
from pathlib import Path

import psutil

from fkat_data.quantities import readable_bytes
from fkat_data.streaming.cache.system import file_system_of, is_node_local
from fkat_data.tools.doctor.finding import Finding, Level

_MEMORY_FILE_SYSTEMS = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}
_LITTLE_ROOM_BYTES = 1 << 30


def storage_findings(directory: Path, wanted_bytes: int | None = None) -> list[Finding]:
    """Return findings about a directory's file system and its room.

    Args:
        directory: Need not exist: what counts is the nearest one above it that does.
        wanted_bytes: What a run would keep there; None: not known.
    """
    subject = f"cache {directory}"
    place = directory
    while not os.path.exists(place) and place != place.parent:  # noqa: PTH110 - pathlib raises below a closed folder
        place = place.parent
    if not place.is_dir():
        return [Finding(subject, Level.WRONG, f"{place} is not a directory", "Choose another `local`.")]
    if not os.access(place, os.W_OK | os.X_OK):
        change = "Choose a directory that this user may write to. One with every shard in it may stay read-only."
        return [Finding(subject, Level.ADVICE, "cannot be written to", change)]
    findings = [_of_file_system(subject, place), _of_room(subject, place, wanted_bytes)]
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        findings.append(Finding(subject, Level.WRONG, f"no file can be made: {error}", "Choose another `local`."))
    return findings


def _of_file_system(subject: str, place: Path) -> Finding:
    kind = file_system_of(place)
    if kind in _MEMORY_FILE_SYSTEMS:
        change = "Use a disk: shards there take memory from the loader and the trainer."
        return Finding(subject, Level.ADVICE, f"is in memory ({_MEMORY_FILE_SYSTEMS[kind]})", change)
    if not is_node_local(kind):
        change = "Use a disk of the node's own: a shared file system is slower, and nodes then share one limit."
        return Finding(subject, Level.ADVICE, f"is on a file system that machines may share ({kind:#x})", change)
    return Finding(subject, Level.OK, "is on a file system of this machine alone")


def _of_room(subject: str, place: Path, wanted_bytes: int | None) -> Finding:
    free_bytes = psutil.disk_usage(str(place)).free
    found = f"{readable_bytes(free_bytes)} free"
    if wanted_bytes is not None and wanted_bytes > free_bytes:
        change = f"Set cache_limit below {readable_bytes(free_bytes)}, or choose a larger disk."
        return Finding(subject, Level.WRONG, f"{found}; the run keeps {readable_bytes(wanted_bytes)}", change)
    if free_bytes < _LITTLE_ROOM_BYTES:
        return Finding(subject, Level.ADVICE, found, "Free some space, or set cache_limit.")
    kept = "" if wanted_bytes is None else f"; the run keeps at most {readable_bytes(wanted_bytes)}"
    return Finding(subject, Level.OK, found + kept)
