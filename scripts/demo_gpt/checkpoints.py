"""Checkpoints that are whole or not there, whenever the process dies."""

import os
import re
from pathlib import Path
from typing import Any

import torch


class Checkpoints:
    """The checkpoints of a run: files ``step-000100.pt`` in a folder.

    A file is written under another name, brought to the disk, and only then gets its own name, at once. So a name
    that matches is a whole checkpoint, and a kill in between leaves those before it as they were.

    Args:
        folder: Where they are.
        keep: How many of the latest stay, at least 1.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, step: int, content: dict[str, Any]) -> Path:
        """Write a checkpoint, then remove those that are older than the latest ``keep``."""
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
        """Return the latest whole checkpoint, or None."""
        whole = self._whole()
        return whole[-1] if whole else None

    def load(self, path: Path) -> dict[str, Any]:
        """Return a checkpoint's content: tensors and plain values only, as nothing else is let in."""
        return torch.load(path, weights_only=True)

    def discard(self) -> int:
        """Remove all checkpoints, those half written included, and return how many were whole."""
        whole = self._whole()
        for path in (*whole, *self.folder.glob(".step-*.partial")):
            path.unlink()
        return len(whole)

    def _whole(self) -> list[Path]:
        names = re.compile(r"step-(\d+)\.pt")
        steps = {int(match[1]): path for path in self.folder.glob("*.pt") if (match := names.fullmatch(path.name))}
        return [steps[step] for step in sorted(steps)]


def _sync_folder(folder: Path) -> None:
    # The new name is the folder's content: it too has to reach the disk.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
