"""A simulated run as one page of HTML, made of the parts of a run's report."""

from collections.abc import Sequence
from html import escape

import numpy as np

from fkat_data.tools.cli.simulation_presentation import node_rows, numbers
from fkat_data.tools.report.charts import duration, histogram, stacked, stepped
from fkat_data.tools.report.document import document, legend, section, table, tiles, with_code
from fkat_data.tools.report.series import distribution, shares
from fkat_data.tools.report.style import MEANINGS
from fkat_data.tools.report.traced_run import Sample
from fkat_data.tools.simulation.remedies import HARDLY
from fkat_data.tools.simulation.result import Simulation

__all__ = ["simulation_page"]

_NUM_PIECES = 160
_GIBIBYTE = 1 << 30


def simulation_page(result: Simulation, advice: Sequence[str], name: str) -> str:
    """Return a simulated run as a page of HTML.

    Args:
        result: The run.
        advice: What to change, in words.
        name: The configuration's, for the title.
    """
    kind = "caller" if result.later_share <= HARDLY else "wait"
    verdict = "".join(f'<p class="verdict {kind}">{with_code(text)}</p>' for text in advice[:1])
    more = "".join(f"<li>{with_code(text)}</li>" for text in advice[1:])
    parts = [
        verdict,
        f"<ul>{more}</ul>" if more else "",
        tiles([(value, what) for what, value in numbers(result)[:7]]),
        legend({name: MEANINGS[name] for name in ("wait", "step")}),
        section("Who waits", _waiting(result), "Share of the time that the steps waited for data."),
        section("How long a wait takes", _waits(result), "Steps that waited at all; lines: median, 90 %, 99 %."),
        section("Fetched", _fetched(result), "What came over the lines, from the beginning."),
        section("On the disk", _resident(result), "Of the node with the most: its shards, and those on their way."),
        section("Cache", _cache(result), "Times that a rank found a shard there or in another rank's hands."),
        section("Nodes", table(node_rows(result)), ""),
        section("Numbers", table([("", ""), *numbers(result)]), ""),
    ]
    return document(f"fkat_data simulates {name}", parts)


def _waiting(result: Simulation) -> str:
    if result.duration_s <= 0:
        return "<p>It takes no time at all.</p>"
    edges_s = np.linspace(0.0, result.duration_s, _NUM_PIECES + 1).tolist()
    began_s = np.arange(result.num_steps) * result.setup.step_s + np.cumsum(result.wait_s) - result.wait_s
    waited_s = np.cumsum(result.wait_s)
    samples = [Sample(0.0, {"waited_s": 0.0})]
    for step in np.flatnonzero(result.wait_s).tolist():
        wait_s, start_s, all_s = (float(values[step]) for values in (result.wait_s, began_s, waited_s))
        samples.append(Sample(start_s, {"waited_s": all_s - wait_s}))
        samples.append(Sample(start_s + wait_s, {"waited_s": all_s}))
    waited = [min(1.0, share) for share in shares(samples, ["waited_s"], edges_s)["waited_s"]]
    both = {"wait": waited, "step": [1.0 - share for share in waited]}
    return stacked(edges_s, both, "share of the time that steps waited for data")


def _waits(result: Simulation) -> str:
    found = distribution(result.wait_s[result.wait_s > 0].tolist())
    if found is None:
        return "<p>No step waits.</p>"
    median, p90, p99, most = (duration(value_s) for value_s in found.quantiles_s)
    told = f"<p>median {median}, 90 % {p90}, 99 % {p99}, longest {most}</p>"
    return f'<div class="pair"><figure>{histogram(found, "wait", "how long a step waits")}{told}</figure></div>'


def _fetched(result: Simulation) -> str:
    sums = [(at_s, sum(values) / _GIBIBYTE) for at_s, values in ((m.at_s, m.fetched_bytes) for m in result.moments)]
    plot = _plot(result, "GiB of all nodes together", sums)
    if len(result.nodes) == 1:
        return plot
    most = [(moment.at_s, max(moment.fetched_bytes) / _GIBIBYTE) for moment in result.moments]
    return plot + _plot(result, "GiB of the node with the most", most)


def _resident(result: Simulation) -> str:
    sizes = [(moment.at_s, max(moment.resident_bytes) / _GIBIBYTE) for moment in result.moments]
    counts = [(moment.at_s, float(max(moment.resident_shards))) for moment in result.moments]
    return _plot(result, "GiB", sizes) + _plot(result, "shards", counts)


def _cache(result: Simulation) -> str:
    hits = [(moment.at_s, float(sum(moment.num_hits))) for moment in result.moments]
    fetches = [(moment.at_s, float(sum(moment.num_fetches))) for moment in result.moments]
    evictions = [(moment.at_s, float(sum(moment.num_evictions))) for moment in result.moments]
    plots = _plot(result, "found", hits) + _plot(result, "fetched", fetches)
    return plots + _plot(result, "evicted", evictions) if evictions[-1][1] else plots


def _plot(result: Simulation, title: str, points: Sequence[tuple[float, float]]) -> str:
    samples = [Sample(at_s, {title: value}) for at_s, value in points]
    return f"<h3>{escape(title)}</h3>" + stepped(samples, title, max(result.duration_s, 1e-9), title)
