"""The log of a run's losses, by which two runs can be compared."""

import json
import os
from pathlib import Path


class LossLog:
    """Append each step's loss to a file as a line of JSON. JSON stores floats exactly, so equal lines mean equal bits.

    Each line is a single write, so a kill leaves complete lines, except perhaps the last.

    Args:
        path: The file. Lines after ``step`` are removed, because a resumed run writes these steps again.
        step: The number of finished steps.
    """

    def __init__(self, path: Path, step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._file.truncate(_length_up_to(path, step))

    def append(self, step: int, loss: float) -> None:
        """Write a step's loss."""
        self._file.write(json.dumps({"step": step, "loss": loss}).encode() + b"\n")

    def sync(self) -> None:
        """Sync the lines to disk, before a checkpoint that depends on them."""
        os.fsync(self._file.fileno())


def _length_up_to(path: Path, step: int) -> int:
    length = 0
    for line in path.read_bytes().splitlines(keepends=True)[:step]:
        if not line.endswith(b"\n"):
            break
        length += len(line)
    return length
