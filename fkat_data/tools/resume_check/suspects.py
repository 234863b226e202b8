"""What makes data differ from run to run, and a way to hold it still: an experiment tells which one it is.

Each is replaced for the length of a run in this process. Two runs that differ, and agree while one of them is held
still, have named their cause. What a module took by name before (``from time import time``) is out of reach.
"""

import hashlib
import os
import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum
from itertools import count
from typing import Any, Final

import numpy as np

__all__ = ["Suspect", "held_still"]


class Suspect(StrEnum):
    """What a dataset may draw from besides the generators that the loader seeds."""

    OWN_GENERATOR = "generators that are made without a seed: np.random.default_rng(), random.Random()"
    CLOCK = "the clock: time.time() and its like"
    SYSTEM_ENTROPY = "the system's random bytes: os.urandom(), uuid.uuid4(), secrets"


@contextmanager
def held_still(suspect: Suspect) -> Generator[None]:
    """Make what is suspected give the same in each run, while the context lasts; this thread's process only."""
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, replacement in _REPLACEMENTS[suspect]():
            replaced.append((owner, name, getattr(owner, name)))
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in replaced:
            setattr(owner, name, original)


def _seeded_generators() -> list[tuple[Any, str, Any]]:
    seeds = count()
    default_rng = np.random.default_rng

    def seeded_default_rng(seed: Any = None) -> Any:
        return default_rng(next(seeds) if seed is None else seed)

    class SeededRandom(random.Random):
        def __init__(self, x: Any = None) -> None:
            super().__init__(next(seeds) if x is None else x)

    class SeededRandomState(np.random.RandomState):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(next(seeds) if seed is None else seed)

    return [
        (np.random, "default_rng", seeded_default_rng),
        (np.random, "RandomState", SeededRandomState),
        (random, "Random", SeededRandom),
    ]


def _counting_clocks() -> list[tuple[Any, str, Any]]:
    # They count their calls, and do not stand: code that waits for a time to come must not hang.
    names = ("time", "perf_counter", "monotonic", "process_time")
    clocks = [(time, name, _clock(count(1))) for name in names]
    return clocks + [(time, f"{name}_ns", _clock_ns(count(1))) for name in names]


def _clock(ticks: "count[int]") -> Callable[[], float]:
    return lambda: 1e9 + next(ticks) * 1e-3


def _clock_ns(ticks: "count[int]") -> Callable[[], int]:
    return lambda: 10**18 + next(ticks) * 10**6


def _counted_bytes() -> list[tuple[Any, str, Any]]:
    calls = count()

    def urandom(size: int) -> bytes:
        return hashlib.shake_128(str(next(calls)).encode()).digest(size)

    return [(os, "urandom", urandom), (random, "_urandom", urandom)]


_REPLACEMENTS: Final[dict[Suspect, Callable[[], list[tuple[Any, str, Any]]]]] = {
    Suspect.OWN_GENERATOR: _seeded_generators,
    Suspect.CLOCK: _counting_clocks,
    Suspect.SYSTEM_ENTROPY: _counted_bytes,
}
