"""The page: everything in one file, nothing fetched from anywhere."""

from html import escape

from fkat_data.tools.report.charts import duration, histogram, lanes, stacked, stepped
from fkat_data.tools.report.document import document, legend, section, tiles, with_code
from fkat_data.tools.report.series import distribution, durations_s, excerpt, shares
from fkat_data.tools.report.style import MEANINGS
from fkat_data.tools.report.traced_run import TracedRun

__all__ = ["page"]

_NUM_PIECES = 160
_NUM_IN_EXCERPT = 24
_MEBIBYTE = 1 << 20
_WORKER_STAGES = ("produce", "build", "store", "replay", "encode", "blocked", "idle")


def page(run: TracedRun, name: str) -> str:
    """Return the report on a run as a page of HTML.

    Args:
        run: What its timeline tells.
        name: The timeline's, for the title.
    """
    sections = [
        section(
            "Who waits for whom",
            _over_time(run),
            "Trainer: share of the time that it waited. Workers: what "
            "their time went into, all of them together; blank where none was running yet.",
        ),
        section(
            "Microbatches ready",
            _queue(run),
            "Made, and not yet delivered. Near 0 the trainer waits; where it "
            "never comes down, the workers could do with less memory.",
        ),
        section(
            "How long one takes",
            _latencies(run),
            "Left: for how long <code>next()</code> held the trainer up. "
            "Right: the making of one microbatch in a worker. Lines: median, 90 %, 99 %.",
        ),
        section(
            "What each process did",
            _timeline(run),
            "Above: the whole run; below: some microbatches from its "
            "middle. The pointer tells more. For every detail open the file in ui.perfetto.dev.",
        ),
        section("Numbers", _numbers(run), ""),
    ]
    if any(moment.verdict for moment in run.moments):
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
        (f"{numbers.waited_share:.1%}", "of the time waited"),
        (f"{numbers.delivered:,}", "microbatches delivered"),
        (f"{per_s:,.4g}", "a second"),
        (f"{mib_per_s:,.4g}", "MiB a second"),
        (duration(numbers.produce_s_per_microbatch), "to make one, in a worker"),
        (f"{numbers.waited_first_s:.2f} s", "waited for the first of each epoch"),
        (str(numbers.num_workers), "workers" if numbers.num_workers else "workers: made in process"),
    ]
    return tiles(found)


def _legend(run: TracedRun) -> str:
    seen = {span.name for track in run.tracks for span in track.spans}
    # Of a run that goes on, a stage may be under way that is no span yet.
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
        + stacked(edges_s, trainer, "share of the time that the trainer waited")
        + "<h3>Workers</h3>"
        + stacked(edges_s, workers, "what the workers' time went into")
    )


def _queue(run: TracedRun) -> str:
    plots = stepped(run.ready, "ready", run.duration_s, "microbatches ready")
    if run.statistics.num_workers:
        plots += "<h3>Shared memory held, MiB</h3>" + stepped(run.held, "MiB", run.duration_s, "shared memory held")
    return plots


def _latencies(run: TracedRun) -> str:
    plots: list[str] = []
    for title, names in (("next()", ["next"]), ("making one", ["produce"])):
        found = distribution(durations_s(run.tracks, names))
        if found is not None:
            median, p90, p99, most = (duration(value_s) for value_s in found.quantiles_s)
            told = f"median {median}, 90 % {p90}, 99 % {p99}, longest {most}"
            plots.append(f"<figure><h3>{title}</h3>{histogram(found, names[0], title)}<p>{told}</p></figure>")
    return f'<div class="pair">{"".join(plots)}</div>'


def _timeline(run: TracedRun) -> str:
    tracks = [track for track in run.tracks if track.spans]
    start_s, end_s = excerpt(run, _NUM_IN_EXCERPT)
    detail = f"<h3>{_NUM_IN_EXCERPT} microbatches, from {start_s:.3f} s on</h3>"
    return lanes(tracks, 0.0, run.duration_s, "the whole run") + detail + lanes(tracks, start_s, end_s, "an excerpt")


def _numbers(run: TracedRun) -> str:
    rows = [
        f"<tr><th>{escape(name)}</th><td>{_number(value)}</td></tr>" for name, value in run.statistics.as_dict().items()
    ]
    half = (len(rows) + 1) // 2
    tables = "".join(f"<table>{''.join(part)}</table>" for part in (rows[:half], rows[half:]))
    return f'<div class="pair">{tables}</div>'


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _epochs(run: TracedRun) -> str:
    rows = [
        f"<tr><th>{escape(moment.name)}</th><th>{moment.at_s:.1f} s</th><td>{with_code(moment.verdict)}</td></tr>"
        for moment in run.moments
        if moment.verdict
    ]
    return f"<table>{''.join(rows)}</table>"
