"""The commands of the program, and their options."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fkat_data.errors import ConfigurationError
from fkat_data.tools.cli.audit_commands import audit_app
from fkat_data.tools.cli.composition import loader_maker
from fkat_data.tools.cli.dataset_commands import dataset_app
from fkat_data.tools.cli.overdue import OverdueError, overdue_after
from fkat_data.tools.cli.presentation import progress_shown, show_failure, show_report
from fkat_data.tools.cli.simulate_commands import simulate_app
from fkat_data.tools.report.page import page
from fkat_data.tools.report.traced_run import read_run
from fkat_data.tools.resume_check.verify import verify_resume

__all__ = ["Mode", "app", "report_command", "start", "verify_resume_command"]

_NOT_EXACT = 1
_NOT_VERIFIED = 2
_NO_REPORT = 2
_LEAST_GRACE_S = 2.0

app = typer.Typer(
    name="fkat-data", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.add_typer(dataset_app)
app.add_typer(audit_app)
app.add_typer(simulate_app)


class Mode(StrEnum):
    """Where the data are made."""

    BOTH = "both"
    WORKERS = "workers"
    IN_PROCESS = "in-process"

    @property
    def multiprocessing(self) -> bool | None:
        """The argument of ``verify_resume`` that it stands for."""
        return {Mode.BOTH: None, Mode.WORKERS: True, Mode.IN_PROCESS: False}[self]


@app.callback()
def start() -> None:
    """Tools for data loaded with fkat_data."""
    # As `python -m` does: a configuration names the user's own modules.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


@app.command("verify-resume")
def verify_resume_command(
    config: Annotated[Path, typer.Argument(help="A YAML file; its folder is the Hydra configuration tree.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Hydra overrides, as in seed=3.")] = None,
    key: Annotated[str | None, typer.Option(help="The loader's node. [default: loader, or the whole file]")] = None,
    microbatches: Annotated[
        int | None, typer.Option(help="Microbatches of a run. [default: an epoch and a quarter, at most 200]")
    ] = None,
    trials: Annotated[int, typer.Option(help="How many stops.")] = 8,
    seed: Annotated[int, typer.Option(help="Decides on the stops and the prefetch depths.")] = 0,
    mode: Annotated[Mode, typer.Option(help="Where the data are made.")] = Mode.BOTH,
    timeout_s: Annotated[float, typer.Option(help="Seconds after which it ends.")] = 600.0,
) -> None:
    """Stop and resume the loader of a configuration at random places, and compare it with a run that nothing stops.

    Exit code 0: every stop was resumed bit for bit. 1: not so; the place and the likely cause are named. 2: the
    configuration or the data do not work, so nothing was verified.
    """
    console = Console()
    try:
        make_loader = loader_maker(config, overrides or [], key)
        with overdue_after(timeout_s + max(_LEAST_GRACE_S, timeout_s / 4)), progress_shown(console) as progress:
            report = verify_resume(
                make_loader,
                num_microbatches=microbatches,
                num_trials=trials,
                seed=seed,
                multiprocessing=mode.multiprocessing,
                timeout_s=timeout_s,
                progress=progress,
            )
    except ConfigurationError as error:
        show_failure(console, "the configuration does not work, so nothing was verified", error)
        raise typer.Exit(_NOT_VERIFIED) from error
    except OverdueError as error:
        show_failure(console, "the loader hangs, so nothing was verified", error)
        raise typer.Exit(_NOT_VERIFIED) from error
    except Exception as error:
        show_failure(console, "the data fail without a stop, so nothing was verified", error)
        raise typer.Exit(_NOT_VERIFIED) from error
    show_report(console, report)
    raise typer.Exit(0 if report.is_exact else _NOT_EXACT)


@app.command("report")
def report_command(
    timeline: Annotated[Path, typer.Argument(help="What a loader's `trace` has written; the run may still go on.")],
    output: Annotated[Path | None, typer.Option(help="The page. [default: beside the timeline, .html]")] = None,
) -> None:
    """Turn a timeline into one page of HTML: who waits for whom, how long things take, and what to change.

    Exit code 0: the page was written. 2: there is no such timeline, or the page cannot be written.
    """
    console = Console()
    written = timeline.with_suffix(".html") if output is None else output
    try:
        run = read_run(timeline)
        written.write_text(page(run, timeline.name), encoding="utf-8")
    except (ConfigurationError, OSError) as error:
        show_failure(console, "there is no report", error)
        raise typer.Exit(_NO_REPORT) from error
    console.print(str(run.statistics.verdict), markup=False, highlight=False, soft_wrap=True)
    console.print(str(written), markup=False, highlight=False, soft_wrap=True)
