"""Files that a trainer left behind."""

import re
from pathlib import Path

#: Files of the workers of a nested torch DataLoader, which killed ones cannot remove. torch makes torchinductor's when
#: it logs that its handler of such a death has interrupted one of its imports.
_TORCHS = re.compile(r"pymp-|torch_|listener-|torchinductor_")
#: The file with which Python's tempfile checks that a folder is writable; a kill may come before its removal.
_PROBE = re.compile(r"[a-z0-9_]{8}")
_PROBE_BYTES = 4


def files_left(folder: Path) -> tuple[list[str], int]:
    """Return what the loader left in a folder for temporary files, and how many entries torch and Python left."""
    paths = sorted(folder.iterdir())
    ours = [path.name for path in paths if not _TORCHS.match(path.name) and not _is_probe(path)]
    return ours, len(paths) - len(ours)


def _is_probe(path: Path) -> bool:
    return bool(_PROBE.fullmatch(path.name)) and path.is_file() and path.stat().st_size <= _PROBE_BYTES


def shared_memory_of(pids: set[int]) -> list[str]:
    """Remove the files that torch left in /dev/shm for dead processes; return their names."""
    names: list[str] = []
    for path in Path("/dev/shm").glob("torch_*"):  # noqa: S108 - where torch makes them
        if int(path.name.split("_")[1]) in pids:
            names.append(path.name)
            path.unlink(missing_ok=True)
    return names
