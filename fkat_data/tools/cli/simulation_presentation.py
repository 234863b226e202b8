"""What a terminal shows of a simulated run."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from rich.console import Console
from rich.table import Table

from fkat_data.tools.cli.presentation import say
from fkat_data.tools.report.charts import duration
from fkat_data.tools.simulation.advice import readable_bytes
from fkat_data.tools.simulation.remedies import HARDLY
from fkat_data.tools.simulation.result import Simulation

__all__ = ["node_rows", "numbers", "show_simulation"]

_NUM_PIECES = 8
_MOST_NODES = 16


def show_simulation(console: Console, result: Simulation, advice: Sequence[str]) -> None:
    """Print a simulated run: its numbers, how it goes over time, its nodes, and what to change."""
    table = Table("", "", show_header=False, title=f"{result.num_steps:,} steps, simulated")
    for what, value in numbers(result):
        table.add_row(what, value)
    console.print(table)
    console.print(_over_time(result))
    head, *rows = node_rows(result)
    table = Table(*head, title="nodes")
    for row in rows[:_MOST_NODES]:
        table.add_row(*row)
    console.print(table)
    if len(rows) > _MOST_NODES:
        say(console, f"and {len(rows) - _MOST_NODES} more nodes", None)
    for number, text in enumerate(advice):
        style = "green" if number == 0 and result.later_share <= HARDLY else None
        say(console, f"- {text}", style)


def numbers(result: Simulation) -> list[tuple[str, str]]:
    """Return what is told of a run as a whole: what it is, and its value."""
    quality = result.quality
    return [
        ("of the time waited", f"{result.waited_share:.1%}"),
        ("of it once an epoch has begun", f"{result.later_share:.1%}"),
        ("in all", _told(result.duration_s)),
        ("waited", _told(result.waited_s)),
        ("to the first batch", _told(result.first_batch_s)),
        ("warm-up", f"{_told(result.warm_up_s)} ({result.num_warm_up_steps:,} of the steps)"),
        ("steps that waited", f"{result.num_waits:,}"),
        ("of these after the warm-up", f"{result.num_late_waits:,}"),
        ("epochs begun", f"{result.num_epochs:,}"),
        ("fetched by a node, at most", readable_bytes(max(node.fetched_bytes for node in result.nodes))),
        ("fetched by all nodes", readable_bytes(sum(node.fetched_bytes for node in result.nodes))),
        ("shards used", f"{result.num_shards:,}"),
        ("fetched again within an epoch", f"{sum(node.num_fetched_again for node in result.nodes):,}"),
        ("on a node's disk, at most", readable_bytes(max(node.most_bytes for node in result.nodes))),
        ("all that a node uses", readable_bytes(result.whole_bytes)),
        (
            "shards in a step",
            f"{quality.shards_per_step:,.4g} ({quality.perfect_shards_per_step:,.4g} if shuffled without shards)",
        ),
        ("distance of neighbours", f"{quality.spread:.0%} of that of a shuffle without shards, in bits"),
    ]


def node_rows(result: Simulation) -> list[tuple[str, ...]]:
    """Return the nodes, a row each, below a row of headings."""
    rows: list[tuple[str, ...]] = [
        ("node", "fetched", "shards", "fetches", "again", "found", "awaited", "evicted", "on the disk")
    ]
    for number, node in enumerate(result.nodes):
        counts = (
            node.num_shards,
            node.num_fetches,
            node.num_fetched_again,
            node.num_hits,
            node.num_shared,
            node.num_evictions,
        )
        rows.append(
            (
                str(number),
                readable_bytes(node.fetched_bytes),
                *(f"{count:,}" for count in counts),
                readable_bytes(node.most_bytes),
            )
        )
    return rows


def _over_time(result: Simulation) -> Table:
    table = Table("steps", "waited", "share", "fetched by all", "on a disk, at most", "shards there", title="over time")
    num_pieces = min(_NUM_PIECES, result.num_steps)
    edges = [result.num_steps * piece // num_pieces for piece in range(num_pieces + 1)]
    steps = [moment.step for moment in result.moments]
    for first, stop in pairwise(edges):
        waited_s = float(result.wait_s[first:stop].sum())
        total_s = waited_s + (stop - first) * result.setup.step_s
        moment = result.moments[max(0, int(np.searchsorted(steps, stop, side="right")) - 1)]
        table.add_row(
            f"{first:,} to {stop:,}",
            _told(waited_s),
            f"{waited_s / total_s if total_s else 0.0:.1%}",
            readable_bytes(sum(moment.fetched_bytes)),
            readable_bytes(max(moment.resident_bytes)),
            f"{max(moment.resident_shards):,}",
        )
    return table


def _told(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    if seconds >= 300:
        return f"{seconds / 60:,.1f} min"
    return duration(seconds) if seconds else "0 s"
