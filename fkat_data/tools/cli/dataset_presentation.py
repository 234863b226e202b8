"""What the terminal shows about a dataset."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.progress import TimeRemainingColumn
from rich.table import Table

from fkat_data.quantities import readable_bytes
from fkat_data.streaming.formats.summary import DatasetSummary
from fkat_data.streaming.formats.verification import DatasetReport
from fkat_data.tools.cli.presentation import printable, progress_bar, say

_LONGEST_VALUE = 100
_MOST_ITEMS = 8


@contextmanager
def sample_progress(console: Console, activity: str) -> Generator[Callable[[int, int | None], None]]:
    """Show a progress bar during the context, and yield the function that sets (samples done, total samples)."""
    with progress_bar(console, "{task.completed:,} samples", TimeRemainingColumn()) as bar:
        task = bar.add_task(activity, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_summary(console: Console, directory: Path, summary: DatasetSummary) -> None:
    """Print a dataset's shards, samples, sizes and columns."""
    say(console, str(directory), "bold")
    kinds = f" ({', '.join(summary.formats)})" if summary.formats else ""
    least, most = f"{summary.least_samples:,}", f"{summary.most_samples:,}"
    each = f" of {least if least == most else f'{least} to {most}'} samples" if summary.num_shards else ""
    shards = f"{summary.num_shards:,} shard{'' if summary.num_shards == 1 else 's'}{kinds}{each}"
    say(console, f"{summary.num_samples:,} samples in {shards}")
    compression = ", ".join(name or "none" for name in summary.compressions) or "none"
    sizes = f"{readable_bytes(summary.stored_bytes)} stored, {readable_bytes(summary.raw_bytes)} decompressed"
    say(console, f"{sizes}; compression: {compression}; hashes: {', '.join(summary.hashes) or 'none'}")
    for number, columns in enumerate(summary.columns):
        title = (
            None if len(summary.columns) == 1 else f"columns of some shards ({number + 1} of {len(summary.columns)})"
        )
        table = Table("column", "encoding", "bytes", title=title)
        for column in columns:
            size = "variable" if column.size_bytes is None else f"{column.size_bytes:,}"
            table.add_row(printable(column.name), printable(column.encoding), size)
        console.print(table)


def show_samples(console: Console, samples: Sequence[dict[str, Any]]) -> None:
    """Print samples, with long values cut short."""
    for number, sample in enumerate(samples):
        say(console, f"sample {number}", "bold")
        for name, value in sample.items():
            say(console, f"  {name}: {_shown(value)}")


def show_problems(console: Console, directory: Path, report: DatasetReport) -> None:
    """Print the problems that a verification found, and what it checked."""
    for problem in report.problems:
        say(console, str(problem), "red")
    done = (
        f"{directory}: {report.num_samples:,} samples decoded, {readable_bytes(report.num_bytes)} and "
        f"{report.num_hashes:,} hashes compared with the index, {len(report.problems)} of {report.num_shards:,} "
        "shards damaged"
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
