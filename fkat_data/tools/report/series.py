"""Compute what the plots show from a traced run: shares over time, and distributions of durations."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fkat_data.tools.report.traced_run import Sample, Span, TracedRun, Track

_NUM_BARS = 36


class Distribution(NamedTuple):
    """How durations are distributed.

    Attributes:
        edges_s: Bounds of the bars, evenly spaced on a logarithmic scale.
        counts: The number of durations in each bar.
        quantiles_s: The median, the 95th and 99th percentiles, and the largest.
    """

    edges_s: list[float]
    counts: list[int]
    quantiles_s: tuple[float, float, float, float]


def shares(samples: Sequence[Sample], names: Sequence[str], edges_s: Sequence[float]) -> dict[str, list[float]]:
    """Return for each name its share of each interval of time. Several workers add up, so a share can exceed 1.

    Args:
        samples: Seconds spent so far, in the order of time.
        names: The counters to return.
        edges_s: Bounds of the intervals.
    """
    if not samples:
        return {name: [0.0] * (len(edges_s) - 1) for name in names}
    at_s = [sample.at_s for sample in samples]
    widths_s = np.diff(edges_s)
    found: dict[str, list[float]] = {}
    for name in names:
        spent_s = np.interp(edges_s, at_s, [sample.values.get(name, 0.0) for sample in samples])
        found[name] = np.clip(np.diff(spent_s) / widths_s, 0.0, None).tolist()
    return found


def durations_s(tracks: Sequence[Track], name: str) -> list[float]:
    """Return the durations of all spans with this name."""
    return [span.duration_s for track in tracks for span in track.spans if span.name == name]


def distribution(values_s: Sequence[float]) -> Distribution | None:
    """Return the distribution of durations on a logarithmic scale, or None if there are none."""
    if not values_s:
        return None
    values = np.maximum(np.asarray(values_s), 1e-7)
    low, high = np.log10(values.min()), np.log10(values.max())
    middle = (low + high) / 2
    # At least a decade wide, so that nearly equal durations form one bar, not a wall of noise.
    half = max((high - low) / 2, 0.5) * 1.0001
    edges = [10.0 ** float(middle - half + 2 * half * number / _NUM_BARS) for number in range(_NUM_BARS + 1)]
    counts, _ = np.histogram(values, edges)
    median, p95, p99 = np.quantile(values, [0.5, 0.95, 0.99])
    quantiles = (float(median), float(p95), float(p99), float(values.max()))
    return Distribution(edges, [int(count) for count in counts], quantiles)


def columns(spans: Sequence[Span], end_s: float, num_columns: int) -> list[tuple[str, int, int]]:
    """Return the name that took most time in each column, as runs of columns: (name, first column, num columns).

    Of nested spans, the inner ones count. A column without spans has the name "".
    """
    names = sorted({span.name for span in spans})
    if not names or end_s <= 0:
        return []
    width_s = end_s / num_columns
    spent_s = np.zeros((len(names), num_columns))
    for span in spans:
        number = names.index(span.name)
        first = max(0, min(int(span.began_s / width_s), num_columns - 1))
        last = min(int(span.ended_s / width_s), num_columns - 1)
        for column in range(first, last + 1):
            start_s = max(span.began_s, column * width_s)
            spent_s[number, column] += max(0.0, min(span.ended_s, (column + 1) * width_s) - start_s)
    if "next" in names and "wait" in names:
        spent_s[names.index("next")] -= spent_s[names.index("wait")]
    best = spent_s.argmax(axis=0)
    best[spent_s.max(axis=0) < 0.02 * width_s] = -1
    runs: list[tuple[str, int, int]] = []
    for column in range(num_columns):
        name = names[int(best[column])] if best[column] >= 0 else ""
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((name, column, 1))
    return runs


def excerpt(run: TracedRun, num_microbatches: int) -> tuple[float, float]:
    """Return the bounds of an interval near the run's middle that delivers ``num_microbatches``."""
    ends_s = [span.ended_s for track in run.tracks if track.is_trainer for span in track.spans if span.name == "next"]
    if len(ends_s) < 2:
        return 0.0, run.duration_s
    first = max(0, (len(ends_s) - num_microbatches) // 2)
    last = min(len(ends_s) - 1, first + num_microbatches)
    return ends_s[first], ends_s[last]
