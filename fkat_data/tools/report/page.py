"""The report on a run, as one HTML page."""

from collections.abc import Mapping, Sequence
from html import escape

from fkat_data.observe.durations import Durations
from fkat_data.tools.report.charts import clock, histogram, lanes, stacked, stepped
from fkat_data.tools.report.traced_run import Distribution, TracedRun, distribution, durations_s, excerpt, shares
from fkat_data.wording import readable_bytes, readable_duration, readable_share

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

MEANINGS = {name: meaning for name, (meaning, _) in _SPANS.items()}
"""The meaning of each colour. The names are those of a timeline's spans."""

STYLE = """
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
