"""What the terminal shows about a simulated run."""

from itertools import pairwise

import numpy as np
from rich.console import Console
from rich.table import Table

from fkat_data.quantities import counted, readable_bytes, readable_duration
from fkat_data.tools.cli.presentation import say
from fkat_data.tools.simulation.resplit import Resplit
from fkat_data.tools.simulation.result import Simulation

_NUM_PIECES = 8
_MOST_NODES = 5
_COMPARED = {
    "time spent waiting",
    "total time",
    "time to the first batch",
    "fetched by one node, at most",
    "fetched by all nodes",
    "on one node's disk, at most",
}


def show_simulation(console: Console, result: Simulation) -> None:
    """Print a simulated run: its numbers, its course over time, and its nodes."""
    table = Table("", "", show_header=False, title=f"{result.num_steps:,} steps, simulated")
    for what, value in _numbers(result):
        table.add_row(what, value)
    console.print(table)
    console.print(_over_time(result))
    # A column for each node: beside one another, the names of the numbers would not fit a terminal.
    head, *lines = zip(*_node_rows(result)[: 1 + _MOST_NODES], strict=True)
    table = Table(*head, title="nodes")
    for line in lines:
        table.add_row(*line)
    console.print(table)
    if len(result.nodes) > _MOST_NODES:
        say(console, f"and {counted(len(result.nodes) - _MOST_NODES, 'more node')}")


def show_resplit(console: Console, found: Resplit) -> None:
    """Print an epoch that another number of nodes finishes: both parts side by side, and how often samples come."""
    before, after, samples = found.before, found.after, found.samples
    sides = (before, after)
    table = Table("", "before", "after", title=f"re-split at step {found.step:,}")
    table.add_row("nodes", *(f"{side.setup.num_nodes:,}" for side in sides))
    table.add_row("steps", *(f"{side.num_steps:,}" for side in sides))
    table.add_row("samples delivered", f"{samples.num_before:,}", f"{samples.num_after:,}")
    for (what, value), (_, other) in zip(_numbers(before), _numbers(after), strict=True):
        if what in _COMPARED:
            table.add_row(what, value, other)
    kept = sum(len(shards) for shards in before.cached[: after.setup.num_nodes])
    table.add_row("shards in the caches of nodes that stay", "", f"{kept:,}")
    console.print(table)
    if samples.num_missing:
        say(console, f"{samples.num_missing:,} samples of the epoch's {samples.num_due:,} are not delivered.", "red")
    else:
        say(console, f"All {samples.num_due:,} samples of the epoch are delivered.", "green")
    if samples.num_repeated:
        say(console, f"{samples.num_repeated:,} are delivered again, so that all ranks read the same number.")


def _numbers(result: Simulation) -> list[tuple[str, str]]:
    """Return the numbers of a whole run: the name of each, and its value."""
    return [
        ("time spent waiting", f"{result.waited_share:.1%}"),
        ("waiting, excluding first steps", f"{result.later_share:.1%}"),
        ("total time", readable_duration(result.duration_s)),
        ("waited", readable_duration(result.waited_s)),
        ("time to the first batch", readable_duration(result.first_batch_s)),
        ("warm-up", f"{readable_duration(result.warm_up_s)} ({counted(result.num_warm_up_steps, 'step')})"),
        ("steps that waited", f"{result.num_waits:,}"),
        ("of these, after the warm-up", f"{result.num_late_waits:,}"),
        ("epochs started", f"{result.num_epochs:,}"),
        ("fetched by one node, at most", readable_bytes(max(node.fetched_bytes for node in result.nodes))),
        ("fetched by all nodes", readable_bytes(sum(node.fetched_bytes for node in result.nodes))),
        ("shards used", f"{result.num_shards:,}"),
        ("repeated fetches in an epoch", f"{sum(node.num_fetched_again for node in result.nodes):,}"),
        ("on one node's disk, at most", readable_bytes(max(node.most_bytes for node in result.nodes))),
        ("used by one node, at most", readable_bytes(result.whole_bytes)),
    ]


def _node_rows(result: Simulation) -> list[tuple[str, ...]]:
    """Return a row of headings and a row for each node."""
    rows: list[tuple[str, ...]] = [
        ("node", "fetched", "shards", "fetches", "repeated", "cache hits", "shared", "evictions", "most on disk")
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
    table = Table("steps", "waited", "share", "fetched by all", "most on one disk", "shards on disk", title="over time")
    num_pieces = min(_NUM_PIECES, result.num_steps)
    edges = [result.num_steps * piece // num_pieces for piece in range(num_pieces + 1)]
    steps = [snapshot.step for snapshot in result.snapshots]
    for first, stop in pairwise(edges):
        waited_s = float(result.wait_s[first:stop].sum())
        total_s = waited_s + (stop - first) * result.setup.step_s
        snapshot = result.snapshots[max(0, int(np.searchsorted(steps, stop, side="right")) - 1)]
        table.add_row(
            f"{first:,} to {stop:,}",
            readable_duration(waited_s),
            f"{waited_s / total_s if total_s else 0.0:.1%}",
            readable_bytes(sum(snapshot.fetched_bytes)),
            readable_bytes(max(snapshot.resident_bytes)),
            f"{max(snapshot.resident_shards):,}",
        )
    return table
