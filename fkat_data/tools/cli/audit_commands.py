"""The commands that recompute, from a configuration, which sample stood where."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fkat_data.errors import ConfigurationError, FkatDataError
from fkat_data.streaming.audit import Coverage
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.tools.cli.composition import loader_maker
from fkat_data.tools.cli.presentation import say, show_failure

__all__ = [
    "Config",
    "Key",
    "Nodes",
    "Overrides",
    "Ranks",
    "audit_app",
    "coverage_command",
    "explain_command",
    "failures_shown",
    "streaming_dataset",
]

_NOT_EACH_ONCE = 1
_NOT_DONE = 2

audit_app = typer.Typer()

Config = Annotated[Path, typer.Argument(help="A YAML file; its folder is the Hydra configuration tree.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Hydra overrides, as in dataset.shuffle_seed=3.")]
Key = Annotated[str | None, typer.Option(help="The dataset's node. [default: dataset, or the whole file]")]
Nodes = Annotated[int, typer.Option(help="Nodes of the run.", min=1)]
Ranks = Annotated[int, typer.Option("--ranks-per-node", help="Ranks of each node.", min=1)]


@audit_app.command("explain")
def explain_command(
    config: Config,
    overrides: Overrides = None,
    step: Annotated[int, typer.Option(help="The global batch, counted from 0.", min=0)] = 0,
    epoch: Annotated[int | None, typer.Option(help="Count it in this epoch. [default: in the whole run]")] = None,
    nodes: Nodes = 1,
    ranks_per_node: Ranks = 1,
    key: Key = None,
) -> None:
    """Name the stream, shard and row of every sample of a global batch, of all ranks, without any log of the run.

    Exit code 0: done. 2: the configuration does not work, or there is no such batch.
    """
    console = Console()
    with failures_shown(console, "nothing can be explained"):
        _, dataset = streaming_dataset(config, overrides or [], key, nodes, ranks_per_node)
        records = dataset.samples_of(step, epoch)
    where = f"epoch {records[0].epoch}, global batch {records[0].step}" if records else "no sample"
    table = Table("rank", "stream", "shard", "row", "sample", "", title=where)
    for record in records:
        row = (record.rank, record.stream, record.shard, record.row, record.sample_id)
        table.add_row(*map(str, row), "skipped" if record.is_skipped else "")
    console.print(table)
    for stream in sorted({record.stream for record in records}):
        location = dataset.streams[stream].remote or dataset.streams[stream].local
        say(console, f"stream {stream}: {location}", None)


@audit_app.command("coverage")
def coverage_command(
    config: Config,
    overrides: Overrides = None,
    epoch: Annotated[int, typer.Option(help="The epoch.", min=0)] = 0,
    steps: Annotated[int | None, typer.Option(help="Global batches that were read. [default: all]", min=0)] = None,
    nodes: Nodes = 1,
    ranks_per_node: Ranks = 1,
    key: Key = None,
) -> None:
    """Count, sample by sample, what has been seen of an epoch.

    Exit code 0: every sample was read exactly once, or as often as its stream's weight says. 1: not so, or not yet.
    2: the configuration does not work, so nothing was counted.
    """
    console = Console()
    with failures_shown(console, "nothing was counted"):
        _, dataset = streaming_dataset(config, overrides or [], key, nodes, ranks_per_node)
        found = dataset.coverage(epoch, steps)
    _show(console, found)
    raise typer.Exit(0 if found.is_as_due else _NOT_EACH_ONCE)


def _show(console: Console, found: Coverage) -> None:
    table = Table(
        "stream",
        "samples",
        "due",
        "seen",
        "delivered",
        "skipped",
        "each, times",
        title=f"epoch {found.epoch}, {found.num_steps} of {found.num_batches} global batches",
    )
    for number, stream in enumerate(found.streams):
        times = str(stream.fewest) if stream.fewest == stream.most else f"{stream.fewest} to {stream.most}"
        counts = (stream.num_samples, stream.num_due, stream.num_seen, stream.num_delivered, stream.num_skipped)
        table.add_row(str(number), *(f"{count:,}" for count in counts), times)
    console.print(table)
    if found.num_repeats:
        say(console, f"{found.num_repeats} samples were read again, so that all ranks have equally many.", None)
    if found.is_each_once:
        say(console, "Every sample was read exactly once.", "green")
    elif found.is_as_due:
        say(console, "Every sample was read as often as its stream's weight says.", "green")
    else:
        say(console, "Not every sample was read as often as its stream's weight says.", "red")


def streaming_dataset(
    config: Path, overrides: Sequence[str], key: str | None, num_nodes: int, ranks_per_node: int, **replaced: Any
) -> tuple[Any, StreamingDataset]:
    """Return what a configuration makes, and the dataset in it, in the world of a run.

    Args:
        config: A YAML file.
        overrides: In Hydra's grammar.
        key: The node of a dataset or a loader.
        num_nodes: Nodes of the run.
        ranks_per_node: Ranks of each.
        **replaced: Arguments of the dataset in place of the configuration's.

    Raises:
        ConfigurationError: The configuration does not work, or is none of a dataset.
    """
    # The run's world, and not that of the machine on which one asks.
    os.environ.update(RANK="0", WORLD_SIZE=str(num_nodes * ranks_per_node), LOCAL_WORLD_SIZE=str(ranks_per_node))
    made: Any = loader_maker(config, overrides, key, default_key="dataset")(**replaced)
    dataset = made if isinstance(made, StreamingDataset) else getattr(made, "dataset", None)
    if not isinstance(dataset, StreamingDataset):
        raise ConfigurationError("--key", key, "the node of a StreamingDataset or a StreamingDataLoader")
    return made, dataset


@contextmanager
def failures_shown(console: Console, what: str) -> Generator[None]:
    """Let the program end with exit code 2 where the context fails, and say why."""
    try:
        yield
    except (FkatDataError, OSError) as error:
        show_failure(console, what, error)
        raise typer.Exit(_NOT_DONE) from error
