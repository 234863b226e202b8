"""Show a simulated run as one HTML page, built from the same parts as a run's report."""

from collections.abc import Sequence
from html import escape

import numpy as np

from fkat_data.tools.cli.simulation_presentation import node_rows, numbers
from fkat_data.tools.report.charts import histogram, stacked, stepped
from fkat_data.tools.report.document import document, legend, quantiles, section, table, tiles, with_code
from fkat_data.tools.report.series import distribution, shares
from fkat_data.tools.report.style import MEANINGS
from fkat_data.tools.report.traced_run import Sample
from fkat_data.tools.simulation.remedies import NEGLIGIBLE_SHARE
from fkat_data.tools.simulation.result import Simulation

__all__ = ["simulation_page"]

_NUM_PIECES = 160
_GIBIBYTE = 1 << 30


def simulation_page(result: Simulation, advice: Sequence[str], name: str) -> str:
    """Return an HTML page about a simulated run.

    Args:
        result: The run.
        advice: What to change, in words.
        name: The configuration's name, for the title.
    """
    kind = "caller" if result.later_share <= NEGLIGIBLE_SHARE else "wait"
    verdict = "".join(f'<p class="verdict {kind}">{with_code(text)}</p>' for text in advice[:1])
    more = "".join(f"<li>{with_code(text)}</li>" for text in advice[1:])
    parts = [
        verdict,
        f"<ul>{more}</ul>" if more else "",
        tiles([(value, what) for what, value in numbers(result)[:7]]),
        legend({name: MEANINGS[name] for name in ("wait", "step")}),
        section("Waiting", _waiting(result), "The share of time that steps waited for data."),
        section("Length of the waits", _waits(result), "Steps that waited at all. Lines: median, 90 %, 99 %."),
        section("Fetched", _fetched(result), "Bytes fetched since the start of the run."),
        section("On disk", _resident(result), "The fullest node's shards, including those that it is fetching."),
        section("Cache", _cache(result), "A hit is a shard in the cache, or one that another rank is fetching."),
        section("Nodes", table(node_rows(result)), ""),
        section("Numbers", table([("", ""), *numbers(result)]), ""),
    ]
    return document(f"fkat_data simulates {name}", parts)


def _waiting(result: Simulation) -> str:
    if result.duration_s <= 0:
        return "<p>The run takes no time.</p>"
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
    return stacked(edges_s, both, "share of time that steps waited for data")


def _waits(result: Simulation) -> str:
    found = distribution(result.wait_s[result.wait_s > 0].tolist())
    if found is None:
        return "<p>No step waits.</p>"
    plot = histogram(found, "wait", "how long a step waits")
    return f'<div class="pair"><figure>{plot}{quantiles(found)}</figure></div>'


def _fetched(result: Simulation) -> str:
    sums = [(at_s, sum(values) / _GIBIBYTE) for at_s, values in ((s.at_s, s.fetched_bytes) for s in result.snapshots)]
    plot = _plot(result, "GiB, all nodes together", sums)
    if len(result.nodes) == 1:
        return plot
    most = [(snapshot.at_s, max(snapshot.fetched_bytes) / _GIBIBYTE) for snapshot in result.snapshots]
    return plot + _plot(result, "GiB, the node that fetched most", most)


def _resident(result: Simulation) -> str:
    sizes = [(snapshot.at_s, max(snapshot.resident_bytes) / _GIBIBYTE) for snapshot in result.snapshots]
    counts = [(snapshot.at_s, float(max(snapshot.resident_shards))) for snapshot in result.snapshots]
    return _plot(result, "GiB", sizes) + _plot(result, "shards", counts)


def _cache(result: Simulation) -> str:
    hits = [(snapshot.at_s, float(sum(snapshot.num_hits))) for snapshot in result.snapshots]
    fetches = [(snapshot.at_s, float(sum(snapshot.num_fetches))) for snapshot in result.snapshots]
    evictions = [(snapshot.at_s, float(sum(snapshot.num_evictions))) for snapshot in result.snapshots]
    plots = _plot(result, "hits", hits) + _plot(result, "fetches", fetches)
    return plots + _plot(result, "evictions", evictions) if evictions[-1][1] else plots


def _plot(result: Simulation, title: str, points: Sequence[tuple[float, float]]) -> str:
    samples = [Sample(at_s, {title: value}) for at_s, value in points]
    return f"<h3>{escape(title)}</h3>" + stepped(samples, title, max(result.duration_s, 1e-9), title)
