"""How far the epochs of a dataset are: one page that the trainer and its DataLoader's workers look at.

A worker that torch's DataLoader starts has a copy of the dataset, and the trainer does not hear when it begins an
epoch. So the count of epochs stands in a page of anonymous memory, which processes inherit or are handed when they
are started. It has no name, and is gone with the last of them.
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

__all__ = ["ResumePoint", "SharedPlace"]

_NONE = -1


@dataclass(frozen=True)
class ResumePoint:
    """Where an epoch begins or goes on.

    Attributes:
        epoch: The epoch.
        sample_in_epoch: Samples that have been read of it, over all ranks.
        num_canonical_nodes: Parts that the order is made of; None: not settled yet.
        shuffle_seed: The shuffle's seed; None: the dataset's own.
        initial_physical_nodes: Nodes of the run that began; None: not settled yet.
    """

    epoch: int = 0
    sample_in_epoch: int = 0
    num_canonical_nodes: int | None = None
    shuffle_seed: int | None = None
    initial_physical_nodes: int | None = None


# The page: what iterates now, the place where it began, the place where the next iteration begins.
_KEY, _ROUND, _HAS_BEGUN = 0, 1, 2
_CURRENT, _NEXT = slice(3, 8), slice(8, 13)
_NUM_WORDS = 13


class SharedPlace:
    """The place of the present iteration and of the next one, for every process that has a part in them."""

    def __init__(self) -> None:
        self._open(os.memfd_create("fkat_data place", os.MFD_CLOEXEC))
        self._words[_CURRENT] = self._words[_NEXT] = _packed(ResumePoint())

    def next(self) -> ResumePoint:
        """Return where the next iteration begins."""
        with self._locked():
            return _unpacked(self._words[_NEXT])

    def current(self) -> ResumePoint | None:
        """Return where the present iteration began; None before the first one and after ``go_to``."""
        with self._locked():
            return _unpacked(self._words[_CURRENT]) if self._words[_HAS_BEGUN] else None

    def go_to(self, place: ResumePoint) -> None:
        """Let the next iteration begin at a place."""
        with self._locked():
            self._words[_NEXT] = _packed(place)
            self._words[_HAS_BEGUN] = 0

    def begin(self, key: int = 0, round_index: int = 0) -> ResumePoint:
        """Begin an iteration, or take part in one that another worker has begun; return its place.

        Args:
            key: What workers of one DataLoader have in common; 0 for the trainer, which iterates alone.
            round_index: How many iterations under this key the worker has had before.
        """
        with self._locked():
            words = self._words
            if key and (words[_KEY], words[_ROUND]) == (key, round_index) and words[_HAS_BEGUN]:
                return _unpacked(words[_CURRENT])
            place = _unpacked(words[_NEXT])
            words[_CURRENT] = words[_NEXT]
            words[_KEY], words[_ROUND], words[_HAS_BEGUN] = key, round_index, 1
            # What was settled holds in all epochs that follow, in whichever process they are read.
            following = ResumePoint(
                place.epoch + 1, 0, place.num_canonical_nodes, place.shuffle_seed, place.initial_physical_nodes
            )
            words[_NEXT] = _packed(following)
            return place

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
            # On its way to a process that multiprocessing is starting: the page itself goes along.
            return {"page": DupFd(self._descriptor)}
        with self._locked():
            return {"words": self._words.tolist()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "page" in state:
            self._open(state["page"].detach())
        else:
            self._open(os.memfd_create("fkat_data place", os.MFD_CLOEXEC))
            self._words[:] = state["words"]


def _packed(place: ResumePoint) -> list[int]:
    return [_NONE if value is None else value for value in astuple(place)]


def _unpacked(words: npt.NDArray[np.int64]) -> ResumePoint:
    epoch, sample_in_epoch, *settled = words.tolist()
    return ResumePoint(epoch, sample_in_epoch, *(None if value == _NONE else value for value in settled))
