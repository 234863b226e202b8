"""Histograms of durations, each counted in one of few buckets: any number of durations in constant memory.

Sixteen buckets for each doubling, from a microsecond to a quarter of an hour: a quantile is found to 2.2 %.
"""

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeAlias

import numpy as np

from fkat_data.errors.wording import readable_duration

SHORTEST_S: float = 2.0**-20
"""Shorter durations, 0 included, count as this one."""

LONGEST_S: float = 2.0**10
"""Longer durations count as this one."""

BUCKETS_PER_DOUBLING = 16
"""Buckets of durations from one to twice as long."""

_LOWEST = 20 * BUCKETS_PER_DOUBLING
NUM_BUCKETS: int = 30 * BUCKETS_PER_DOUBLING
"""Bucket ``b`` holds what lasts from ``2 ** (b / 16 - 20)`` seconds to less than ``2 ** ((b + 1) / 16 - 20)``."""

_GROWTH = 2.0 ** (1 / BUCKETS_PER_DOUBLING)
RELATIVE_ERROR: float = (_GROWTH - 1) / (_GROWTH + 1)
"""How far a quantile may be from the duration that it stands for: 2.2 % of it."""

# What stands for all durations of a bucket: as far from its two ends, in relation to each.
_MIDDLES_S = SHORTEST_S * _GROWTH ** np.arange(NUM_BUCKETS) * (2 * _GROWTH / (_GROWTH + 1))

# What a report says of them.
_SAID = {"median": 0.5, "95 %": 0.95, "99 %": 0.99, "longest": 1.0}

_Counts: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
_NO_COUNTS: _Counts = np.zeros(NUM_BUCKETS)

DurationCounts: TypeAlias = "memoryview[float] | array[float]"
"""How many durations are in each bucket."""

_log2 = math.log2


def bucket_of(duration_s: float) -> int:
    """Return the bucket of a duration."""
    if duration_s <= SHORTEST_S:
        return 0
    bucket = int(BUCKETS_PER_DOUBLING * _log2(duration_s) + _LOWEST)
    return bucket if bucket < NUM_BUCKETS else NUM_BUCKETS - 1


class Durations:
    """A histogram of durations; a snapshot, which does not change.

    Args:
        counts: How many durations are in each bucket; None: none.
        num_zero: Durations of 0.
    """

    __slots__ = ("_counts", "num_zero")

    def __init__(self, counts: _Counts | None = None, num_zero: int = 0) -> None:
        self._counts: _Counts = _NO_COUNTS if counts is None else counts
        self.num_zero: int = num_zero
        """Durations of 0: nothing had to be waited for."""

    @classmethod
    def snapshot(cls, counts: DurationCounts, num: int | None = None) -> Self:
        """Return the present counts.

        Args:
            counts: How many durations are in each bucket.
            num: How many there are in all, of which the rest lasted 0; None: those in the buckets.
        """
        present = np.frombuffer(counts.tobytes())
        return cls(present, 0 if num is None else max(0, num - int(present.sum())))

    @property
    def num(self) -> int:
        """The number of durations."""
        return self.num_zero + int(self._counts.sum())

    @property
    def total_s(self) -> float:
        """All of them together, in seconds, within ``RELATIVE_ERROR``."""
        return float(self._counts @ _MIDDLES_S)

    @property
    def p50_s(self) -> float:
        """The median, in seconds."""
        return self.quantiles_s(0.5)[0]

    @property
    def p95_s(self) -> float:
        """One in twenty takes longer, in seconds."""
        return self.quantiles_s(0.95)[0]

    @property
    def p99_s(self) -> float:
        """One in a hundred takes longer, in seconds."""
        return self.quantiles_s(0.99)[0]

    @property
    def longest_s(self) -> float:
        """None takes longer, in seconds."""
        return self.quantiles_s(1.0)[0]

    def quantiles_s(self, *shares: float) -> list[float]:
        """Return quantiles in seconds: for each share, the shortest duration that so large a share does not exceed.

        Each is within ``RELATIVE_ERROR`` of it, if that is between ``SHORTEST_S`` and ``LONGEST_S``; 0 where there are
        no durations.

        Args:
            shares: From 0 to 1.
        """
        sums = np.cumsum(self._counts) + self.num_zero
        # 0.07 * 100 is a little more than 7.
        ranks = [max(1, math.ceil(share * float(sums[-1]) - 1e-6)) for share in shares]
        buckets = np.searchsorted(sums, ranks)
        return [
            0.0 if rank <= self.num_zero or bucket >= NUM_BUCKETS else float(_MIDDLES_S[bucket])
            for rank, bucket in zip(ranks, buckets, strict=True)
        ]

    def readable(self) -> dict[str, str]:
        """Return what a report says of them: the median, two quantiles and the longest, as texts by their names."""
        found_s = self.quantiles_s(*_SAID.values())
        return {
            name: readable_duration(value_s) if value_s else "none"
            for name, value_s in zip(_SAID, found_s, strict=True)
        }

    def num_up_to(self, doublings: Iterable[int]) -> list[int]:
        """Return how many durations are shorter than ``SHORTEST_S``, doubled each of these numbers of times, from 1."""
        sums = [self.num_zero, *(np.cumsum(self._counts) + self.num_zero)]
        return [int(sums[number * BUCKETS_PER_DOUBLING]) for number in doublings]

    def as_dict(self) -> dict[str, int]:
        """Return the buckets that are not empty, for JSON."""
        found = {str(bucket): int(self._counts[bucket]) for bucket in np.flatnonzero(self._counts)}
        return {"0 s": self.num_zero, **found}

    @classmethod
    def of(cls, counts: Mapping[str, Any]) -> Self:
        """Return what ``as_dict`` was called on."""
        numbers = array("d", bytes(8 * NUM_BUCKETS))
        for bucket, count in counts.items():
            if bucket != "0 s":
                numbers[int(bucket)] = count
        return cls.snapshot(numbers, int(sum(counts.values())))

    def __add__(self, other: "Durations") -> Self:
        return type(self)(self._counts + other._counts, self.num_zero + other.num_zero)

    def __sub__(self, earlier: "Durations") -> Self:
        return type(self)(self._counts - earlier._counts, self.num_zero - earlier.num_zero)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Durations) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return ", ".join(f"{name} {text}" for name, text in self.readable().items())

    def __repr__(self) -> str:
        p50_s, p95_s, p99_s = self.quantiles_s(0.5, 0.95, 0.99)
        return f"{type(self).__name__}(num={self.num}, p50_s={p50_s:.3g}, p95_s={p95_s:.3g}, p99_s={p99_s:.3g})"

    def _key(self) -> tuple[int, bytes]:
        return self.num_zero, self._counts.tobytes()


def added_durations(*several: Mapping[str, Durations]) -> dict[str, Durations]:
    """Return durations that have names, added up for each name."""
    found: dict[str, Durations] = {}
    for name, durations in (item for each in several for item in each.items()):
        found[name] = found.get(name, Durations()) + durations
    return found
