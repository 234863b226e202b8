"""Production of one task: shard in, microbatches out. Knows no process, pipe or segment."""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

from fkat_data.errors import ConfigurationError, ReplayMismatchError, WorkerError
from fkat_data.plan.task import Task
from fkat_data.seeding import ShardStreams
from fkat_data.transport.digest import digest_of
from fkat_data.types import Shard
from fkat_data.worker.batches import Production, begin
from fkat_data.worker.items import ItemThreads

__all__ = ["Produced", "Producer", "name_place", "produce"]


class Produced(NamedTuple):
    """One microbatch of a task.

    Attributes:
        microbatch_index: Its place in the shard.
        microbatch: What the user's DataLoader yielded.
        is_last: Whether the shard ends with it; None where that shows only later.
    """

    microbatch_index: int
    microbatch: Any
    is_last: bool | None


class Producer(NamedTuple):
    """What every task of a worker has in common.

    Attributes:
        factory: Makes the iterable of a shard's microbatches.
        seed: The loader's seed.
        dp_rank: The loader's data-parallel rank.
        mark: Called with one of ``fkat_data.observe.stages.STAGES`` when it begins, with "" when the last one ends.
        collate: Does what torch's ``default_collate`` does; used instead of it where that is possible.
        threads: Make the items of map-style DataLoaders; None: they are made one after the other.
    """

    factory: Callable[[Shard], Iterable[Any]]
    seed: int
    dp_rank: int
    mark: Callable[..., None]
    collate: Callable[[Any], Any] | None = None
    threads: ItemThreads | None = None


def produce(task: Task, producer: Producer) -> Generator[Produced]:
    """Yield the task's microbatches, each made under its own random stream.

    Raises:
        Exception: Whatever the user's code raises, with notes that name shard and microbatch.
        ReplayMismatchError: A dead worker had made other data for the same place.
        WorkerError: The user's code raised StopIteration, which would look like the end of the shard.
    """
    index = task.first_microbatch
    production: Production | None = None
    try:
        dp_rank, shard_index = (producer.dp_rank, task.shard_index) if task.piece is None else task.piece[:2]
        streams = ShardStreams.of(producer.seed, dp_rank, task.epoch, shard_index)
        producer.mark("build", task.shard_index, repr(task.shard))
        streams.seed_opening()
        production = _begin(task, producer, streams)
        for made, microbatch in _iterate(production, task.first_microbatch, streams, producer.mark):
            if made == task.first_microbatch - 1 and task.digest not in (None, digest_of(microbatch)):
                raise ReplayMismatchError(task.shard, task.epoch, made)
            if made >= task.first_microbatch:
                index = made
                yield Produced(made, microbatch, _is_last(production, made))
                index = made + 1
    except Exception as error:
        name_place(error, task, index, is_open=production is not None)
        raise
    finally:
        producer.mark("")


def _begin(task: Task, producer: Producer, streams: ShardStreams) -> Production:
    try:
        product = producer.factory(task.shard)
    except StopIteration as error:
        raise WorkerError("the factory raised StopIteration") from error
    if not isinstance(product, Iterable):
        raise ConfigurationError(
            "dataloader_factory", product, "something that returns an iterable of microbatches for a shard"
        )
    # What a dead worker made last is made again, to see that it is the same.
    first = task.first_microbatch - (task.digest is not None)
    try:
        return begin(product, first, streams, producer.collate, producer.threads)
    except StopIteration as error:
        raise WorkerError("the factory's product raised StopIteration when its iteration began") from error


def _iterate(
    production: Production, first_wanted: int, streams: ShardStreams, mark: Callable[..., None]
) -> Iterator[tuple[int, Any]]:
    index = production.first_index
    batches = production.batches
    while True:
        if batches is None:
            streams.seed_microbatch(index)
        mark("produce" if index >= first_wanted else "replay", index)
        try:
            microbatch = next(production.microbatches)
        except StopIteration as error:
            if batches is not None and (batches.num_batches is None or index < batches.num_batches):
                raise WorkerError("the dataset raised StopIteration, which would end the shard early") from error
            return
        yield index, microbatch
        index += 1


def _is_last(production: Production, index: int) -> bool | None:
    batches = production.batches
    if batches is not None:
        return batches.num_batches == index + 1
    if production.num_microbatches is not None:
        return index + 1 == production.num_microbatches
    return None


def name_place(error: BaseException, task: Task, index: int, *, is_open: bool) -> str:
    """Note on an exception, once, which shard and microbatch it concerns; return the note."""
    for note in getattr(error, "__notes__", []):
        if note.startswith(_NOTE):
            return note
    where = f"at microbatch {index} of" if is_open else "while opening"
    note = f"{_NOTE} {where} shard {task.shard!r} (epoch {task.epoch}, shard index {task.shard_index})"
    with contextlib.suppress(Exception):  # a frozen dataclass, for one, takes no notes
        error.add_note(note)
    return note


_NOTE = "fkat_data:"
