"""The commands that compute which samples a run reads, and when, from a configuration or a checkpoint."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.audit import Coverage
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.tools.cli.composition import loader_maker
from fkat_data.tools.cli.presentation import exit_on_failure, long_work, printable, say, terminal
from fkat_data.tools.resume_check.saved_place import SavedPlace, places_in, read_checkpoint

_INCOMPLETE = 1

audit_app: typer.Typer = typer.Typer()

# As text: a Path would turn the // of a URL into /.
Config = Annotated[str, typer.Argument(help="A YAML file in a Hydra configuration folder.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Hydra overrides such as seed=3 or dataset.batch_size=8.")]
Key = Annotated[str | None, typer.Option(help="The dataset's node. [default: dataset, or the whole file]")]
Nodes = Annotated[int, typer.Option(help="Number of nodes in the run.", min=1)]
Ranks = Annotated[int, typer.Option("--ranks-per-node", help="Number of ranks on each node.", min=1)]


@audit_app.command("explain")
def explain_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|CHECKPOINT",
            help="A YAML file in a Hydra configuration folder; or a checkpoint with a loader's state: a file of torch.save "
            "or JSON, or a folder of such files.",
        ),
    ],
    overrides: Overrides = None,
    step: Annotated[int, typer.Option(help="Global batch, counted from 0.", min=0)] = 0,
    epoch: Annotated[int | None, typer.Option(help="Count from this epoch's start. [default: the run's start]")] = None,
    nodes: Nodes = 1,
    ranks_per_node: Ranks = 1,
    key: Key = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Read any object in a checkpoint; this runs code that it brings.")
    ] = False,
) -> None:
    """Show which samples a global batch has, or where a checkpoint's loaders stand.

    Of a configuration, it shows the stream, shard and row of every sample on all ranks, and needs no log of the run. Of a
    checkpoint, it shows each rank's place, what is left of its epoch, and which numbers of ranks can load it.

    Exit code 0: shown. 2: the configuration does not work, the run has no such batch, or the checkpoint has no place.
    """
    if Path(source).suffix not in {".yaml", ".yml"}:
        _explain_checkpoint(source, is_trusted=trusted)
        return
    console = terminal()
    with exit_on_failure(console, "cannot show the batch"), long_work(console, "finding the batch"):
        _, dataset = streaming_dataset(source, overrides or [], key, nodes, ranks_per_node)
        records = dataset.samples_of(step, epoch)
    where = f"epoch {records[0].epoch}, global batch {records[0].step}" if records else "no samples"
    notes = [""] if any(record.is_skipped for record in records) else []
    table = Table("rank", "stream", "shard", "row", "sample", *notes, title=where)
    for record in records:
        row = (record.rank, record.stream, record.shard, record.row, record.sample_id)
        cells = (printable(str(cell)) for cell in row)
        table.add_row(*cells, *("skipped" if record.is_skipped else note for note in notes))
    console.print(table)
    for stream in sorted({record.stream for record in records}):
        location = dataset.streams[stream].remote or dataset.streams[stream].local
        say(console, f"stream {stream}: {location}")


def _explain_checkpoint(path: str, *, is_trusted: bool) -> None:
    console = terminal()
    with exit_on_failure(console, "cannot explain the checkpoint"):
        places = list(places_in(read_checkpoint(path, is_trusted=is_trusted)))
        if not places:
            raise ConfigurationError("checkpoint", path, "a file with what state_dict() of a loader has returned")
    for place in places:
        _show_place(console, place)


def _show_place(console: Console, place: SavedPlace) -> None:
    title = f"{place.where}: {place.loader}" if place.where else place.loader
    table = Table("rank", "epoch", "step", "left of the epoch", title=printable(title))
    for rank in place.ranks:
        of_all = "all" if rank.rank is None else str(rank.rank)
        table.add_row(of_all, str(rank.epoch), "" if rank.step is None else str(rank.step), rank.left)
    console.print(table)
    for line in (f"loads on {place.loads_on}", *place.notes):
        say(console, line)


@audit_app.command("coverage")
def coverage_command(
    config: Config,
    overrides: Overrides = None,
    epoch: Annotated[int, typer.Option(help="Epoch, counted from 0.", min=0)] = 0,
    steps: Annotated[int | None, typer.Option(help="Global batches read so far. [default: all]", min=0)] = None,
    nodes: Nodes = 1,
    ranks_per_node: Ranks = 1,
    key: Key = None,
) -> None:
    """Count how often an epoch reads each sample.

    Exit code 0: it reads every sample exactly once, or as often as the stream's weight says. 1: it does not, or not
    yet. 2: the configuration does not work, so nothing was counted.
    """
    console = terminal()
    with exit_on_failure(console, "cannot count the samples"), long_work(console, "counting the samples"):
        _, dataset = streaming_dataset(config, overrides or [], key, nodes, ranks_per_node)
        found = dataset.coverage(epoch, steps)
    _show(console, found)
    raise typer.Exit(0 if found.is_as_due else _INCOMPLETE)


def _show(console: Console, found: Coverage) -> None:
    table = Table(
        "stream",
        "samples",
        "expected",
        "seen",
        "delivered",
        "skipped",
        "times each",
        title=f"epoch {found.epoch}, {found.num_steps} of {found.num_batches} global batches",
    )
    for number, stream in enumerate(found.streams):
        times = str(stream.fewest) if stream.fewest == stream.most else f"{stream.fewest} to {stream.most}"
        counts = (stream.num_samples, stream.num_due, stream.num_seen, stream.num_delivered, stream.num_skipped)
        table.add_row(str(number), *(f"{count:,}" for count in counts), times)
    console.print(table)
    if found.num_repeats:
        say(console, f"{found.num_repeats} samples were read again, so that all ranks read the same number.")
    if found.is_each_once:
        say(console, "Every sample was read exactly once.", "green")
    elif found.is_as_due:
        say(console, "Every sample was read as often as its stream's weight says.", "green")
    else:
        say(console, "Some samples were read less or more often than their stream's weight says.", "red")


def streaming_dataset(
    config: str, overrides: Sequence[str], key: str | None, num_nodes: int, ranks_per_node: int, **replaced: Any
) -> tuple[Any, StreamingDataset]:
    """Return the object that a configuration makes and the dataset in it, both for the world size of a run.

    Args:
        config: A YAML file.
        overrides: Hydra overrides.
        key: The node of a dataset or a loader.
        num_nodes: Number of nodes in the run.
        ranks_per_node: Number of ranks on each node.
        **replaced: Arguments of the dataset that replace the configuration's.

    Raises:
        ConfigurationError: The configuration does not work, or the node is neither a dataset nor a loader of one.
    """
    # The run's world size, not that of the process that runs this command.
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE=str(num_nodes * ranks_per_node),
        LOCAL_WORLD_SIZE=str(ranks_per_node),
        GROUP_WORLD_SIZE=str(num_nodes),
    )
    made: Any = loader_maker(config, overrides, key, default_key="dataset")(**replaced)
    dataset = made if isinstance(made, StreamingDataset) else getattr(made, "dataset", None)
    if not isinstance(dataset, StreamingDataset):
        raise ConfigurationError("--key", key, "the node of a StreamingDataset or a StreamingDataLoader")
    return made, dataset
