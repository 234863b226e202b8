"""Where in a shard production begins, and under which random stream each microbatch is made.

A map-style ``DataLoader`` is asked for its batches of indices, not for data, to get to a place: what a resume steps
over is not loaded. Anything else is replayed, or steps forward by a ``skip(count)`` of its own.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

from torch.utils.data import DataLoader, IterableDataset

from fkat_data.seeding import ShardStreams, enter_place, seed_global_generators
from fkat_data.types import Skippable
from fkat_data.worker.fetch import direct_iteration, gives_items_together, is_plain
from fkat_data.worker.items import ItemThreads

__all__ = ["Production", "SeededBatches", "begin", "is_map_style"]

_LARGEST_CHUNK = 64


class Production(NamedTuple):
    """An iteration over a shard that has been brought to its place.

    Attributes:
        microbatches: Yields the microbatches from the first that is wanted.
        first_index: The place of the first that it yields.
        batches: Knows where the shard ends, for a map-style DataLoader.
        num_microbatches: How many the shard holds, where that is known beforehand.
    """

    microbatches: Iterator[Any]
    first_index: int
    batches: "SeededBatches | None"
    num_microbatches: int | None


def begin(
    product: Iterable[Any],
    first_microbatch: int,
    streams: ShardStreams,
    collate: Callable[[Any], Any] | None = None,
    threads: ItemThreads | None = None,
) -> Production:
    """Begin to iterate over a factory's product, as near to ``first_microbatch`` as possible without making data.

    Args:
        product: What the factory returned.
        first_microbatch: The first that is wanted.
        streams: The shard's random streams.
        collate: Does what torch's ``default_collate`` does; used instead of it where that is possible.
        threads: Make the items of a map-style DataLoader; None: they are made one after the other.
    """
    if is_map_style(product):
        return _begin_map_style(product, first_microbatch, streams, collate, threads)
    if first_microbatch and isinstance(product, Skippable):
        return Production(iter(product.skip(first_microbatch)), first_microbatch, None, None)
    if isinstance(product, DataLoader):
        return Production(direct_iteration(cast("DataLoader[Any]", product), collate), 0, None, None)
    num_microbatches = len(product) if isinstance(product, (list, tuple)) else None
    return Production(iter(product), 0, None, num_microbatches)


def is_map_style(product: object) -> bool:
    """Return whether the product is a torch DataLoader, iterated as torch does, over a dataset with indices."""
    if not isinstance(product, DataLoader):
        return False
    loader = cast("DataLoader[Any]", product)
    return type(loader).__iter__ is DataLoader.__iter__ and not isinstance(loader.dataset, IterableDataset)


def _begin_map_style(
    product: Any,
    first_microbatch: int,
    streams: ShardStreams,
    collate: Callable[[Any], Any] | None,
    threads: ItemThreads | None,
) -> Production:
    # The factory may return its product again: change a copy.
    loader = copy.copy(product)
    attribute = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    batches = SeededBatches(
        getattr(loader, attribute),
        first_microbatch,
        streams,
        is_nested=loader.num_workers > 0,
        is_placed=(
            loader.batch_sampler is not None and not gives_items_together(loader.dataset) and not is_plain(loader)
        ),
    )
    # DataLoader guards these attributes against changes that contradict its other ones; this one does not, and no
    # constructor gives a copy of a user's own class with another sampler.
    object.__setattr__(loader, attribute, batches)
    return Production(direct_iteration(loader, collate, threads), first_microbatch, batches, None)


class SeededBatches:
    """Batches of indices from a place on, each of which sets the random stream that its microbatch is made under.

    The batches are drawn in chunks, each under a stream of its own, so that a sampler which draws from the global
    generators gives the same batches whether or not data was made between them.

    Args:
        sampler: A batch sampler, or a sampler of single indices.
        first: Batches to step over.
        streams: The shard's random streams.
        is_nested: Whether the data is made in workers of the DataLoader's own; the stream is then set there.
        is_placed: Whether torch makes the items of a batch one by one; their places are then set as it does.
    """

    def __init__(
        self, sampler: Iterable[Any], first: int, streams: ShardStreams, *, is_nested: bool, is_placed: bool = False
    ) -> None:
        self._sampler = sampler
        self._first = first
        self._streams = streams
        self._is_nested = is_nested
        self._is_placed = is_placed
        self.num_batches: int | None = None
        """How many there are, known when the last one is handed out."""

    def __len__(self) -> int:
        """Return what the sampler says; a DataLoader compares with it."""
        return max(0, len(self._sampler) - self._first)  # type: ignore[arg-type]  # torch asks only a sized one

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches."""
        pending: list[Any] = []
        index = 0
        try:
            for batch in self._draw():
                # One batch is kept back: when a batch is handed out, it is known whether it is the last.
                if pending and (handed := self._hand_out(pending.pop(), index - 1)) is not None:
                    yield handed[0]
                pending.append(batch)
                index += 1
        except Exception:  # the sampler's: raised after the batches before it
            yield from self._last(pending, index - 1)
            raise
        self.num_batches = index
        yield from self._last(pending, index - 1)

    def _last(self, pending: list[Any], index: int) -> Iterator[Any]:
        if pending and (handed := self._hand_out(pending.pop(), index)) is not None:
            yield handed[0]

    def _draw(self) -> Iterator[Any]:
        size, chunk_index = 1, 0
        self._streams.seed_batch_order(0)
        iterator = iter(self._sampler)
        while True:
            if chunk_index:
                self._streams.seed_batch_order(chunk_index)
            chunk: list[Any] = []
            is_over = True
            try:
                for batch in iterator:
                    chunk.append(batch)
                    if len(chunk) == size:
                        is_over = False
                        break
            except Exception:
                yield from chunk
                raise
            yield from chunk
            if is_over:
                return
            size, chunk_index = min(2 * size, _LARGEST_CHUNK), chunk_index + 1

    def _hand_out(self, batch: Any, index: int) -> tuple[Any] | None:
        if index < self._first:
            return None
        if self._is_nested:
            return (_SeedingBatch(batch, self._streams.seed_of(index), is_placed=self._is_placed),)
        self._streams.seed_microbatch(index)
        return (_placed(batch, self._streams.seed_of(index)) if self._is_placed else batch,)


class _SeedingBatch:
    """A batch of indices on its way to a nested worker: it becomes the plain batch, and seeds, where it arrives."""

    def __init__(self, batch: Any, seed: int, *, is_placed: bool) -> None:
        self._batch = batch
        self._seed = seed
        self._is_placed = is_placed

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self._batch, self._seed, self._is_placed)


def _arrive(batch: Any, seed: int, is_placed: bool) -> Any:
    seed_global_generators(seed)
    enter_place(seed)
    return _placed(batch, seed) if is_placed else batch


def _placed(batch: Any, seed: int) -> Any:
    return _PlacedBatch(cast("list[Any]", batch), seed) if type(batch) is list else batch


class _PlacedBatch(list[Any]):
    """Indices that say, as torch goes through them, which item is made."""

    def __init__(self, batch: list[Any], seed: int) -> None:
        super().__init__(batch)
        self._seed = seed

    def __iter__(self) -> Iterator[Any]:
        for position, index in enumerate(super().__iter__()):
            enter_place(self._seed, position)
            yield index
        enter_place(self._seed)
