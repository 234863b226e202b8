"""What a terminal shows of a dataset."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fkat_data.streaming.formats.summary import DatasetSummary
from fkat_data.streaming.formats.verification import DatasetReport
from fkat_data.tools.cli.presentation import say

__all__ = ["counting", "show_problems", "show_samples", "show_summary"]

_LONGEST_VALUE = 100
_MOST_ITEMS = 8
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@contextmanager
def counting(console: Console, what: str) -> Generator[Callable[[int, int | None], None]]:
    """Show a bar while the context lasts, on a terminal; yields the function to tell (samples done, in all)."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} samples"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_summary(console: Console, directory: Path, summary: DatasetSummary) -> None:
    """Print what a dataset consists of."""
    say(console, str(directory), "bold")
    kinds = f" ({', '.join(summary.formats)})" if summary.formats else ""
    least, most = f"{summary.least_samples:,}", f"{summary.most_samples:,}"
    each = f" of {least if least == most else f'{least} to {most}'} samples" if summary.num_shards else ""
    shards = f"{summary.num_shards:,} shard{'' if summary.num_shards == 1 else 's'}{kinds}{each}"
    say(console, f"{summary.num_samples:,} samples in {shards}", None)
    compression = ", ".join(name or "not at all" for name in summary.compressions) or "not at all"
    stored = f"stored {_size(summary.stored_bytes)}, read {_size(summary.raw_bytes)}; compressed: {compression}"
    say(console, f"{stored}; hashes: {', '.join(summary.hashes) or 'none'}", None)
    for number, columns in enumerate(summary.columns):
        title = (
            None if len(summary.columns) == 1 else f"columns of some shards ({number + 1} of {len(summary.columns)})"
        )
        table = Table("column", "encoding", "bytes", title=title)
        for column in columns:
            size = "variable" if column.size_bytes is None else f"{column.size_bytes:,}"
            table.add_row(_plain(column.name), _plain(column.encoding), size)
        console.print(table)


def show_samples(console: Console, samples: Sequence[dict[str, Any]]) -> None:
    """Print samples, long values shortened."""
    for number, sample in enumerate(samples):
        say(console, f"sample {number}", "bold")
        for name, value in sample.items():
            say(console, f"  {name}: {_shown(value)}", None)


def show_problems(console: Console, directory: Path, report: DatasetReport) -> None:
    """Print what was verified, and what is wrong."""
    for problem in report.problems:
        say(console, str(problem), "red")
    done = (
        f"{directory}: {report.num_samples:,} samples decoded, {_size(report.num_bytes)} and {report.num_hashes:,} "
        f"hashes held against the index, {len(report.problems)} of {report.num_shards:,} shards damaged"
    )
    say(console, done, "red" if report.problems else "green")


def _shown(value: Any) -> str:
    if hasattr(value, "dtype") and getattr(value, "shape", ()):
        flat = " ".join(map(str, value.reshape(-1)[:8].tolist()))
        dots = " …" if value.size > 8 else ""
        return f"{value.dtype} array of shape {tuple(value.shape)}: {flat}{dots}"
    if hasattr(value, "getbands"):
        return f"image of {value.size[0]} x {value.size[1]}, mode {value.mode}"
    if isinstance(value, list):
        items = cast("list[Any]", value)
        text = f"[{', '.join(map(_shown, items[:_MOST_ITEMS]))}{', …' if len(items) > _MOST_ITEMS else ''}]"
    else:
        text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _plain(text: str) -> str:
    return text.replace("[", "\\[")  # brackets are markup to rich


def _size(size_bytes: float) -> str:
    for unit in _UNITS[:-1]:
        if size_bytes < 1024:
            return f"{size_bytes:,.0f} {unit}" if unit == "bytes" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} {_UNITS[-1]}"
