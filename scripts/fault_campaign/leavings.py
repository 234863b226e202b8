"""Files that outlived a trainer."""

import re
from pathlib import Path

__all__ = ["files_left", "shared_memory_of"]

#: What the workers of a nested torch DataLoader keep, and cannot remove when they are killed; torchinductor's is made
#: when torch logs that its own handler of such a death has broken off one of its imports.
_TORCHS = re.compile(r"pymp-|torch_|listener-|torchinductor_")
#: The file by which Python's tempfile finds out whether a folder can be written to, in the instant before it is removed.
_PROBE = re.compile(r"[a-z0-9_]{8}")
_PROBE_BYTES = 4


def files_left(folder: Path) -> tuple[list[str], int]:
    """Return the files and folders in a folder for temporary files, and how many more are torch's and Python's."""
    paths = sorted(folder.iterdir())
    ours = [path.name for path in paths if not _TORCHS.match(path.name) and not _is_probe(path)]
    return ours, len(paths) - len(ours)


def _is_probe(path: Path) -> bool:
    return bool(_PROBE.fullmatch(path.name)) and path.is_file() and path.stat().st_size <= _PROBE_BYTES


def shared_memory_of(pids: set[int]) -> list[str]:
    """Remove what processes that are gone have left in /dev/shm; return its names, which torch gives."""
    names: list[str] = []
    for path in Path("/dev/shm").glob("torch_*"):  # noqa: S108 - where it would be
        if int(path.name.split("_")[1]) in pids:
            names.append(path.name)
            path.unlink(missing_ok=True)
    return names
