"""The losses of a run, a line of JSON a step: what two runs are compared by."""

import json
import os
from pathlib import Path


class LossLog:
    """Appends each step's loss to a file; a float's text in JSON is exact, so equal lines mean equal bits.

    A line is one write, so a kill leaves whole lines, or at worst a piece of the last one.

    Args:
        path: The file. What it holds beyond ``step`` is cut off: a resumed run writes those steps again.
        step: The steps that the run has behind it.
    """

    def __init__(self, path: Path, step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._file.truncate(_length_up_to(path, step))

    def append(self, step: int, loss: float) -> None:
        """Write a step's loss."""
        self._file.write(json.dumps({"step": step, "loss": loss}).encode() + b"\n")

    def sync(self) -> None:
        """Bring the lines to the disk: before a checkpoint that counts on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _length_up_to(path: Path, step: int) -> int:
    length = 0
    for line in path.read_bytes().splitlines(keepends=True)[:step]:
        if not line.endswith(b"\n"):
            break
        length += len(line)
    return length
