"""The program's command line; the commands of datasets and simulations are in modules of their own."""

import json
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fkat_data import __version__
from fkat_data.errors import ConfigurationError, arguments
from fkat_data.storage.location import machine_path
from fkat_data.streaming.audit import Coverage
from fkat_data.tools.balance_cli import balance_app
from fkat_data.tools.checkpoint_position import CheckpointPosition, positions_in, read_checkpoint
from fkat_data.tools.console import exit_on, exit_on_failure, long_work, printable, progress_bar, say, terminal
from fkat_data.tools.dataset_cli import dataset_app
from fkat_data.tools.doctor import Finding, Level, examine, worst_of
from fkat_data.tools.hydra_config import Config, Key, Nodes, Overrides, Ranks, loader_maker, streaming_dataset
from fkat_data.tools.report import page
from fkat_data.tools.resume_check import ResumeReport, verify_resume
from fkat_data.tools.simulate_cli import simulate_app
from fkat_data.tools.traced_run import read_run

_NOT_EXACT = _INCOMPLETE = 1
_LEAST_GRACE_S = 2.0
_EXIT_CODES = {Level.OK: 0, Level.ADVICE: 1, Level.WRONG: 2}
_STYLES = {Level.OK: "green", Level.ADVICE: "yellow", Level.WRONG: "red"}
_WORDS = {
    Level.OK: "Everything is in order.",
    Level.ADVICE: "A run works; see the advice.",
    Level.WRONG: "A run fails or loses much; see what is wrong.",
}

app: typer.Typer = typer.Typer(
    name="fkat-data",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)
app.add_typer(dataset_app)
app.add_typer(simulate_app)
app.add_typer(balance_app)


class Mode(StrEnum):
    """The modes in which the loader makes the data."""

    BOTH = "both"
    WORKERS = "workers"
    IN_PROCESS = "in-process"


#: The argument of ``verify_resume``.
_MULTIPROCESSING = {Mode.BOTH: None, Mode.WORKERS: True, Mode.IN_PROCESS: False}


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"fkat-data {__version__}")
        raise typer.Exit


@app.callback()
def start(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Inspect, convert, verify and simulate data for fkat_data."""
    # As `python -m` does, because a configuration names the user's own modules.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


@app.command("doctor")
def doctor_command(
    config: Annotated[str | None, typer.Argument(help="A YAML file in a Hydra configuration folder.")] = None,
    overrides: Overrides = None,
    key: Annotated[
        str | None, typer.Option(help="The node of a loader or a dataset. [default: loader, or the whole file]")
    ] = None,
    cache: Annotated[list[str] | None, typer.Option(help="A directory for cached shards. Repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Examine this machine and what a configuration would do.

    It also lists the installed packages. With a configuration, it makes the loader once, workers included, and reads no data.

    Exit code 0: everything is in order. 1: a run works, and something could be better. 2: something is wrong.
    """
    console = terminal()
    with exit_on_failure(console, "nothing was examined"):
        make_loader = None
        if config is not None:
            make_loader = loader_maker(config, overrides or [], key)
        elif key is not None:
            raise ConfigurationError("--key", key, "a CONFIG beside it")
        directories = [machine_path("--cache", path, "a directory of this machine") for path in cache or []]
        found = examine(make_loader, map(Path, directories))
    level = worst_of([finding for findings in found.values() for finding in findings])
    if as_json:
        parts = {part: [finding._asdict() for finding in findings] for part, findings in found.items()}
        say(console, json.dumps({"level": str(level), **parts}))
    else:
        for part, findings in found.items():
            _show(console, part, findings)
        say(console, _WORDS[level], _STYLES[level])
    raise typer.Exit(_EXIT_CODES[level])


def _show(console: Console, part: str, findings: list[Finding]) -> None:
    table = Table(title=part, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(finding.found).append(f"\n{finding.change}" if finding.change else "", "dim")
        table.add_row(Text(finding.level, _STYLES[finding.level]), finding.subject, text)
    console.print(table)


@app.command("verify-resume")
def verify_resume_command(
    config: Config,
    overrides: Overrides = None,
    key: Annotated[str | None, typer.Option(help="The loader's node. [default: loader, or the whole file]")] = None,
    microbatches: Annotated[
        int | None, typer.Option(help="Microbatches of a run. [default: an epoch and a quarter, at most 200]")
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of stops.")] = 8,
    seed: Annotated[int, typer.Option(help="Chooses the stops and the prefetch depths.")] = 0,
    mode: Annotated[Mode, typer.Option(help="Where the loader makes the data.")] = Mode.BOTH,
    timeout_s: Annotated[float, typer.Option(help="Time limit in seconds.")] = 600.0,
) -> None:
    """Check that a loader resumes exactly.

    It stops and resumes a configuration's loader at random positions, and compares it with an uninterrupted run.

    Exit code 0: every resume was exact, bit for bit. 1: some were not; the output names the position and the likely
    cause. 2: the configuration or the data do not work, so nothing was verified.
    """
    console = terminal()
    failures: dict[type[BaseException], str] = {
        ConfigurationError: "the configuration does not work, so nothing was verified",
        HangError: "the loader hangs, so nothing was verified",
        Exception: "the data fail even without a stop, so nothing was verified",
    }
    with exit_on(console, failures):
        timeout_s = arguments.seconds("--timeout-s", timeout_s)
        make_loader = loader_maker(config, overrides or [], key)
        grace_s = max(_LEAST_GRACE_S, timeout_s / 4)
        with hang_guard(timeout_s + grace_s), progress_bar(console, "{task.completed} microbatches") as bar:
            task = bar.add_task("starting", total=None)
            report = verify_resume(
                make_loader,
                num_microbatches=microbatches,
                num_trials=trials,
                seed=seed,
                multiprocessing=_MULTIPROCESSING[mode],
                timeout_s=timeout_s,
                progress=lambda phase, count: bar.update(task, description=phase, advance=count),
            )
    _show_report(console, report)
    raise typer.Exit(0 if report.is_exact else _NOT_EXACT)


def _show_report(console: Console, report: ResumeReport) -> None:
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


@app.command("report")
def report_command(
    timeline: Annotated[str, typer.Argument(help="A file that a loader's `trace` wrote, or is still writing.")],
    output: Annotated[Path | None, typer.Option(help="The HTML file. [default: TIMELINE with .html]")] = None,
) -> None:
    """Turn a timeline into an HTML report.

    The page shows what waits for what, how long each stage takes and what to change.

    Exit code 0: the page was written. 2: the timeline cannot be read, or the page cannot be written.
    """
    console = terminal()
    with exit_on_failure(console, "cannot write the report"):
        file = machine_path("TIMELINE", timeline, "a file of this machine that a loader's `trace` wrote")
        written = file.with_suffix(".html") if output is None else output
        run = read_run(file)
        if written.resolve() == file.resolve():
            raise ConfigurationError("--output", str(written), "another file than the timeline, which it would replace")
        written.write_text(page(run, file.name), encoding="utf-8")
    statistics = run.statistics
    say(console, str(statistics.verdict))
    if statistics.delivered:
        say(console, f"waiting for a microbatch: {statistics.waiting}; making one: {statistics.making}")
    say(console, f"The report is in {written}: open it in a browser.")


@app.command("explain")
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
    checkpoint, it shows each rank's position, what is left of its epoch, and which numbers of ranks can load it.

    Exit code 0: shown. 2: the configuration does not work, the run has no such batch, or the checkpoint has no position.
    """
    if Path(source).suffix not in {".yaml", ".yml"}:
        _explain_checkpoint(source, is_trusted=trusted)
        return
    console = terminal()
    with exit_on_failure(console, "cannot show the batch"), long_work(console, "finding the batch"):
        dataset = streaming_dataset(source, overrides or [], key, nodes, ranks_per_node)
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
        positions = list(positions_in(read_checkpoint(path, is_trusted=is_trusted)))
        if not positions:
            raise ConfigurationError("checkpoint", path, "a file with what state_dict() of a loader has returned")
    for position in positions:
        _show_position(console, position)


def _show_position(console: Console, position: CheckpointPosition) -> None:
    title = f"{position.where}: {position.loader}" if position.where else position.loader
    table = Table("rank", "epoch", "step", "left of the epoch", title=printable(title))
    for rank in position.ranks:
        of_all = "all" if rank.rank is None else str(rank.rank)
        table.add_row(of_all, str(rank.epoch), "" if rank.step is None else str(rank.step), rank.left)
    console.print(table)
    for line in (f"loads on {position.loads_on}", *position.notes):
        say(console, line)


@app.command("coverage")
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
        dataset = streaming_dataset(config, overrides or [], key, nodes, ranks_per_node)
        found = dataset.coverage(epoch, steps)
    _show_coverage(console, found)
    raise typer.Exit(0 if found.is_as_due else _INCOMPLETE)


def _show_coverage(console: Console, found: Coverage) -> None:
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


class HangError(BaseException):
    """The context did not end in time. It is no ``Exception``, so that a dataset's own handlers do not catch it."""


@contextmanager
def hang_guard(timeout_s: float) -> Generator[None]:
    """Interrupt the main thread if the context lasts longer than ``timeout_s``. Only the main thread may enter it.

    Raises:
        HangError: The time is over.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise HangError(f"the loader delivered no microbatch before the time limit ({timeout_s:g} s)")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
