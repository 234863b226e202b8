"""The commands that inspect, verify, write and merge datasets of shards."""

import os
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.progress import TimeRemainingColumn
from rich.table import Table

from fkat_data.datasets import JsonDataset, count_parallel, write_lengths
from fkat_data.errors import ConfigurationError, ShardNotFoundError
from fkat_data.errors.wording import readable_bytes
from fkat_data.files.formats import listed_format
from fkat_data.files.opening import RangedFile, changed
from fkat_data.files.shard import ShardEntry
from fkat_data.files.verification import (
    DatasetReport,
    DatasetSummary,
    datasets_in,
    first_lines,
    first_samples,
    summary_of,
    summary_of_lines,
    verify_dataset,
    verify_lines,
)
from fkat_data.storage.folders import without_sidecars
from fkat_data.storage.location import machine_path
from fkat_data.streaming.reading import NO_DATASET, Stream, no_stream, sources_of
from fkat_data.streaming.writing import IndexLocation, merge_index
from fkat_data.tools.console import exit_on_failure, long_work, printable, progress_bar, say, terminal
from fkat_data.tools.conversion import KINDS, Kind, convert, files_of_lines

_DAMAGED = 1
#: Samples that are read together.
_TOGETHER = 1024
_EXPECTED = "the directory of a dataset on this machine"

dataset_app: typer.Typer = typer.Typer()

# As text: a Path would turn the // of a URL into /.
Directory = Annotated[str, typer.Argument(help="A dataset, a folder of splits, or Parquet, tar or JSON Lines files.")]
Unsafe = Annotated[
    bool,
    typer.Option("--allow-unsafe-types", help="Read pickle columns. Unpickling can run code from the file's author."),
]


@dataset_app.command("inspect")
def inspect_command(
    directory: Directory,
    samples: Annotated[int, typer.Option(help="Number of samples to show.", min=0)] = 3,
    allow_unsafe_types: Unsafe = False,
) -> None:
    """Show a dataset's sizes, columns and first samples. Of JSON Lines, plain or compressed, it counts the lines.

    Exit code 0: shown. 2: the dataset does not exist or is invalid.
    """
    console = terminal()
    with exit_on_failure(console, "cannot show the dataset"):
        with long_work(console, f"reading the index of {directory}"):
            location = machine_path("DIRECTORY", directory, _EXPECTED)
            files, datasets = _lines_or_datasets(location)
            lines = summary_of_lines(files) if files else None
        if lines is not None:
            show_summary(console, location, lines)
            show_samples(console, first_lines(files, samples))
        for path, entries in datasets:
            show_summary(console, path, summary_of(path, entries))
            found = first_samples(path, samples, allow_unsafe_types=allow_unsafe_types, entries=entries)
            show_samples(console, found)


@dataset_app.command("verify")
def verify_command(
    directory: Directory,
    allow_unsafe_types: Unsafe = False,
) -> None:
    """Find damaged shards in a dataset.

    It compares every file with the index (sizes, hashes) and decodes every sample. Of JSON Lines, plain or compressed, it
    names the damaged lines.

    Exit code 0: everything is intact. 1: some shards or lines are damaged, or exceed a limit; the output names each
    one's first fault. 2: the dataset does not exist or cannot be read, so nothing was verified.
    """
    console = terminal()
    num_problems = 0
    with exit_on_failure(console, "nothing was verified"):
        location = machine_path("DIRECTORY", directory, _EXPECTED)
        with long_work(console, f"reading the index of {directory}"):
            files, datasets = _lines_or_datasets(location)
        if files:
            with sample_progress(console, f"verifying {location}") as progress:
                report = verify_lines(files, progress=lambda count: progress(count, None))
            num_problems += show_lines(console, location, report)
        for path, entries in datasets:
            with sample_progress(console, f"verifying {path}") as progress:
                report = verify_dataset(path, allow_unsafe_types=allow_unsafe_types, progress=progress, entries=entries)
            num_problems += show_problems(console, path, report)
    raise typer.Exit(_DAMAGED if num_problems else 0)


def _lines_or_datasets(location: Path) -> tuple[list[str], list[tuple[Path, list[ShardEntry] | None]]]:
    """Return the files of JSON lines at a location; or the datasets, as ``stored_datasets`` does."""
    if not location.is_dir() and (files := files_of_lines(location)):
        return files, []
    try:
        return [], stored_datasets(location)
    except ShardNotFoundError:
        if not location.is_dir() or not (files := files_of_lines(location)):
            raise
        return files, []


@dataset_app.command("convert")
def convert_command(
    sources: Annotated[list[str], typer.Argument(help="Files or folders, in the order of their samples.")],
    out: Annotated[str, typer.Option("--out", "-o", help="A directory, or a URL that fsspec opens.")],
    kind: Annotated[str | None, typer.Option(help=f"One of {', '.join(KINDS)}. [default: by file name]")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", "-c", help="NAME=ENCODING, replaces the encoding inferred from the data. Repeatable."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="NAME of a column to keep. Repeatable. [default: all]")] = None,
    nulls: Annotated[
        str,
        typer.Option(help="refuse: a null is an error. json: its column becomes JSON; reads all rows twice."),
    ] = "refuse",
    compression: Annotated[str | None, typer.Option(help="For example zstd or zstd:7.")] = None,
    hashes: Annotated[list[str] | None, typer.Option("--hash", help="For example xxh64 or sha256. Repeatable.")] = None,
    size_limit: Annotated[str, typer.Option(help="Maximum size of a shard.")] = "64mb",
    workers: Annotated[int, typer.Option(help="Processes. With more than 1, each file gets its own folder.")] = 1,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Replace an existing dataset.")] = False,
) -> None:
    """Convert files to a dataset of MDS shards.

    It reads JSON lines (plain, gzip, zstd, xz, bz2), comma- or tab-separated values, Parquet, Arrow files as Hugging Face
    datasets write them, tar files as webdataset writes them, or a folder with one sample per file (columns `content`
    and `path`). A pattern in quotes, such as 'shards/*.tar', names its files in natural order.

    Exit code 0: written. 2: failed; no index was written.
    """
    console = terminal()
    shown = sample_progress(console, f"writing {out}")
    with exit_on_failure(console, "nothing was converted"), shown as progress:
        try:
            num_samples = convert(
                sources,
                out,
                kind=cast("Kind | None", kind),  # convert checks it
                columns=_columns(column or []),
                only=only or [],
                nulls=cast("Literal['refuse', 'json']", nulls),
                num_workers=workers,
                progress=lambda count: progress(count, None),
                compression=compression,
                hashes=hashes,
                size_limit=size_limit,
                exist_ok=exist_ok,
            )
        except FileExistsError as error:
            # The option's name here.
            raise FileExistsError(str(error).replace("exist_ok=True", "--exist-ok")) from error
    say(console, f"wrote {num_samples:,} samples to {out}", "green")


@dataset_app.command("index")
def index_command(
    files: Annotated[list[str], typer.Argument(help="JSON Lines files: paths, or URIs such as s3://bucket/a.jsonl.")],
    lengths: Annotated[
        str | None, typer.Option(help="MODULE:FUNCTION from a sample to its length, such as its tokens.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
) -> None:
    """Write beside each file where its lines begin, so that no process reads it for that.

    With --lengths, write the lengths of the samples as well, which fkat_data.datasets.read_lengths returns.

    Exit code 0: written. 2: failed.
    """
    console = terminal()
    # A shell's pattern names what an earlier call has written, too.
    files = without_sidecars(files)
    with exit_on_failure(console, "not all files were indexed"), long_work(console, "indexing"):
        if lengths is not None:
            named_function(lengths)
        index = partial(index_file, lengths=lengths)
        if workers == 1:
            num_lines = sum(map(index, files))
        else:
            with ProcessPoolExecutor(workers, get_context("spawn")) as executor:
                num_lines = count_parallel(index, files, executor=executor).sum()
    say(console, f"indexed {num_lines:,} lines of {len(files)} files", "green")


def index_file(path: str, lengths: str | None) -> int:
    """Write what there is to write beside a file, and return the number of its lines; in any process."""
    if listed_format(path) is not None:
        raise ConfigurationError("FILES", path, "JSON Lines; files of this format need no index")
    before = RangedFile(path, {}).identity()
    # Its own index may be stale: it reads the file then.
    dataset = JsonDataset(path)
    dataset.save_index(before)
    if lengths is not None:
        length_of = named_function(lengths)
        firsts = range(0, len(dataset), _TOGETHER)
        parts = (dataset.__getitems__(range(first, min(first + _TOGETHER, len(dataset)))) for first in firsts)
        lengths_of = [length_of(sample) for part in parts for sample in part]
        if RangedFile(path, {}).identity() != before:
            raise changed(path, "it was written while its lengths were counted")
        write_lengths(path, lengths_of)
    return len(dataset)


def named_function(name: str) -> Callable[[Any], Any]:
    """Return what ``--lengths`` names, such as ``package.module:function``, also of a module in the present directory.

    Raises:
        ConfigurationError: There is none.
    """
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as Python itself has it
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError("--lengths", name, "MODULE:FUNCTION, which can be imported") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise ConfigurationError("--lengths", name, "MODULE:FUNCTION, a function")
    return found


@dataset_app.command("merge-index")
def merge_index_command(
    paths: Annotated[
        list[str], typer.Argument(help="OUT, to merge everything below it, or the parts in their order, then OUT.")
    ],
    natural_order: Annotated[bool, typer.Option(help="If no parts are named, sort 2/ before 10/, or as text.")] = True,
) -> None:
    """Merge datasets by writing one index for all of them.

    Exit code 0: written. 2: failed; an existing index is unchanged.
    """
    console = terminal()
    *parts, out = paths
    with exit_on_failure(console, "nothing was merged"), long_work(console, f"merging indices into {out}"):
        indices: Sequence[IndexLocation] = parts
        if indices:
            num_samples = merge_index(indices, out, natural_order=natural_order)
        else:
            num_samples = merge_index(out, natural_order=natural_order)
    say(console, f"{out} has {num_samples:,} samples", "green")


def _columns(given: list[str]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for text in given:
        name, separator, encoding = text.partition("=")
        if not separator or not name:
            raise ConfigurationError("--column", text, "NAME=ENCODING")
        columns[name] = encoding
    return columns


def stored_datasets(location: Path) -> list[tuple[Path, list[ShardEntry] | None]]:
    """Return each dataset's directory and shards; None instead of the shards if the directory has an index.

    Args:
        location: The directory of a dataset or of its splits; or files that need no index, as a pattern.

    Raises:
        ShardNotFoundError: Neither an index nor such files exist.
        ShardError: Such a file cannot be read.
    """
    try:
        return [(directory, None) for directory in datasets_in(location)]
    except ShardNotFoundError as error:
        try:
            source = sources_of([Stream(local=str(location))])[0][0]
            return [(source.directory, source.read_index())]
        except ConfigurationError as problem:
            if problem.argument != "tokens":
                raise
            way = "files of samples; fkat_data.datasets.TokenWindows checks files of tokens as it opens them"
            raise ConfigurationError("DIRECTORY", str(location), way) from None
        except ShardNotFoundError:
            if location.is_file():
                raise ShardNotFoundError(str(location), no_stream(location.name)) from None
            if not location.is_dir():
                raise ShardNotFoundError(str(location), "no such directory, and no such files") from None
            raise ShardNotFoundError(error.shard, f"{NO_DATASET}; no subdirectory has an index") from None


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


def show_samples(console: Console, samples: Sequence[Any]) -> None:
    """Print samples, with long values cut short."""
    for number, sample in enumerate(samples):
        say(console, f"sample {number}", "bold")
        if not isinstance(sample, dict):
            say(console, f"  {_shown(sample)}")
            continue
        for name, value in cast("dict[str, Any]", sample).items():
            say(console, f"  {name}: {_shown(value)}")


def show_problems(console: Console, directory: Path, report: DatasetReport) -> int:
    """Print the problems that a verification found, and what it checked; return how many it found."""
    done = (
        f"{directory}: {report.num_samples:,} samples decoded, {readable_bytes(report.num_bytes)} and "
        f"{report.num_hashes:,} hashes compared with the index, {len(report.problems)} of {report.num_shards:,} "
        "shards damaged"
    )
    return _show_report(console, report, done)


def show_lines(console: Console, location: Path, report: DatasetReport) -> int:
    """Print the problems that a verification of JSON lines found, and what it checked; return how many it found."""
    files = f"{report.num_shards:,} file{'' if report.num_shards == 1 else 's'}"
    done = (
        f"{location}: {report.num_samples:,} lines of {files} parsed, {readable_bytes(report.num_bytes)}; "
        f"{report.num_lines:,} lines cannot be read"
    )
    return _show_report(console, report, done)


def _show_report(console: Console, report: DatasetReport, done: str) -> int:
    problems = [*report.problems, *report.unread]
    for problem in problems:
        say(console, str(problem), "red")
    limits = f", {len(report.unread):,} beyond a limit" if report.unread else ""
    say(console, f"{done}{limits}", "red" if problems else "green")
    return len(problems)


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
