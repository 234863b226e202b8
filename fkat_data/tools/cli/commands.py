"""The program's command line: ``doctor``, ``verify-resume``, ``report`` and the commands of the other modules."""

import json
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fkat_data import __version__, arguments
from fkat_data.errors import ConfigurationError
from fkat_data.location import machine_path
from fkat_data.tools.cli.audit_commands import Config, Overrides, audit_app
from fkat_data.tools.cli.composition import loader_maker
from fkat_data.tools.cli.dataset_commands import dataset_app
from fkat_data.tools.cli.presentation import exit_on, exit_on_failure, say, show_report, terminal, verification_progress
from fkat_data.tools.cli.simulate_commands import simulate_app
from fkat_data.tools.doctor.examine import examine
from fkat_data.tools.doctor.findings import Finding, Level, worst_of
from fkat_data.tools.report.page import page
from fkat_data.tools.report.traced_run import read_run
from fkat_data.tools.resume_check.verify import verify_resume

_NOT_EXACT = 1
_LEAST_GRACE_S = 2.0
_EXIT_CODES = {Level.OK: 0, Level.ADVICE: 1, Level.WRONG: 2}
_STYLES = {Level.OK: "green", Level.ADVICE: "yellow", Level.WRONG: "red"}
_WORDS = {
    Level.OK: "Everything is in order.",
    Level.ADVICE: "A run works; see the advice.",
    Level.WRONG: "A run fails or loses much; see what is wrong.",
}

app: typer.Typer = typer.Typer(
    name="fkat-data",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)
app.add_typer(dataset_app)
app.add_typer(audit_app)
app.add_typer(simulate_app)


class Mode(StrEnum):
    """Where the loader makes the data."""

    BOTH = "both"
    WORKERS = "workers"
    IN_PROCESS = "in-process"

    @property
    def multiprocessing(self) -> bool | None:
        """The value of the argument of ``verify_resume``."""
        return {Mode.BOTH: None, Mode.WORKERS: True, Mode.IN_PROCESS: False}[self]


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"fkat-data {__version__}")
        raise typer.Exit


@app.callback()
def start(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Inspect, convert, verify and simulate data for fkat_data."""
    # As `python -m` does, because a configuration names the user's own modules.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


@app.command("doctor")
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


@app.command("verify-resume")
def verify_resume_command(
    config: Config,
    overrides: Overrides = None,
    key: Annotated[str | None, typer.Option(help="The loader's node. [default: loader, or the whole file]")] = None,
    microbatches: Annotated[
        int | None, typer.Option(help="Microbatches of a run. [default: an epoch and a quarter, at most 200]")
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of stops.")] = 8,
    seed: Annotated[int, typer.Option(help="Chooses the stops and the prefetch depths.")] = 0,
    mode: Annotated[Mode, typer.Option(help="Where the loader makes the data.")] = Mode.BOTH,
    timeout_s: Annotated[float, typer.Option(help="Time limit in seconds.")] = 600.0,
) -> None:
    """Check that a loader resumes exactly.

    It stops and resumes a configuration's loader at random places, and compares it with an uninterrupted run.

    Exit code 0: every resume was exact, bit for bit. 1: some were not; the output names the place and the likely
    cause. 2: the configuration or the data do not work, so nothing was verified.
    """
    console = terminal()
    failures: dict[type[BaseException], str] = {
        ConfigurationError: "the configuration does not work, so nothing was verified",
        HangError: "the loader hangs, so nothing was verified",
        Exception: "the data fail even without a stop, so nothing was verified",
    }
    with exit_on(console, failures):
        timeout_s = arguments.seconds("--timeout-s", timeout_s)
        make_loader = loader_maker(config, overrides or [], key)
        grace_s = max(_LEAST_GRACE_S, timeout_s / 4)
        with hang_guard(timeout_s + grace_s), verification_progress(console) as progress:
            report = verify_resume(
                make_loader,
                num_microbatches=microbatches,
                num_trials=trials,
                seed=seed,
                multiprocessing=mode.multiprocessing,
                timeout_s=timeout_s,
                progress=progress,
            )
    show_report(console, report)
    raise typer.Exit(0 if report.is_exact else _NOT_EXACT)


@app.command("report")
def report_command(
    timeline: Annotated[str, typer.Argument(help="A file that a loader's `trace` wrote, or is still writing.")],
    output: Annotated[Path | None, typer.Option(help="The HTML file. [default: TIMELINE with .html]")] = None,
) -> None:
    """Turn a timeline into an HTML report.

    The page shows what waits for what, how long each stage takes and what to change.

    Exit code 0: the page was written. 2: the timeline cannot be read, or the page cannot be written.
    """
    console = terminal()
    with exit_on_failure(console, "cannot write the report"):
        file = machine_path("TIMELINE", timeline, "a file of this machine that a loader's `trace` wrote")
        written = file.with_suffix(".html") if output is None else output
        run = read_run(file)
        if written.resolve() == file.resolve():
            raise ConfigurationError("--output", str(written), "another file than the timeline, which it would replace")
        written.write_text(page(run, file.name), encoding="utf-8")
    statistics = run.statistics
    say(console, str(statistics.verdict))
    if statistics.delivered:
        say(console, f"waiting for a microbatch: {statistics.waiting}; making one: {statistics.making}")
    say(console, f"The report is in {written}: open it in a browser.")


class HangError(BaseException):
    """The context did not end in time. It is no ``Exception``, so that a dataset's own handlers do not catch it."""


@contextmanager
def hang_guard(timeout_s: float) -> Generator[None]:
    """Interrupt the main thread if the context lasts longer than ``timeout_s``. Only the main thread may enter it.

    Raises:
        HangError: The time is over.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise HangError(f"the loader delivered no microbatch before the time limit ({timeout_s:g} s)")

    before = signal.signal(signal.SIGALRM, interrupt)
    # A process has one such timer, so a timer that was already running is started again afterwards.
    began_s = time.monotonic()
    others_s, interval_s = signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if others_s:
            left_s = others_s - (time.monotonic() - began_s)
            signal.setitimer(signal.ITIMER_REAL, max(left_s, 0.001), interval_s)
