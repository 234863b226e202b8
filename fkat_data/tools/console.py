"""The output of the program on a terminal: lines of text, failures and progress."""

import os
import re
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from fkat_data.errors.wording import notes_of

_NOT_DONE = 2
_BROKEN_PIPE = 141
_WIDE = 1000
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x80-\x9f]")


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """End the program with the exit code of what SIGPIPE ends: 1 would say that data are damaged, or differ."""
        self.quiet = True
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())
        raise SystemExit(_BROKEN_PIPE)


def terminal() -> Console:
    """Return the terminal. It shows texts as they are: a path may look like rich's markup, or an emoji's code."""
    shown = _Terminal(markup=False, emoji=False, highlight=False)
    if not shown.is_terminal and "COLUMNS" not in os.environ:
        shown.width = _WIDE  # what reads a pipe or a file looks for whole names
    return shown


def printable(text: str) -> str:
    """Return a text with its control characters written out: a name in a file must not steer the terminal."""
    return _CONTROL_CHARACTERS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text, its first line in a style."""
    # Users copy paths and values from here, so rich does not wrap lines.
    first, *rest = printable(text).split("\n")
    console.print(first, style=style, soft_wrap=True)
    if rest:
        console.print("\n".join(rest), soft_wrap=True)


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
        say(console, "\n".join(["; ".join([f"{meaning}: {first}", *notes_of(error)]), *rest]), "red")
        raise typer.Exit(_NOT_DONE) from error


def exit_on_failure(console: Console, meaning: str) -> AbstractContextManager[None]:
    """End the program with exit code 2 if the context raises an error of any kind."""
    return exit_on(console, {Exception: meaning})


@contextmanager
def progress_bar(console: Console, count: str, *more: ProgressColumn) -> Generator[Progress]:
    """Show a progress bar on a terminal during the context."""
    counted, activity = TextColumn(count, markup=False), TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), activity, BarColumn(), counted, TimeElapsedColumn(), *more)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


@contextmanager
def long_work(console: Console, activity: str) -> Generator[None]:
    """Show during the context what a command does, and for how long."""
    with progress_bar(console, "") as bar:
        bar.add_task(activity, total=None)
        yield
