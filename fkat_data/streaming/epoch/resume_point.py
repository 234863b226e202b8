"""Where an epoch starts or resumes, and a shared page that keeps it for the trainer and its DataLoader's workers.

A worker of torch's DataLoader has a copy of the dataset, and does not tell the trainer when it begins an epoch.
Therefore the resume point is in a page of anonymous memory. Processes inherit it, or receive its descriptor when
they start. It has no name, and the kernel frees it when the last process ends.
"""

import fcntl
import mmap
import os
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.order.partition import Grid

__all__ = ["ResumePoint", "SharedResumePoint"]

_NONE = -1


@dataclass(frozen=True)
class ResumePoint:
    """Where an epoch starts or resumes. A resume point is settled when no field is None.

    Attributes:
        epoch: Index of the epoch, from 0.
        sample_in_epoch: Samples of the epoch that all ranks together have read.
        num_canonical_nodes: Parts of the order; None if not settled yet.
        shuffle_seed: Seed of the shuffle; None for the dataset's.
        initial_physical_nodes: Nodes of the run that began the epoch; None if not settled yet.
        initial_grid: Grid that the epoch began in; None if that is the present one, or does not matter.
    """

    epoch: int = 0
    sample_in_epoch: int = 0
    num_canonical_nodes: int | None = None
    shuffle_seed: int | None = None
    initial_physical_nodes: int | None = None
    initial_grid: Grid | None = None


# The page: the present iteration's key, round and flag, where it began, and where the next iteration begins.
_KEY, _ROUND, _HAS_BEGUN = 0, 1, 2
_CURRENT, _NEXT = slice(3, 11), slice(11, 19)
_NUM_WORDS = 19


class SharedResumePoint:
    """The resume points of the present iteration and of the next one, shared by all processes of a dataset."""

    def __init__(self) -> None:
        self._open(os.memfd_create("fkat_data resume point", os.MFD_CLOEXEC))
        self._words[_CURRENT] = self._words[_NEXT] = _packed(ResumePoint())

    def next(self) -> ResumePoint:
        """Return where the next iteration begins."""
        with self._locked():
            return _unpacked(self._words[_NEXT])

    def current(self) -> ResumePoint | None:
        """Return where the present iteration began; None before the first iteration and after ``go_to``."""
        with self._locked():
            return _unpacked(self._words[_CURRENT]) if self._words[_HAS_BEGUN] else None

    def go_to(self, point: ResumePoint) -> None:
        """Make the next iteration begin at a resume point."""
        with self._locked():
            self._words[_NEXT] = _packed(point)
            self._words[_HAS_BEGUN] = 0

    def begin(self, key: int = 0, round_index: int = 0) -> ResumePoint:
        """Begin an iteration, or join the one that another worker has begun, and return where it began.

        Args:
            key: A number that the workers of one DataLoader share; 0 for the trainer, which iterates alone.
            round_index: How many iterations the worker has begun before with this key.
        """
        with self._locked():
            words = self._words
            if key and (words[_KEY], words[_ROUND]) == (key, round_index) and words[_HAS_BEGUN]:
                return _unpacked(words[_CURRENT])
            point = _unpacked(words[_NEXT])
            words[_CURRENT] = words[_NEXT]
            words[_KEY], words[_ROUND], words[_HAS_BEGUN] = key, round_index, 1
            # Later epochs keep the settled fields, in every process. They begin in the present grid.
            following = ResumePoint(
                point.epoch + 1, 0, point.num_canonical_nodes, point.shuffle_seed, point.initial_physical_nodes
            )
            words[_NEXT] = _packed(following)
            return point

    def _open(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False
        os.ftruncate(descriptor, mmap.PAGESIZE)
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._words: npt.NDArray[np.int64] = np.frombuffer(self._page, np.int64, _NUM_WORDS)

    @contextmanager
    def _locked(self) -> Generator[None]:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            # multiprocessing is starting a process: share the page with it.
            return {"page": DupFd(self._descriptor)}
        with self._locked():
            return {"words": self._words.tolist()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "page" in state:
            self._open(state["page"].detach())
        else:
            self._open(os.memfd_create("fkat_data resume point", os.MFD_CLOEXEC))
            self._words[:] = state["words"]


def _packed(point: ResumePoint) -> list[int]:
    grid = (None, None, None) if point.initial_grid is None else astuple(point.initial_grid)
    settled = (point.num_canonical_nodes, point.shuffle_seed, point.initial_physical_nodes)
    values = (point.epoch, point.sample_in_epoch, *settled, *grid)
    return [_NONE if value is None else value for value in values]


def _unpacked(words: npt.NDArray[np.int64]) -> ResumePoint:
    epoch, sample_in_epoch, *rest = words.tolist()
    nodes, seed, first = (None if value == _NONE else value for value in rest[:3])
    return ResumePoint(epoch, sample_in_epoch, nodes, seed, first, None if rest[3] == _NONE else Grid(*rest[3:]))
