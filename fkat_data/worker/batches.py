"""Batches of indices: numbered ones, and those that a sampler draws, each under the random stream of its microbatch."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple, cast

from fkat_data.runtime.interruption import genuine, is_interruption
from fkat_data.seeding import ShardRng, enter_rng_scope, seed_global_generators

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


class BatchSequence(ABC):
    """A sequence of batches of indices, any of which is known without those before it: a sampler, or a batch sampler."""

    runs_no_user_code: bool = False
    """Whether its microbatches are made without a random draw, in memory that no other code has, and all together."""
    reads_into_batch: bool = False
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
    return isinstance(shard, BatchSequence) and shard.runs_no_user_code


def draws_nothing(shard: object) -> bool:
    """Return whether making a shard draws no random number: the dataset reads its batches, or no user code runs."""
    return isinstance(shard, BatchSequence) and (shard.runs_no_user_code or shard.reads_into_batch)


def draw_batches(sampler: Iterable[Any], rng: ShardRng) -> Generator[IndexBatch]:
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


class SeededBatches:
    """Batches of indices for a DataLoader that is iterated, each of which sets its microbatch's random stream.

    Args:
        sampler: A batch sampler, or a sampler of single indices.
        rng: The shard's random numbers.
        is_nested: Whether the data is made in workers of the DataLoader's own; the stream is then set there.
        is_item_scoped: Whether torch makes the items of a batch one by one; their scopes are then set as it does.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        rng: ShardRng,
        *,
        is_nested: bool,
        is_item_scoped: bool = False,
    ) -> None:
        self._sampler = sampler
        self._first = 0
        self._rng = rng
        self._is_nested = is_nested
        self._is_item_scoped = is_item_scoped
        self.num_batches: int | None = None
        """How many there are, known when the last one is handed out."""

    def step_over(self, count: int) -> None:
        """Leave out the first batches."""
        self._first = count

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
