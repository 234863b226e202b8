"""What a terminal shows of a verification."""

from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fkat_data.tools.resume_check.verify import Progress as Told
from fkat_data.tools.resume_check.verify import ResumeReport

__all__ = ["progress_shown", "say", "show_failure", "show_report"]


@contextmanager
def progress_shown(console: Console) -> Generator[Told]:
    """Show what is being done while the context lasts, on a terminal; yields the function to tell of it."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed} microbatches"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def tell(phase: str, count: int) -> None:
            bar.update(task, description=phase, advance=count)

        yield tell


def show_report(console: Console, report: ResumeReport) -> None:
    """Print a table of the stops, then what they say."""
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


def show_failure(console: Console, what: str, error: BaseException) -> None:
    """Print why nothing was verified: the error with its notes, which name its place."""
    say(console, f"{what}:", "red")
    text = f"{type(error).__name__}: {error}"
    say(console, "\n".join([text, *(str(note) for note in getattr(error, "__notes__", []))]), None)


def say(console: Console, text: str, style: str | None) -> None:
    """Print a text, its first line in a style."""
    # Not wrapped and not coloured by content: paths and values are copied from here.
    first, *rest = text.split("\n")
    console.print(first, style=style, markup=False, highlight=False, soft_wrap=True)
    if rest:
        console.print("\n".join(rest), markup=False, highlight=False, soft_wrap=True)
