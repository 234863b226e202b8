"""The command that says how full the sequences of some lengths will be, and how long ranks wait for one another."""

import json
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.table import Table

from fkat_data.datasets import PackedDataset, PlanReport, attention_cost, plan_report
from fkat_data.errors import ConfigurationError
from fkat_data.storage.location import machine_path
from fkat_data.tools.console import exit_on_failure, long_work, say, terminal

balance_app: typer.Typer = typer.Typer()


@balance_app.command("balance")
def balance_command(
    lengths: Annotated[
        str, typer.Argument(metavar="LENGTHS", help="The documents' lengths: a .npy, or text with a number a line.")
    ],
    sequence_length: Annotated[int, typer.Option(help="Tokens of a sequence.", min=1)],
    hidden_size: Annotated[int, typer.Option(help="Width of the model.", min=1)],
    ranks: Annotated[int, typer.Option(help="Number of data-parallel ranks.", min=1)] = 8,
    attention_window: Annotated[
        int | None, typer.Option(help="Tokens that sliding-window attention sees. [default: all]", min=1)
    ] = None,
    accumulate: Annotated[int, typer.Option(help="Sequences of a rank in an optimizer step.", min=1)] = 1,
    window_size: Annotated[int, typer.Option(help="Documents to pack together.", min=1)] = 4096,
    too_long: Annotated[str, typer.Option(help="As the argument of PackedDataset.")] = "raise",
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Say how unequally ranks compute packed sequences.

    It plans an epoch of a PackedDataset without and with cost=, and compares what the slowest rank computes with the mean
    of all. It needs the lengths alone.

    Exit code 0: planned. 2: the lengths or the options do not work.
    """
    console = terminal()
    with exit_on_failure(console, "nothing was planned"), long_work(console, "planning"):
        found = _read(lengths)
        cost = attention_cost(hidden_size, attention_window)
        reports: dict[str, PlanReport] = {}
        for name, dealing in {"in turn": {}, "by cost": {"cost": cost, "accumulate": accumulate}}.items():
            options: dict[str, Any] = {"seed": 0, "world_size": ranks, "too_long": too_long, **dealing}
            dataset = PackedDataset(range(len(found)), sequence_length, window_size, lengths=found, **options)
            reports[name] = plan_report(dataset, cost=cost, accumulate=accumulate)
    if as_json:
        say(console, json.dumps({name: report._asdict() for name, report in reports.items()}))
        return
    table = Table("sequences are dealt", "steps", "filled", "padding", "slowest rank to the mean", "in the worst step")
    for name, report in reports.items():
        shares = f"{report.fill:.1%}", f"{report.padding:.1%}", f"{report.slowest:.3f}", f"{report.slowest_worst:.2f}"
        table.add_row(name, f"{report.num_steps:,}", *shares)
    console.print(table)


def _read(lengths: str) -> npt.NDArray[np.int64]:
    path = machine_path("LENGTHS", lengths, "a file of this machine")
    try:
        return np.load(path) if path.suffix == ".npy" else np.loadtxt(path, np.int64, ndmin=1)
    except ValueError as error:
        raise ConfigurationError("LENGTHS", lengths, f"a .npy, or text with a number a line ({error})") from None
