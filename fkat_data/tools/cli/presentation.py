"""What the terminal shows: lines of text, failures, progress and the result of ``verify-resume``."""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fkat_data.tools.resume_check.verify import ProgressCallback, ResumeReport

__all__ = ["exit_on", "exit_on_failure", "progress_bar", "say", "show_report", "verification_progress"]

_NOT_DONE = 2


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text, its first line in a style."""
    # Users copy paths and values from here, so rich neither wraps lines nor colours their content.
    first, *rest = text.split("\n")
    console.print(first, style=style, markup=False, highlight=False, soft_wrap=True)
    if rest:
        console.print("\n".join(rest), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def exit_on(console: Console, failures: Mapping[type[BaseException], str]) -> Generator[None]:
    """End the program with exit code 2 if the context raises one of these errors.

    It prints, on one line, what the failure means, the error, and the error's notes, which say where it happened. The
    further lines of an error that has several follow.

    Args:
        console: The terminal.
        failures: What each kind of error means. The first kind that fits an error counts.
    """
    try:
        yield
    except typer.Exit:
        raise
    except tuple(failures) as error:
        meaning = next(text for kind, text in failures.items() if isinstance(error, kind))
        first, *rest = f"{type(error).__name__}: {error}".splitlines()
        notes: list[str] = getattr(error, "__notes__", [])
        say(console, "\n".join(["; ".join([f"{meaning}: {first}", *notes]), *rest]), "red")
        raise typer.Exit(_NOT_DONE) from error


def exit_on_failure(console: Console, meaning: str) -> AbstractContextManager[None]:
    """End the program with exit code 2 if the context raises an error of any kind."""
    return exit_on(console, {Exception: meaning})


def progress_bar(console: Console, count: str, *more: ProgressColumn) -> Progress:
    """Return a progress bar, which shows nothing where the output is not a terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn(count), TimeElapsedColumn())
    return Progress(*columns, *more, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def verification_progress(console: Console) -> Generator[ProgressCallback]:
    """Show a progress bar during the context, and yield the function that moves it on."""
    with progress_bar(console, "{task.completed} microbatches") as bar:
        task = bar.add_task("starting", total=None)
        yield lambda phase, count: bar.update(task, description=phase, advance=count)


def show_report(console: Console, report: ResumeReport) -> None:
    """Print a table of the stops, then the report."""
    if report.trials:
        table = Table(
            "stopped after",
            "saved",
            "resumed",
            "compared",
            "outcome",
            caption="n/m ahead: n shards, m microbatches prefetched",
        )
        for trial in report.trials:
            outcome = "exact" if trial.is_exact else "FAILED" if trial.error is not None else "DIFFERS"
            row = (str(trial.stop), str(trial.saved), str(trial.resumed), str(trial.num_compared), outcome)
            table.add_row(*row, style=None if trial.is_exact else "red")
        console.print(table)
    say(console, str(report), "green" if report.is_exact else "red")
