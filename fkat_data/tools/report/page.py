"""The report on a run, as one HTML page."""

from collections.abc import Mapping, Sequence
from html import escape

from fkat_data.observe.durations import Durations
from fkat_data.quantities import readable_bytes, readable_duration, readable_share
from fkat_data.tools.report.charts import clock, histogram, lanes, stacked, stepped
from fkat_data.tools.report.series import Distribution, distribution, durations_s, excerpt, shares
from fkat_data.tools.report.style import MEANINGS, STYLE
from fkat_data.tools.report.traced_run import TracedRun

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
        section(
            "What waits for what",
            _over_time(run),
            "Trainer: the share of time that it waited. Workers: how all of them together spent their time; blank "
            "where no worker was running yet.",
        ),
        section(
            "Microbatches ready",
            _queue(run),
            "Microbatches made and not yet delivered. Near 0, the trainer waits. If the number never falls, the "
            "workers need less memory.",
        ),
        section(
            "Time per microbatch",
            _latencies(run),
            "The time that the trainer spent in <code>next()</code>, and the time that a worker took to make a "
            "microbatch. Lines: median, 95 %, 99 %.",
        ),
        section(
            "What each process did",
            _timeline(run),
            "Top: the whole run. Bottom: some microbatches from its middle. Hover over a span for details, or open "
            f'the timeline, {escape(name)}, at <a href="https://ui.perfetto.dev">ui.perfetto.dev</a>.',
        ),
        section("Numbers", _numbers(run), ""),
    ]
    if any(mark.verdict for mark in run.marks):
        sections.append(section("Epochs", _epochs(run), ""))
    return document(f"fkat_data: {name}", [_verdict(run), _tiles(run), _legend(run), *sections])


def _verdict(run: TracedRun) -> str:
    verdict = run.statistics.verdict
    text = str(verdict)
    return f'<p class="verdict {verdict.limit}">{with_code(text[:1].upper() + text[1:])}.</p>'


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
    return tiles(found)


def _quantiles(durations: Durations, doing: str) -> tuple[str, str]:
    (name, value), *others = durations.readable().items()
    # A line ends between two of them only.
    rest = ", ".join(f"{other} {text}".replace(" ", "\N{NO-BREAK SPACE}") for other, text in others)
    return value, f"{doing}, {name}; {rest}"


def _legend(run: TracedRun) -> str:
    seen = {span.name for track in run.tracks for span in track.spans}
    # While a run is going on, a stage may have begun that has no span yet.
    seen |= {stage for stage in _WORKER_STAGES if getattr(run.statistics, f"{stage}_s") > 0}
    return legend({name: text for name, text in MEANINGS.items() if name in seen})


def _over_time(run: TracedRun) -> str:
    edges_s = [run.duration_s * number / _NUM_PIECES for number in range(_NUM_PIECES + 1)]
    waited = shares(run.seconds, ["waited_s"], edges_s)["waited_s"]
    trainer = {"wait": waited, "step": [max(0.0, 1.0 - share) for share in waited]}
    found = shares(run.seconds, [f"{stage}_s" for stage in _WORKER_STAGES], edges_s)
    num_workers = max(1, run.statistics.num_workers)
    workers = {stage: [share / num_workers for share in found[f"{stage}_s"]] for stage in _WORKER_STAGES}
    return (
        "<h3>Trainer</h3>"
        + stacked(edges_s, trainer, "share of time that the trainer waited")
        + "<h3>Workers</h3>"
        + stacked(edges_s, workers, "how the workers spent their time")
    )


def _queue(run: TracedRun) -> str:
    plots = stepped(run.ready, "ready", run.duration_s, "microbatches ready")
    if run.statistics.num_workers:
        plots += "<h3>Shared memory held, MiB</h3>" + stepped(run.held, "MiB", run.duration_s, "shared memory held")
    return plots


def _latencies(run: TracedRun) -> str:
    plots: list[str] = []
    for title, name in (("in next()", "next"), ("making a microbatch", "produce")):
        found = distribution(durations_s(run.tracks, name))
        if found is not None:
            plots.append(f"<figure><h3>{title}</h3>{histogram(found, name, title)}{quantiles(found)}</figure>")
    return f'<div class="pair">{"".join(plots)}</div>'


def _timeline(run: TracedRun) -> str:
    tracks = [track for track in run.tracks if track.spans]
    start_s, end_s = excerpt(run, _NUM_IN_EXCERPT)
    step_s = (end_s - start_s) / 100
    detail = f"<h3>From {clock(start_s, step_s, end_s)} to {clock(end_s, step_s, end_s)}</h3>"
    return lanes(tracks, 0.0, run.duration_s, "the whole run") + detail + lanes(tracks, start_s, end_s, "an excerpt")


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
        f"<tr><th>{escape(mark.name)}</th><th>{readable_duration(mark.at_s)}</th><td>{with_code(mark.verdict)}</td></tr>"
        for mark in run.marks
        if mark.verdict
    ]
    return f"<table>{''.join(rows)}</table>"


def document(title: str, parts: Sequence[str]) -> str:
    """Return a page.

    Args:
        title: The title, as text.
        parts: The content, as HTML.
    """
    heading = escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main><h1>{heading}</h1>{''.join(parts)}</main></body></html>\n"
    )


def section(title: str, content: str, explanation: str) -> str:
    """Return a section with a heading. All arguments are HTML; the explanation may be empty."""
    note = f'<p class="note">{explanation}</p>' if explanation else ""
    return f"<section><h2>{title}</h2>{note}{content}</section>"


def quantiles(found: Distribution) -> str:
    """Return the quantiles of durations as a paragraph."""
    median, p95, p99, longest = map(readable_duration, found.quantiles_s)
    return f"<p>median {median}, 95 % {p95}, 99 % {p99}, longest {longest}</p>"


def tiles(numbers: Sequence[tuple[str, str]]) -> str:
    """Return a row of numbers. Each is a pair of texts: the value and what it means."""
    items = "".join(f"<li><b>{escape(value)}</b>{escape(what)}</li>" for value, what in numbers)
    return f'<ul class="tiles">{items}</ul>'


def legend(meanings: Mapping[str, str]) -> str:
    """Return a legend of colours, from the name of each to its meaning."""
    items = [f'<li><i class="{name}"></i>{escape(text)}</li>' for name, text in meanings.items()]
    return f'<ul class="legend">{"".join(items)}</ul>'


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts. The first row and the first column are headings."""
    first, *rest = rows
    head = "".join(f"<th>{escape(cell)}</th>" for cell in first)
    lines = [
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rest
    ]
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def with_code(text: str) -> str:
    """Return a text as HTML, with text in backquotes as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))
