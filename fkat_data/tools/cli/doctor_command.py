"""The command ``doctor``: whether this machine and a configuration are fit for a run."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fkat_data.errors import ConfigurationError
from fkat_data.location import machine_path
from fkat_data.tools.cli.audit_commands import Overrides
from fkat_data.tools.cli.composition import loader_maker
from fkat_data.tools.cli.presentation import exit_on_failure, say, terminal
from fkat_data.tools.doctor.examine import examine
from fkat_data.tools.doctor.finding import Finding, Level, worst_of

_EXIT_CODES = {Level.OK: 0, Level.ADVICE: 1, Level.WRONG: 2}
_STYLES = {Level.OK: "green", Level.ADVICE: "yellow", Level.WRONG: "red"}
_WORDS = {
    Level.OK: "Everything is in order.",
    Level.ADVICE: "A run works; see the advice.",
    Level.WRONG: "A run fails or loses much; see what is wrong.",
}

doctor_app: typer.Typer = typer.Typer()


@doctor_app.command("doctor")
def doctor_command(
    config: Annotated[str | None, typer.Argument(help="A YAML file in a Hydra configuration folder.")] = None,
    overrides: Overrides = None,
    key: Annotated[
        str | None, typer.Option(help="The node of a loader or a dataset. [default: loader, or the whole file]")
    ] = None,
    cache: Annotated[list[str] | None, typer.Option(help="A directory for cached shards. Repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Examine this machine and what a configuration would do.

    It also lists the installed packages. With a configuration, it makes the loader once, workers included, and reads no data.

    Exit code 0: everything is in order. 1: a run works, and something could be better. 2: something is wrong.
    """
    console = terminal()
    with exit_on_failure(console, "nothing was examined"):
        make_loader = None
        if config is not None:
            make_loader = loader_maker(config, overrides or [], key)
        elif key is not None:
            raise ConfigurationError("--key", key, "a CONFIG beside it")
        directories = [machine_path("--cache", path, "a directory of this machine") for path in cache or []]
        found = examine(make_loader, map(Path, directories))
    level = worst_of([finding for findings in found.values() for finding in findings])
    if as_json:
        parts = {part: [finding.as_dict() for finding in findings] for part, findings in found.items()}
        say(console, json.dumps({"level": str(level), **parts}))
    else:
        for part, findings in found.items():
            _show(console, part, findings)
        say(console, _WORDS[level], _STYLES[level])
    raise typer.Exit(_EXIT_CODES[level])


def _show(console: Console, part: str, findings: list[Finding]) -> None:
    table = Table(title=part, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(finding.found).append(f"\n{finding.change}" if finding.change else "", "dim")
        table.add_row(Text(finding.level, _STYLES[finding.level]), finding.subject, text)
    console.print(table)
