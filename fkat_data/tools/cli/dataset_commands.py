"""The commands about datasets of shards, and their options."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fkat_data.errors import ConfigurationError, FkatDataError
from fkat_data.streaming.formats.summary import first_samples, summary_of
from fkat_data.streaming.formats.verification import datasets_in, verify_dataset
from fkat_data.streaming.writing.merge import IndexLocation, merge_index
from fkat_data.tools.cli.dataset_presentation import counting, show_problems, show_samples, show_summary
from fkat_data.tools.cli.presentation import say, show_failure
from fkat_data.tools.converting.convert import KINDS, convert

__all__ = ["convert_command", "dataset_app", "inspect_command", "merge_index_command", "verify_command"]

_DAMAGED = 1
_NOT_DONE = 2

dataset_app = typer.Typer()

Unsafe = Annotated[
    bool, typer.Option("--allow-unsafe-types", help="Read columns of pickles, which runs code of the file's author.")
]


@dataset_app.command("inspect")
def inspect_command(
    directory: Annotated[Path, typer.Argument(help="A dataset, or a folder of splits.")],
    samples: Annotated[int, typer.Option(help="How many samples to show.", min=0)] = 3,
    allow_unsafe_types: Unsafe = False,
) -> None:
    """Show what a dataset consists of: shards, samples, sizes, columns, and its first samples.

    Exit code 0: shown. 2: there is none, or it makes no sense.
    """
    console = Console()
    with _failures_shown(console, "the dataset cannot be shown"):
        for path in datasets_in(directory):
            show_summary(console, path, summary_of(path))
            show_samples(console, first_samples(path, samples, allow_unsafe_types=allow_unsafe_types))


@dataset_app.command("verify")
def verify_command(
    directory: Annotated[Path, typer.Argument(help="A dataset, or a folder of splits.")],
    allow_unsafe_types: Unsafe = False,
) -> None:
    """Hold every file of a dataset against its index (sizes, hashes), and decode every sample.

    Exit code 0: all is well. 1: something is damaged; each shard's first fault is named. 2: there is no dataset, or it
    cannot be read, so nothing was verified.
    """
    console = Console()
    num_problems = 0
    with _failures_shown(console, "nothing was verified"):
        for path in datasets_in(directory):
            with counting(console, f"verifying {path}") as progress:
                report = verify_dataset(path, allow_unsafe_types=allow_unsafe_types, progress=progress)
            show_problems(console, path, report)
            num_problems += len(report.problems)
    raise typer.Exit(_DAMAGED if num_problems else 0)


@dataset_app.command("convert")
def convert_command(
    sources: Annotated[list[str], typer.Argument(help="Files, or folders, in the order of their samples.")],
    out: Annotated[str, typer.Option("--out", "-o", help="A directory, or a URL that fsspec opens.")],
    kind: Annotated[str | None, typer.Option(help=f"One of {', '.join(KINDS)}. [default: by the files' names]")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", "-c", help="NAME=ENCODING, where the one that the data suggest does not do."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="NAME of a column to take. [default: all]")] = None,
    compression: Annotated[str | None, typer.Option(help="Such as zstd or zstd:7.")] = None,
    hashes: Annotated[list[str] | None, typer.Option("--hash", help="Such as xxh64 or sha256.")] = None,
    size_limit: Annotated[str, typer.Option(help="Size of a shard.")] = "64mb",
    workers: Annotated[int, typer.Option(help="Processes; each file then has a folder of shards.")] = 1,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Replace a dataset that is there.")] = False,
) -> None:
    """Write files as a dataset of MDS shards.

    JSON lines (plain, gzip, zstd), comma- or tab-separated values, Parquet, Arrow files as Hugging Face datasets keep
    them, or a folder whose files are samples, with the columns `content` and `path`.

    Exit code 0: written. 2: not, and there is no index.
    """
    console = Console()
    with _failures_shown(console, "nothing was converted"), counting(console, f"writing {out}") as progress:
        num_samples = convert(
            sources,
            out,
            kind=kind,
            columns=_columns(column or []),
            only=only or [],
            num_workers=workers,
            progress=lambda count: progress(count, None),
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            exist_ok=exist_ok,
        )
    say(console, f"wrote {num_samples:,} samples to {out}", "green")


@dataset_app.command("merge-index")
def merge_index_command(
    places: Annotated[list[str], typer.Argument(help="OUT; or parts below it in their order, then OUT.")],
    natural_order: Annotated[
        bool, typer.Option(help="Without parts: whether 2/ comes before 10/, or as text is sorted.")
    ] = True,
) -> None:
    """Write one index for the datasets below a directory, which then are one dataset.

    Exit code 0: written. 2: not, and an index that was there is as it was.
    """
    console = Console()
    *parts, out = places
    with _failures_shown(console, "nothing was merged"):
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


@contextmanager
def _failures_shown(console: Console, what: str) -> Generator[None]:
    try:
        yield
    except (FkatDataError, OSError) as error:
        show_failure(console, what, error)
        raise typer.Exit(_NOT_DONE) from error
