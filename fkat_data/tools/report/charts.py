"""Draw plots as SVG. The page's style sheet chooses the colours, in light and in dark mode."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from fkat_data.tools.report.traced_run import Distribution, Sample, Span, Track, columns
from fkat_data.wording import readable_duration

WIDTH = 960
"""Width of every plot in SVG units; a page may scale it."""

_LEFT, _RIGHT, _BOTTOM, _TOP = 80, 14, 26, 10
_INNER = WIDTH - _LEFT - _RIGHT
_LANE = 30
_MOST_RECTANGLES = 3000
_NUM_COLUMNS = _INNER // 2


class _Frame(NamedTuple):
    """The inner part of a plot. It converts values to coordinates."""

    first: float
    last: float
    height: int
    width: int = WIDTH

    @property
    def right(self) -> int:
        return self.width - _RIGHT

    def x(self, value: float) -> float:
        return _LEFT + (self.right - _LEFT) * (value - self.first) / max(self.last - self.first, 1e-9)

    def y(self, share: float) -> float:
        return _TOP + self.height * (1 - share)


def stacked(edges_s: Sequence[float], shares: Mapping[str, Sequence[float]], title: str) -> str:
    """Return a plot of shares of time over time, stacked, each in the colour of its name."""
    frame = _Frame(edges_s[0], edges_s[-1], 130)
    parts = _axes(frame, edges_s[0], edges_s[-1], [(share, f"{share:.0%}") for share in (0.0, 0.5, 1.0)])
    below = [0.0] * (len(edges_s) - 1)
    for name, values in shares.items():
        for index, value in enumerate(values):
            top = min(1.0, below[index] + value)
            if top - below[index] > 0.001:
                x, right = frame.x(edges_s[index]), frame.x(edges_s[index + 1])
                height, hint = frame.height * (top - below[index]), f"{name} {value:.0%}"
                parts.append(_rectangle(name, x, frame.y(top), right - x + 0.4, height, hint))
            below[index] = top
    return _svg(parts, frame, title)


def stepped(samples: Sequence[Sample], key: str, end_s: float, title: str) -> str:
    """Return a plot of a number over time. Each value holds until the next sample."""
    frame = _Frame(0.0, end_s, 110)
    largest = _rounded_up(max((sample.values.get(key, 0.0) for sample in samples), default=0.0))
    ticks = [(share, _number(largest * share)) for share in (0.0, 0.5, 1.0)]
    parts = _axes(frame, 0.0, end_s, ticks)
    points = [
        (frame.x(sample.at_s), frame.y(sample.values.get(key, 0.0) / largest)) for sample in _thinned(samples, key)
    ]
    if points:
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
        path += "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:]) + f"H{frame.x(end_s):.1f}"
        bottom = frame.y(0.0)
        parts.append(f'<path class="area" d="{path}V{bottom:.1f}H{points[0][0]:.1f}Z"/><path class="line" d="{path}"/>')
    return _svg(parts, frame, title)


def histogram(found: Distribution, name: str, title: str) -> str:
    """Return a histogram of durations on a logarithmic scale, with the quantiles as lines."""
    low, high = math.log10(found.edges_s[0]), math.log10(found.edges_s[-1])
    frame = _Frame(low, high, 120, WIDTH // 2)
    most = max(found.counts)
    ticks = [(0.0, "0"), (1.0, f"{most:,}")]
    parts = [_horizontal(frame, share, text) for share, text in ticks]
    powers = range(math.ceil(low), math.floor(high) + 1)
    parts += [_vertical(frame, frame.x(power), readable_duration(10.0**power)) for power in powers]
    for count, left, right in zip(found.counts, found.edges_s, found.edges_s[1:], strict=False):
        if count:
            x, end = frame.x(math.log10(left)), frame.x(math.log10(right))
            height = max(1.0, frame.height * count / most)
            hint = f"{count:,}: {readable_duration(left)} to {readable_duration(right)}"
            parts.append(_rectangle(name, x, frame.y(0) - height, end - x - 1, height, hint))
    for label, quantile in zip(("median", "95 %", "99 %"), found.quantiles_s, strict=False):
        x = frame.x(math.log10(quantile))
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{frame.y(0):.1f}">'
            f"<title>{label}: {readable_duration(quantile)}</title></line>"
        )
    return _svg(parts, frame, title)


def lanes(tracks: Sequence[Track], start_s: float, end_s: float, title: str) -> str:
    """Return what each track did between two times, in one lane a track.

    Where a track has too many spans to draw, each column shows the name that took most of its time.
    """
    frame = _Frame(start_s, end_s, _LANE * len(tracks))
    parts = _time_axis(frame, start_s, end_s)
    for number, track in enumerate(tracks):
        y = _TOP + number * _LANE + 3
        parts.append(f'<text class="lane" x="{_LEFT - 8}" y="{y + 16}">{escape(track.name)}</text>')
        spans = [span for span in track.spans if span.ended_s > start_s and span.began_s < end_s]
        if len(spans) > _MOST_RECTANGLES // len(tracks):
            moved = [span._replace(began_s=span.began_s - start_s) for span in spans]
            width = _INNER / _NUM_COLUMNS
            for name, first, count in columns(moved, end_s - start_s, _NUM_COLUMNS):
                if name:
                    parts.append(_rectangle(name, _LEFT + first * width, y, count * width, _LANE - 6, f"mostly {name}"))
        else:
            parts += [_span(frame, span, y, start_s, end_s) for span in spans]
    return _svg(parts, frame, title)


def _span(frame: _Frame, span: Span, y: float, start_s: float, end_s: float) -> str:
    x, right = frame.x(max(span.began_s, start_s)), frame.x(min(span.ended_s, end_s))
    hint = f"{span.name} {span.about}, {readable_duration(span.duration_s)}, at {clock(span.began_s, 1e-6, end_s)}"
    return _rectangle(span.name, x, y, max(0.3, right - x), _LANE - 6, hint)


def _axes(frame: _Frame, start_s: float, end_s: float, ticks: Sequence[tuple[float, str]]) -> list[str]:
    return [*(_horizontal(frame, share, text) for share, text in ticks), *_time_axis(frame, start_s, end_s)]


def _time_axis(frame: _Frame, start_s: float, end_s: float) -> list[str]:
    span_s = max(end_s - start_s, 1e-9)
    step_s = _rounded_up(span_s / 9)
    first = math.ceil(start_s / step_s)
    last = math.floor(end_s / step_s)
    return [_vertical(frame, frame.x(n * step_s), clock(n * step_s, step_s, end_s)) for n in range(first, last + 1)]


def _horizontal(frame: _Frame, share: float, text: str) -> str:
    y = frame.y(share)
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick left" x="{_LEFT - 8}" y="{y + 4:.1f}">{text}</text>'
    )


def _vertical(frame: _Frame, x: float, text: str) -> str:
    bottom = frame.y(0)
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom + 4:.1f}"/>'
        f'<text class="tick" x="{x:.1f}" y="{bottom + 18:.1f}">{text}</text>'
    )


def _rectangle(name: str, x: float, y: float, width: float, height: float, hint: str) -> str:
    return (
        f'<rect class="{escape(name) or "nothing"}" x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.0):.2f}" '
        f'height="{height:.2f}"><title>{escape(hint)}</title></rect>'
    )


def _svg(parts: Sequence[str], frame: _Frame, title: str) -> str:
    size = f"0 0 {frame.width} {frame.height + _TOP + _BOTTOM}"
    drawn = f'<svg viewBox="{size}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    # A narrow screen moves over what a wide one shows at once, so that its words stay legible.
    return f'<div class="plot" tabindex="0">{drawn}</div>' if frame.width == WIDTH else drawn


def _thinned(samples: Sequence[Sample], key: str) -> list[Sample]:
    """Return at most two samples for each column of the plot: the smallest and the largest."""
    size = math.ceil(len(samples) / _NUM_COLUMNS)
    if size <= 2:
        return list(samples)
    found: list[Sample] = []
    for start in range(0, len(samples), size):
        group = sorted(samples[start : start + size], key=lambda sample: sample.values.get(key, 0.0))
        found += sorted((group[0], group[-1]), key=lambda sample: sample.at_s)
    return found


def _rounded_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value * 0.999999)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"


def clock(at_s: float, step_s: float, end_s: float) -> str:
    """Return a time as its neighbours on an axis are written.

    Args:
        at_s: The time.
        step_s: How far its neighbours are.
        end_s: The last of them, which chooses the unit.
    """
    factor, unit = next(
        ((factor, unit) for factor, unit in ((1.0, "s"), (1e-3, "ms")) if end_s >= factor), (1e-6, "µs")
    )
    digits = max(0, -math.floor(math.log10(max(step_s, 1e-9) / factor)))
    return f"{at_s / factor:,.{digits}f} {unit}"
