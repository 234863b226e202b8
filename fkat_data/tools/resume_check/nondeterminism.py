"""Pin sources of nondeterminism, to find out which of them makes data differ from run to run.

If two runs differ, but agree while one source is pinned, that source is the cause. Pinning replaces functions of
modules in this process, so it cannot reach a function that a module imported by name (``from time import time``).
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


class NondeterminismSource(StrEnum):
    """What a dataset may draw from besides the generators that the loader seeds."""

    OWN_GENERATOR = "generators made without a seed (np.random.default_rng(), random.Random())"
    CLOCK = "the clock (time.time() and similar)"
    SYSTEM_ENTROPY = "the system's random bytes (os.urandom(), uuid.uuid4(), secrets)"


@contextmanager
def pinned(source: NondeterminismSource) -> Generator[None]:
    """Make a source return the same values in every run during the context, in this process only."""
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, replacement in _REPLACEMENTS[source]():
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
    # The clocks advance with each call, so that code that waits for a time does not hang.
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


_REPLACEMENTS: Final[dict[NondeterminismSource, Callable[[], list[tuple[Any, str, Any]]]]] = {
    NondeterminismSource.OWN_GENERATOR: _seeded_generators,
    NondeterminismSource.CLOCK: _counting_clocks,
    NondeterminismSource.SYSTEM_ENTROPY: _counted_bytes,
}
