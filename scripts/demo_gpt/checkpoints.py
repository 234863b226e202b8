"""Checkpoints that are either complete or absent, whenever the process dies."""

import os
import re
from itertools import count
from pathlib import Path
from typing import Any

import torch


class Checkpoints:
    """The checkpoints of a run: files ``step-000100.pt`` in a folder.

    A file is written under a temporary name, synced to disk, and then renamed atomically. So a file with a matching
    name is a complete checkpoint, and a kill while writing leaves the earlier checkpoints unchanged.

    Args:
        folder: The folder of the checkpoints.
        keep: The number of latest checkpoints to keep, at least 1.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, step: int, content: dict[str, Any]) -> Path:
        """Write a checkpoint, then remove all but the latest ``keep``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:06d}.pt"
        partial = self.folder / f".{path.name}.partial"
        with partial.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(self.folder)
        for old in self._whole()[: -self.keep]:
            old.unlink()
        return path

    def latest(self) -> Path | None:
        """Return the latest complete checkpoint, or None."""
        whole = self._whole()
        return whole[-1] if whole else None

    def load(self, path: Path) -> dict[str, Any]:
        """Return a checkpoint's content, which may only be tensors and plain values."""
        return torch.load(path, weights_only=True)

    def set_aside(self, *others: Path) -> Path | None:
        """Move an earlier run into the first free folder ``earlier-1``, ``earlier-2`` … beside the checkpoints.

        Args:
            *others: Other files of the run, which move first: a kill in between leaves the checkpoints to the next call.

        Returns:
            The folder of the earlier run, in which it can be resumed; None if there is no complete checkpoint.
        """
        for path in self.folder.glob(".step-*.partial"):
            path.unlink()
        if not self._whole():
            return None
        numbers = (number for number in count(1) if not (self.folder.parent / f"earlier-{number}").exists())
        earlier = self.folder.parent / f"earlier-{next(numbers)}"
        earlier.mkdir()
        for path in (*filter(Path.exists, others), self.folder):
            path.rename(earlier / path.name)
        return earlier

    def _whole(self) -> list[Path]:
        names = re.compile(r"step-(\d+)\.pt")
        steps = {int(match[1]): path for path in self.folder.glob("*.pt") if (match := names.fullmatch(path.name))}
        return [steps[step] for step in sorted(steps)]


def _sync_folder(folder: Path) -> None:
    # The new name is part of the folder, so the folder must be synced too.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
