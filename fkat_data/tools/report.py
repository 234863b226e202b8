"""Turn a traced run into a report: one HTML page with plots in SVG, which needs nothing but itself."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.errors.wording import readable_bytes, readable_duration, readable_share
from fkat_data.observe.durations import BUCKETS_PER_DOUBLING, SHORTEST_S, Durations
from fkat_data.tools.traced_run import Sample, Span, TracedRun, Track

_NUM_PIECES = 160
_NUM_IN_EXCERPT = 24
_MEBIBYTE = 1 << 20
_WORKER_STAGES = ("produce", "build", "store", "replay", "encode", "blocked", "idle")


def page(run: TracedRun, name: str) -> str:
    """Return the report on a run as an HTML page.

    Args:
        run: The run, as read from its timeline.
        name: The timeline's name, for the title.
    """
    sections = [
        _section(
            "What waits for what",
            _over_time(run),
            "Trainer: the share of time that it waited. Workers: how all of them together spent their time; blank "
            "where no worker was running yet.",
        ),
        _section(
            "Microbatches ready",
            _queue(run),
            "Microbatches made and not yet delivered. Near 0, the trainer waits. If the number never falls, the "
            "workers need less memory.",
        ),
        _section(
            "Time per microbatch",
            _latencies(run),
            "How long the trainer waited for a microbatch, and how long a worker took to make one. Lines: median, 95 %, "
            "99 %.",
        ),
        _section(
            "What each process did",
            _timeline(run),
            "Top: the whole run. Bottom: some microbatches from its middle. Hover over a span for details, or open "
            f'the timeline, {escape(name)}, at <a href="https://ui.perfetto.dev">ui.perfetto.dev</a>.',
        ),
        _section("Numbers", _numbers(run), ""),
    ]
    if any(mark.verdict for mark in run.marks):
        sections.append(_section("Epochs", _epochs(run), ""))
    heading = escape(f"fkat_data: {name}")
    parts = [f"<h1>{heading}</h1>", _verdict(run), _tiles(run), _legend(run), *sections]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _verdict(run: TracedRun) -> str:
    verdict = run.statistics.verdict
    text = str(verdict)
    return f'<p class="verdict {verdict.limit}">{_with_code(text[:1].upper() + text[1:])}.</p>'


def _tiles(run: TracedRun) -> str:
    numbers = run.statistics
    per_s = numbers.delivered / numbers.elapsed_s if numbers.elapsed_s else 0.0
    mib_per_s = numbers.delivered_bytes / _MEBIBYTE / numbers.elapsed_s if numbers.elapsed_s else 0.0
    found = [
        (readable_share(numbers.waited_share), "of the time spent waiting"),
        (f"{numbers.delivered:,}", "microbatches delivered"),
        (f"{per_s:,.4g}", "microbatches a second"),
        (f"{mib_per_s:,.4g}", "MiB a second"),
        _quantiles(numbers.waiting, "waited for a microbatch"),
        _quantiles(numbers.making, "to make one"),
        (readable_duration(numbers.waited_first_s), "waited for the first microbatch of all epochs"),
        (str(numbers.num_workers), "workers" if numbers.num_workers else "workers: data made in process"),
    ]
    items = "".join(f"<li><b>{escape(value)}</b>{escape(what)}</li>" for value, what in found)
    return f'<ul class="tiles">{items}</ul>'


def _quantiles(durations: Durations, doing: str) -> tuple[str, str]:
    (name, value), *others = durations.readable().items()
    # A line ends between two of them only.
    rest = ", ".join(f"{other} {text}".replace(" ", "\N{NO-BREAK SPACE}") for other, text in others)
    return value, f"{doing}, {name}; {rest}"


def _legend(run: TracedRun) -> str:
    seen = {span.name for track in run.tracks for span in track.spans}
    # While a run is going on, a stage may have begun that has no span yet.
    seen |= {stage for stage in _WORKER_STAGES if getattr(run.statistics, f"{stage}_s") > 0}
    items = [f'<li><i class="{name}"></i>{escape(text)}</li>' for name, (text, _) in _SPANS.items() if name in seen]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _over_time(run: TracedRun) -> str:
    edges_s = [run.duration_s * number / _NUM_PIECES for number in range(_NUM_PIECES + 1)]
    waited = _shares(run.seconds, "waited_s", edges_s)
    trainer = {"wait": waited, "step": np.maximum(0.0, 1.0 - waited)}
    num_workers = max(1, run.statistics.num_workers)
    workers = {stage: _shares(run.seconds, f"{stage}_s", edges_s) / num_workers for stage in _WORKER_STAGES}
    return (
        "<h3>Trainer</h3>"
        + _stacked(edges_s, trainer, "share of time that the trainer waited")
        + "<h3>Workers</h3>"
        + _stacked(edges_s, workers, "how the workers spent their time")
    )


def _queue(run: TracedRun) -> str:
    plots = _stepped(run.ready, "ready", run.duration_s, "microbatches ready")
    if run.statistics.num_workers:
        plots += "<h3>Shared memory held, MiB</h3>" + _stepped(run.held, "MiB", run.duration_s, "shared memory held")
    return plots


def _latencies(run: TracedRun) -> str:
    numbers = run.statistics
    waiting = _histogram(numbers.waiting, "wait", "waiting for a microbatch")
    return f'<div class="pair">{waiting}{_histogram(numbers.making, "produce", "making a microbatch")}</div>'


def _timeline(run: TracedRun) -> str:
    tracks = [track for track in run.tracks if track.spans]
    start_s, end_s = _excerpt(run, _NUM_IN_EXCERPT)
    step_s = (end_s - start_s) / 100
    detail = f"<h3>From {clock(start_s, step_s, end_s)} to {clock(end_s, step_s, end_s)}</h3>"
    return _lanes(tracks, 0.0, run.duration_s, "the whole run") + detail + _lanes(tracks, start_s, end_s, "an excerpt")


def _numbers(run: TracedRun) -> str:
    rows = [
        f"<tr><th>{escape(name)}</th><td>{_number(name, value)}</td></tr>"
        for name, value in run.statistics.as_dict().items()
    ]
    half = (len(rows) + 1) // 2
    tables = "".join(f"<table>{''.join(part)}</table>" for part in (rows[:half], rows[half:]))
    return f'<div class="pair">{tables}</div>'


def _number(name: str, value: float) -> str:
    if "_s_" in f"{name}_":
        return readable_duration(value)
    if name.endswith("_bytes"):
        return readable_bytes(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _epochs(run: TracedRun) -> str:
    rows = [
        f"<tr><th>{escape(mark.name)}</th><th>{readable_duration(mark.at_s)}</th><td>{_with_code(mark.verdict)}</td></tr>"
        for mark in run.marks
        if mark.verdict
    ]
    return f"<table>{''.join(rows)}</table>"


def _section(title: str, content: str, explanation: str) -> str:
    """Return a section with a heading. All arguments are HTML; the explanation may be empty."""
    note = f'<p class="note">{explanation}</p>' if explanation else ""
    return f"<section><h2>{title}</h2>{note}{content}</section>"


def _with_code(text: str) -> str:
    """Return a text as HTML, with text in backquotes as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))


#: The name of a timeline's spans: what it means, and its colour. The colours are distinct for any colour vision (after
#: Okabe and Ito), as fills on light and on dark backgrounds.
_SPANS = {
    "wait": ("the trainer waits", "#d55e00"),
    "step": ("the trainer computes", "#009e73"),
    "next": ("the loader works in the trainer", "#8a8f98"),
    "move": ("the trainer issues a copy to the device", "#a65628"),
    "copy": ("the device copies", "#4d9221"),
    "produce": ("a worker makes a microbatch", "#0072b2"),
    "build": ("the factory opens a shard", "#7b5ea7"),
    "store": ("a worker waits for bytes from storage", "#e69f00"),
    "replay": ("a worker remakes a microbatch from before a resume", "#cc79a7"),
    "encode": ("a worker writes a microbatch to shared memory", "#56b4e9"),
    "blocked": ("a worker waits for free memory or for permission", "#b9a44c"),
    "idle": ("a worker has no shard", "var(--idle)"),
}

_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1e21;--faint:#6b7280;--grid:#e3e5e8;--card:#f5f6f8;--idle:#d5d8dd}
@media (prefers-color-scheme:dark){:root{--paper:#15171a;--ink:#e6e8eb;--faint:#9aa1ab;--grid:#2c3036;
--card:#1e2126;--idle:#3d434c}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1040px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:19px;font-weight:600;color:var(--faint);margin:0 0 10px}
h2{font-size:20px;margin:38px 0 4px}h3{font-size:14px;margin:14px 0 2px}
.verdict{font-size:21px;line-height:1.4;margin:0 0 20px;padding:14px 18px;background:var(--card);
border-left:6px solid #d55e00;border-radius:4px}.verdict.caller,.verdict.start{border-color:#009e73}
code{font:0.92em ui-monospace,monospace}
ul{list-style:none;padding:0;margin:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(125px,1fr));gap:10px;margin-bottom:20px}
.tiles li{background:var(--card);border-radius:4px;padding:10px 12px;font-size:13px;color:var(--faint);line-height:1.3}
.tiles b{display:block;font-size:20px;color:var(--ink)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px}
.legend i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.note,figure p{color:var(--faint);font-size:13.5px;margin:0 0 6px}
svg{display:block;width:100%;height:auto}
.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:24px}figure{margin:0}
.grid{stroke:var(--grid)}.tick,.lane{fill:var(--faint);font:11px system-ui,sans-serif;text-anchor:middle}
.left,.lane{text-anchor:end}.lane{font-size:12px;fill:var(--ink)}
.line{fill:none;stroke:#0072b2;stroke-width:1.5}.area{fill:#0072b2;opacity:.18}
.mark{stroke:var(--ink);stroke-width:2;stroke-dasharray:5 4}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--grid);vertical-align:top}
th{font-weight:400;color:var(--faint);white-space:nowrap}.pair td{text-align:right;font-variant-numeric:tabular-nums}
@media (max-width:760px){.pair{grid-template-columns:minmax(0,1fr)}.verdict{font-size:18px;overflow-wrap:anywhere}
main{padding:16px 14px 40px}h1{overflow-wrap:anywhere}.plot{overflow-x:auto}.plot svg{min-width:700px}
.tick{font-size:15px}.lane{font-size:15px}.pair .tick{font-size:13px}th{white-space:normal}}
""" + "".join(
    f"rect.{name}{{fill:{colour}}}.legend .{name}{{background:{colour}}}" for name, (_, colour) in _SPANS.items()
)


_WIDTH = 960

_LEFT, _RIGHT, _BOTTOM, _TOP = 80, 14, 26, 10
_INNER = _WIDTH - _LEFT - _RIGHT
_LANE = 30
_MOST_RECTANGLES = 3000
_NUM_COLUMNS = _INNER // 2
_BARS_PER_DOUBLING = 4


class _Frame(NamedTuple):
    """The inner part of a plot. It converts values to coordinates."""

    first: float
    last: float
    height: int
    width: int = _WIDTH

    @property
    def right(self) -> int:
        return self.width - _RIGHT

    def x(self, value: float) -> float:
        return _LEFT + (self.right - _LEFT) * (value - self.first) / max(self.last - self.first, 1e-9)

    def y(self, share: float) -> float:
        return _TOP + self.height * (1 - share)


def _stacked(edges_s: Sequence[float], shares: Mapping[str, npt.NDArray[np.float64]], title: str) -> str:
    """Return a plot of shares of time over time, stacked, each in the colour of its name."""
    frame = _Frame(edges_s[0], edges_s[-1], 130)
    parts = _axes(frame, edges_s[0], edges_s[-1], [(share, f"{share:.0%}") for share in (0.0, 0.5, 1.0)])
    below = [0.0] * (len(edges_s) - 1)
    for name, values in shares.items():
        for index, value in enumerate(values.tolist()):
            top = min(1.0, below[index] + value)
            if top - below[index] > 0.001:
                x, right = frame.x(edges_s[index]), frame.x(edges_s[index + 1])
                height, hint = frame.height * (top - below[index]), f"{name} {value:.0%}"
                parts.append(_rectangle(name, x, frame.y(top), right - x + 0.4, height, hint))
            below[index] = top
    return _svg(parts, frame, title)


def _stepped(samples: Sequence[Sample], key: str, end_s: float, title: str) -> str:
    """Return a plot of a number over time. Each value holds until the next sample."""
    frame = _Frame(0.0, end_s, 110)
    largest = _rounded_up(max((sample.values.get(key, 0.0) for sample in samples), default=0.0))
    ticks = [(share, _tick(largest * share)) for share in (0.0, 0.5, 1.0)]
    parts = _axes(frame, 0.0, end_s, ticks)
    points = [
        (frame.x(sample.at_s), frame.y(sample.values.get(key, 0.0) / largest)) for sample in _thinned(samples, key)
    ]
    if points:
        (left, top), *others = points
        path = "".join([f"M{left:.1f} {top:.1f}", *(f"H{x:.1f}V{y:.1f}" for x, y in others), f"H{frame.x(end_s):.1f}"])
        area = f"{path}V{frame.y(0.0):.1f}H{left:.1f}Z"
        parts.append(f'<path class="area" d="{area}"/><path class="line" d="{path}"/>')
    return _svg(parts, frame, title)


def _histogram(durations: Durations, name: str, title: str) -> str:
    """Return a histogram of durations on a logarithmic scale, with the quantiles as lines."""
    counts: Counter[int] = Counter()
    for bucket, count in durations.as_dict().items():
        if bucket != "0 s":
            counts[int(bucket) * _BARS_PER_DOUBLING // BUCKETS_PER_DOUBLING] += count
    if not counts:
        return ""
    # At least three doublings wide, so that nearly equal durations form a bar, not a wall.
    first, last = min(counts) - _BARS_PER_DOUBLING, max(counts) + 2 * _BARS_PER_DOUBLING
    frame = _Frame(first, last, 120, _WIDTH // 2)
    most = max(counts.values())
    parts = [_horizontal(frame, share, text) for share, text in [(0.0, "0"), (1.0, f"{most:,}")]]
    powers = [(power, _bar_of(10.0**power)) for power in range(-6, 4)]
    parts += [
        _vertical(frame, frame.x(at), readable_duration(10.0**power)) for power, at in powers if first <= at <= last
    ]
    for bar, count in sorted(counts.items()):
        x, end = frame.x(bar), frame.x(bar + 1)
        height = max(1.0, frame.height * count / most)
        left_s, right_s = (SHORTEST_S * 2.0 ** (edge / _BARS_PER_DOUBLING) for edge in (bar, bar + 1))
        hint = f"{count:,}: {readable_duration(left_s)} to {readable_duration(right_s)}"
        parts.append(_rectangle(name, x, frame.y(0) - height, end - x - 1, height, hint))
    for quantile_s in filter(None, durations.quantiles_s(0.5, 0.95, 0.99)):
        x = frame.x(_bar_of(quantile_s))
        line = f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{frame.y(0):.1f}">'
        parts.append(f"{line}<title>{readable_duration(quantile_s)}</title></line>")
    return f"<figure><h3>{title}</h3>{_svg(parts, frame, title)}<p>{durations}</p></figure>"


def _bar_of(duration_s: float) -> float:
    return _BARS_PER_DOUBLING * math.log2(duration_s / SHORTEST_S)


def _lanes(tracks: Sequence[Track], start_s: float, end_s: float, title: str) -> str:
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
            for name, first, count in _columns(moved, end_s - start_s, _NUM_COLUMNS):
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
    return f'<div class="plot" tabindex="0">{drawn}</div>' if frame.width == _WIDTH else drawn


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


def _tick(value: float) -> str:
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


def _shares(samples: Sequence[Sample], name: str, edges_s: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return a counter's share of each interval of time. Several workers add up, so a share can exceed 1.

    Args:
        samples: Seconds spent so far, in the order of time.
        name: The counter.
        edges_s: Bounds of the intervals.
    """
    if not samples:
        return np.zeros(len(edges_s) - 1)
    spent_s = np.interp(
        edges_s, [sample.at_s for sample in samples], [sample.values.get(name, 0.0) for sample in samples]
    )
    return np.clip(np.diff(spent_s) / np.diff(edges_s), 0.0, None)


def _columns(spans: Sequence[Span], end_s: float, num_columns: int) -> list[tuple[str, int, int]]:
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
    starts = [0, *(np.flatnonzero(np.diff(best)) + 1).tolist(), num_columns]
    return [(names[best[start]] if best[start] >= 0 else "", start, end - start) for start, end in pairwise(starts)]


def _excerpt(run: TracedRun, num_microbatches: int) -> tuple[float, float]:
    """Return the bounds of an interval near the run's middle that delivers ``num_microbatches``."""
    ends_s = [span.ended_s for track in run.tracks if track.is_trainer for span in track.spans if span.name == "next"]
    if len(ends_s) < 2:
        return 0.0, run.duration_s
    first = max(0, (len(ends_s) - num_microbatches) // 2)
    last = min(len(ends_s) - 1, first + num_microbatches)
    return ends_s[first], ends_s[last]
