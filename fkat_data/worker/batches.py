"""Where in a shard production begins, and under which random stream each microbatch is made.

A map-style ``DataLoader``, or a product with ``microbatch(index)``, makes any microbatch without those before it: what
a resume steps over is not loaded, and several workers can make one shard. Anything else is replayed, or steps forward
by a ``skip(count)`` of its own.
"""

import copy
import functools
import marshal
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, NamedTuple, TypeAlias, cast

from torch.utils.data import DataLoader, IterableDataset

from fkat_data import arguments
from fkat_data.interruption import genuine, is_interruption
from fkat_data.seeding import (
    ShardRng,
    enter_rng_scope,
    generator_states,
    has_made_generators,
    seed_generators,
    seed_global_generators,
)
from fkat_data.types import RandomAccess
from fkat_data.worker.fetch import direct_fetch, direct_iteration, gives_items_together, prefetch_of

_LARGEST_CHUNK = 64


class IndexBatch(NamedTuple):
    """One batch of indices.

    Attributes:
        microbatch_index: Its microbatch's index in the shard.
        indices: What the sampler gave: a batch, or a single index.
        is_last: Whether the sampler gives no other.
    """

    microbatch_index: int
    indices: Any
    is_last: bool


class NumberedBatches(ABC):
    """Batches of indices, any of which is known without those before it: a sampler, or a batch sampler."""

    runs_no_user_code: bool = False
    """Whether its microbatches are made without a random draw, in memory that no other code has, and all together."""
    is_stacked: bool = False
    """Whether a dataset reads its items into a microbatch: without a random draw, but one microbatch at a time."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches."""

    @abstractmethod
    def batch(self, index: int) -> Any:
        """Return the batch at ``index``, or the single index where nothing is batched."""

    def __iter__(self) -> Iterator[Any]:
        """Yield every batch."""
        return map(self.batch, range(len(self)))


def runs_no_user_code(shard: object) -> bool:
    """Return whether no code of a user's makes a shard, from its opening on."""
    return isinstance(shard, NumberedBatches) and shard.runs_no_user_code


def draws_nothing(shard: object) -> bool:
    """Return whether no code of a user's makes a shard."""
    return isinstance(shard, NumberedBatches) and (shard.runs_no_user_code or shard.is_stacked)


def draw_batches(sampler: Iterable[Any], rng: ShardRng) -> Iterator[IndexBatch]:
    """Yield a sampler's batches.

    They are drawn in chunks, each under a random stream of its own, so that a sampler which draws from the global
    generators gives the same batches whether or not data was made between them.

    Args:
        sampler: A batch sampler, or a sampler of single indices.
        rng: The shard's random numbers.

    Raises:
        Exception: The sampler's, after the batches before it.
    """
    # One batch is kept back: when a batch is handed out, it is known whether it is the last.
    kept: list[Any] = []
    index = 0
    try:
        for indices in _draw(sampler, rng):
            if kept:
                # skips NamedTuple's Python `__new__`: twice as fast
                yield tuple.__new__(IndexBatch, (index - 1, kept.pop(), False))
            kept.append(indices)
            index += 1
    except Exception as error:
        if kept and not is_interruption(error):
            yield IndexBatch(index - 1, kept.pop(), is_last=False)
        raise
    if kept:
        yield IndexBatch(index - 1, kept.pop(), is_last=True)


def _draw(sampler: Iterable[Any], rng: ShardRng) -> Iterator[Any]:
    size, chunk_index = 1, 0
    rng.seed_batch_order(0)
    iterator = iter(sampler)
    while True:
        if chunk_index:
            rng.seed_batch_order(chunk_index)
        chunk: list[Any] = []
        is_over = False
        try:
            # Not `for`, which calls iter() again: a sampler that is its own iterator would begin again in each chunk.
            while len(chunk) < size:
                chunk.append(next(iterator))
        except genuine(StopIteration):
            is_over = True
        except Exception as error:
            if not is_interruption(error):
                yield from chunk
            raise
        yield from chunk
        if is_over:
            return
        size, chunk_index = min(2 * size, _LARGEST_CHUNK), chunk_index + 1


class Production(NamedTuple):
    """An iteration over a shard that has been brought to its position.

    Attributes:
        microbatches: Yields the microbatches from the first that is wanted.
        first_index: The index of the first that it yields.
        batches: Knows where the shard ends, for a map-style DataLoader.
        num_microbatches: How many the shard holds, where that is known beforehand.
        rng_index_of: Returns the index of a microbatch's random numbers in ``ShardRng``; None: its own index.
    """

    microbatches: Iterator[Any]
    first_index: int
    batches: "SeededBatches | None"
    num_microbatches: int | None
    rng_index_of: Callable[[int], int] | None = None


class SequentialProduct(ABC):
    """A factory's product without random access: it iterates from a position of its own choice, at or before the wanted one."""

    @abstractmethod
    def iterate_from(self, first_microbatch: int, collate: Callable[[Any], Any] | None) -> tuple[int, Iterator[Any]]:
        """Return where it begins, at most at ``first_microbatch``, and the microbatches from there.

        Args:
            first_microbatch: The first that is wanted.
            collate: Does what torch's ``default_collate`` does.
        """

    def rng_index_of(self, index: int) -> int:
        """Return the index in ``ShardRng`` of the random numbers of the microbatch at an index."""
        return index

    def __iter__(self) -> Iterator[Any]:
        """Yield every microbatch."""
        return self.iterate_from(0, None)[1]


class Part(NamedTuple):
    """How a microbatch is made by its number, in any thread.

    Attributes:
        make: Makes it.
        argument: What ``make`` is called with.
        is_last: Whether the shard ends with it.
        seed: The seed of its random stream; None: nothing is drawn.
        prefetch: Begins to read what ``make`` will be called with, and returns how many items it has; None: it does not.
    """

    make: Callable[[Any], Any]
    argument: Any
    is_last: bool
    seed: int | None
    prefetch: Callable[[Any], int] | None


class Outline(NamedTuple):
    """What a worker knows of a shard's batches: others that make the shard with it have to know the same.

    Attributes:
        digest: The digest of the first batch; 0: it is not known.
        num_known: Batches that the shard has at least.
        is_whole: Whether it has no others.
    """

    digest: int
    num_known: int
    is_whole: bool

    @property
    def in_words(self) -> str:
        """Return how many there are."""
        return f"{'' if self.is_whole else 'at least '}{self.num_known}"


class NumberedProduction:
    """A shard whose microbatches are known by their indices alone.

    Args:
        make: Makes a microbatch, from its index.
        count: Microbatches of the shard.
        rng: The shard's random numbers; None: nothing is drawn.
        batch: Returns what ``make`` is called with instead of the index; None: nothing does.
        prefetch: Begins to read what ``make`` will be called with, and returns how many items it has; None: it does not.
    """

    is_drawn = False
    """Whether random draws may decide on the indices."""

    def __init__(
        self,
        make: Callable[[Any], Any],
        count: int,
        rng: ShardRng | None,
        batch: Callable[[int], Any] | None = None,
        prefetch: Callable[[Any], int] | None = None,
    ) -> None:
        self._prefetch = prefetch
        self._make = make
        self.count: int = count
        """Microbatches of the shard."""
        self._rng = rng
        self._batch = batch

    @property
    def prefetches(self) -> bool:
        """Whether a microbatch can be begun to be read."""
        return self._prefetch is not None

    def prefetch(self, index: int) -> int:
        """Begin to read a microbatch, if the shard has it; return how many items it has."""
        if self._prefetch is None or index >= self.count:
            return 0
        return self._prefetch(index if self._batch is None else self._batch(index))

    def has(self, index: int) -> bool:
        """Return whether the shard has this microbatch."""
        return index < self.count

    def outline(self, index: int) -> Outline:
        """Return what is known of the shard's batches."""
        del index
        return Outline(0, self.count, is_whole=True)

    def make(self, index: int) -> tuple[Any, bool] | None:
        """Return a microbatch, made under its own random stream, and whether it is the last; None: there is none.

        Raises:
            Exception: The user's.
        """
        if index >= self.count:
            return None
        if self._rng is not None:
            self._rng.seed_microbatch(index)
        return self._make(index if self._batch is None else self._batch(index)), index == self.count - 1

    def part(self, index: int) -> Part | None:
        """Return how a microbatch is made; None: there is none."""
        if index >= self.count:
            return None
        seed = None if self._rng is None else self._rng.seed_of(index)
        argument = index if self._batch is None else self._batch(index)
        return Part(self._make, argument, index == self.count - 1, seed, self._prefetch)

    def close(self) -> None:
        """Do nothing: no indices are drawn."""


class DrawnProduction:
    """A shard whose batches of indices are drawn in order.

    Args:
        make: Makes a microbatch, from what a draw says of it.
        draws: Yields what there is to make, in order.
        rng: The shard's random numbers.
        prefetch: Begins to read what ``make`` will be called with, and returns how many items it has; None: it does not.
    """

    is_drawn = True
    """Whether random draws may decide on the indices."""
    count: int | None = None
    """Microbatches of the shard are not known."""

    def __init__(
        self,
        make: Callable[[Any], Any],
        draws: Iterator[IndexBatch],
        rng: ShardRng,
        prefetch: Callable[[Any], int] | None = None,
    ) -> None:
        self._make = make
        self._draws = draws
        self._rng = rng
        self._prefetch = prefetch
        # What was drawn, from the last that was made on.
        self._drawn: deque[IndexBatch] = deque()
        self._first = 0
        self._error: Exception | None = None
        self._is_over = False

    def has(self, index: int) -> bool:
        """Return whether the shard has this microbatch; one whose draw raises counts.

        Raises:
            ValueError: The index is below one that was asked for before.
        """
        drawn = self._drawn
        while not self._is_over and self._error is None and (not drawn or drawn[-1].microbatch_index < index):
            try:
                drawn.append(next(self._draws))
                self._first = self._first if drawn[-1].microbatch_index else _digest(drawn[-1].indices)
            except genuine(StopIteration):
                self._is_over = True
            except genuine(Exception) as error:
                self._error = error  # the sampler's; raised for the first microbatch that it left out
        if drawn and drawn[0].microbatch_index > index:
            raise ValueError(f"microbatch {index} was asked for after microbatch {drawn[0].microbatch_index}")
        return self._error is not None or (bool(drawn) and drawn[-1].microbatch_index >= index)

    def outline(self, index: int) -> Outline:
        """Return what is known of the shard's batches once they are drawn up to ``index``."""
        is_whole = not self.has(index)
        return Outline(self._first, self._drawn[-1].microbatch_index + 1 if self._drawn else 0, is_whole=is_whole)

    @property
    def prefetches(self) -> bool:
        """Whether a microbatch can be begun to be read."""
        return self._prefetch is not None

    def prefetch(self, index: int) -> int:
        """Begin to read a microbatch, if the shard has it; return how many items it has."""
        if self._prefetch is not None and self.has(index):
            for batch in self._drawn:
                if batch.microbatch_index == index:
                    return self._prefetch(batch.indices)
        return 0

    def close(self) -> None:
        """End the drawing of indices, here instead of in a finaliser."""
        close = getattr(self._draws, "close", None)
        if close is not None:
            close()

    def make(self, index: int) -> tuple[Any, bool] | None:
        """Return a microbatch, made under its own random stream, and whether it is the last; None: there is none.

        Raises:
            Exception: The user's.
        """
        part = self.part(index)
        if part is None:
            return None
        if part.seed is not None:
            seed_generators(part.seed)
        return self._make(part.argument), part.is_last

    def part(self, index: int) -> Part | None:
        """Return how a microbatch is made; None: there is none.

        Raises:
            Exception: The sampler's.
        """
        if not self.has(index):
            return None
        drawn = self._drawn
        while len(drawn) > 1 and drawn[0].microbatch_index < index:
            drawn.popleft()
        if not drawn or drawn[0].microbatch_index != index:
            raise cast("Exception", self._error)
        seed = self._rng.seed_of(index)
        return Part(self._make, drawn[0].indices, drawn[0].is_last, seed, self._prefetch)


def _digest(batch: Any) -> int:
    """Return a number that differs where batches do; 0 for one that is no plain value."""
    try:
        return zlib.crc32(marshal.dumps(batch, 2)) or 1
    except genuine(ValueError):
        return 0


IndexedProduction: TypeAlias = NumberedProduction | DrawnProduction
"""A shard whose microbatches are made one by one, by their indices, which must grow from call to call."""


def begin(
    product: Iterable[Any] | RandomAccess,
    first_microbatch: int,
    rng: ShardRng,
    collate: Callable[[Any], Any] | None = None,
    *,
    is_shared: bool = False,
) -> Production | IndexedProduction:
    """Begin to make a factory's product, as near to ``first_microbatch`` as possible without making data.

    Args:
        product: What the factory returned.
        first_microbatch: The first that is wanted.
        rng: The shard's random numbers.
        collate: Does what torch's ``default_collate`` does; used instead of it where that is possible.
        is_shared: Whether several workers make the shard. One alone may make what follows on one another faster.

    Raises:
        ConfigurationError: ``num_microbatches`` of the product is no number of microbatches.
    """
    iterate_from = getattr(product, "iterate_from", None)
    if iterate_from is not None:  # of a SequentialProduct, or of a loader of streams
        first_index, microbatches = iterate_from(first_microbatch, collate)
        return Production(microbatches, first_index, None, None, getattr(product, "rng_index_of", None))
    is_indexed = is_random_access(product)
    if is_indexed and (is_shared or not _can_skip(product)):
        return _begin_random_access(cast("RandomAccess", product), rng, collate)
    product = cast("Iterable[Any]", product)
    if not is_indexed and is_map_style(product):
        return _begin_map_style(product, first_microbatch, rng, collate)
    # One that is both steps from the first microbatch on: its own iteration may be a loader's.
    if (first_microbatch or is_indexed) and _can_skip(product):
        return Production(iter(cast("Any", product).skip(first_microbatch)), first_microbatch, None, None)
    if isinstance(product, DataLoader):
        return Production(direct_iteration(cast("DataLoader[Any]", product), collate), 0, None, None)
    num_microbatches = len(product) if isinstance(product, (list, tuple)) else None
    return Production(iter(product), 0, None, num_microbatches)


def is_random_access(product: object) -> bool:
    """Return whether the product makes any microbatch without those before it."""
    return callable(getattr(product, "microbatch", None)) and hasattr(product, "num_microbatches")


def _can_skip(product: object) -> bool:
    # One that cannot, of a class that can, has None there.
    return callable(getattr(product, "skip", None)) and hasattr(product, "__iter__")


def is_map_style(product: object) -> bool:
    """Return whether the product is a torch DataLoader, iterated as torch does, over a dataset with indices."""
    if not isinstance(product, DataLoader):
        return False
    loader = cast("DataLoader[Any]", product)
    return type(loader).__iter__ is DataLoader.__iter__ and not isinstance(loader.dataset, IterableDataset)


def _begin_random_access(
    product: RandomAccess, rng: ShardRng, collate: Callable[[Any], Any] | None
) -> IndexedProduction:
    count = arguments.integer("num_microbatches of the factory's product", product.num_microbatches, minimum=0)
    drawn = None if getattr(product, "runs_no_user_code", False) else rng
    make, stack = product.microbatch, getattr(collate, "stack", None)
    stacked = cast("Any", product) if getattr(product, "stacks_items", False) else None
    if stack is not None and stacked is not None:
        make = functools.partial(stacked.microbatch, stack=stack)
    prefetch = None if stacked is None else stacked.prefetch
    return NumberedProduction(make, count, drawn, prefetch=prefetch)


def _begin_map_style(
    product: Any,
    first_microbatch: int,
    rng: ShardRng,
    collate: Callable[[Any], Any] | None,
) -> Production | IndexedProduction:
    attribute = "batch_sampler" if product.batch_sampler is not None else "sampler"
    sampler = getattr(product, attribute)
    fetch = direct_fetch(product, collate)
    if fetch is not None and isinstance(sampler, NumberedBatches):
        return NumberedProduction(fetch, len(sampler), rng, sampler.batch, prefetch_of(product))
    if fetch is not None:
        return DrawnProduction(fetch, draw_batches(sampler, rng), rng, prefetch_of(product))
    # The factory may return its product again: change a copy.
    loader = copy.copy(product)
    is_item_scoped = loader.batch_sampler is not None and not gives_items_together(loader.dataset)
    is_nested = loader.num_workers > 0
    batches = SeededBatches(sampler, first_microbatch, rng, is_nested=is_nested, is_item_scoped=is_item_scoped)
    # DataLoader guards these attributes against changes that contradict its other ones; this one does not, and no
    # constructor gives a copy of a user's own class with another sampler.
    object.__setattr__(loader, attribute, batches)
    return Production(iter(loader), first_microbatch, batches, None)


class SeededBatches:
    """Batches of indices for a DataLoader that is iterated, each of which sets its microbatch's random stream.

    Args:
        sampler: A batch sampler, or a sampler of single indices.
        first: Batches to step over.
        rng: The shard's random numbers.
        is_nested: Whether the data is made in workers of the DataLoader's own; the stream is then set there.
        is_item_scoped: Whether torch makes the items of a batch one by one; their scopes are then set as it does.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        first: int,
        rng: ShardRng,
        *,
        is_nested: bool,
        is_item_scoped: bool = False,
    ) -> None:
        self._sampler = sampler
        self._first = first
        self._rng = rng
        self._is_nested = is_nested
        self._is_item_scoped = is_item_scoped
        self.num_batches: int | None = None
        """How many there are, known when the last one is handed out."""

    def __len__(self) -> int:
        """Return what the sampler says; a DataLoader compares with it."""
        return max(0, len(self._sampler) - self._first)  # type: ignore[arg-type]  # torch asks only a sized one

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches."""
        num_batches = 0
        for batch in draw_batches(self._sampler, self._rng):
            num_batches = batch.microbatch_index + 1
            if batch.is_last:
                self.num_batches = num_batches
            if batch.microbatch_index < self._first:
                continue
            seed = self._rng.seed_of(batch.microbatch_index)
            if self._is_nested:
                yield _SeedingBatch(batch.indices, seed, is_item_scoped=self._is_item_scoped)
            else:
                self._rng.seed_microbatch(batch.microbatch_index)
                yield _with_item_scopes(batch.indices, seed) if self._is_item_scoped else batch.indices
        self.num_batches = num_batches


class _SeedingBatch:
    """A batch of indices on its way to a nested worker: it becomes the plain batch, and seeds, where it arrives."""

    def __init__(self, batch: Any, seed: int, *, is_item_scoped: bool) -> None:
        self._batch = batch
        self._seed = seed
        self._is_item_scoped = is_item_scoped

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self._batch, self._seed, self._is_item_scoped)


def _arrive(batch: Any, seed: int, is_item_scoped: bool) -> Any:
    seed_global_generators(seed)
    enter_rng_scope(seed)
    return _with_item_scopes(batch, seed) if is_item_scoped else batch


def _with_item_scopes(batch: Any, seed: int) -> Any:
    return _ItemScopedBatch(cast("list[Any]", batch), seed) if type(batch) is list else batch


class _ItemScopedBatch(list[Any]):
    """Indices that say, as torch goes through them, which item is made."""

    def __init__(self, batch: list[Any], seed: int) -> None:
        super().__init__(batch)
        self._seed = seed

    def __iter__(self) -> Iterator[Any]:
        for position, index in enumerate(super().__iter__()):
            enter_rng_scope(self._seed, position)
            yield index
        enter_rng_scope(self._seed)


class ShardCount(NamedTuple):
    """How many microbatches a shard holds.

    Attributes:
        num_microbatches: The number; None: it is not known.
        is_drawn: Whether random draws may decide on it, so that another epoch may have another number.
        reason: Why it is not known.
    """

    num_microbatches: int | None
    is_drawn: bool
    reason: str


def count_microbatches(open_shard: Callable[[], Any], rng: ShardRng) -> ShardCount:
    """Return the number of microbatches that a product says it has, and notice random draws meanwhile.

    Args:
        open_shard: Returns what the factory does: its word, or that of its sampler or its dataset, is taken.
        rng: The shard's random numbers; the global generators are those of its opening from now on.

    Raises:
        Exception: What opening it raises, and what the user's ``__len__`` does, except for TypeError and
            NotImplementedError.
    """
    rng.seed_opening()
    states = generator_states()
    product = open_shard()
    is_drawn = has_made_generators() or generator_states() != states
    rng.seed_batch_order(0)
    states = generator_states()
    num_microbatches, reason = None, ""
    try:
        num_microbatches = _count(product)
    except genuine(TypeError, NotImplementedError) as error:
        reason = str(error) or type(error).__name__
    return ShardCount(num_microbatches, is_drawn or has_made_generators() or generator_states() != states, reason)


def _count(product: Any) -> int:
    if is_random_access(product):
        return arguments.integer("num_microbatches of the factory's product", product.num_microbatches, minimum=0)
    if isinstance(product, DataLoader):
        loader = cast("DataLoader[Any]", product)
        if isinstance(loader.dataset, IterableDataset) and loader.num_workers > 1:
            raise TypeError(f"each of the DataLoader's {loader.num_workers} workers makes batches of its own part")
    return len(cast("Sized", product))
