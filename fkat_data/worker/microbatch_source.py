"""What workers make microbatches of: ``MicrobatchSource``, and its kinds.

A source is one task's shard, opened. Its kind is its type: a ``RandomAccessSource`` makes any microbatch without those
before it, so that workers and threads make a shard together, and a resume loads nothing that was delivered; a
``BulkSource`` also reads neighbours together, in one thread; a ``SequentialSource`` makes one microbatch after the other,
from a position of its own choice on.
"""

import marshal
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch

from fkat_data.runtime.interruption import genuine
from fkat_data.seeding import ShardRng, seed_generators
from fkat_data.worker.batches import IndexBatch
from fkat_data.worker.messages import ShardTrailer


class MicrobatchSource(Protocol):
    """The microbatches of a task's shard, by their numbers, which grow from call to call."""

    @property
    def count(self) -> int | None:
        """Microbatches of the shard; None: that is not known beforehand."""
        ...

    def make(self, index: int) -> tuple[Any, bool | None] | None:
        """Return a microbatch, made under its own random stream, and whether it is the last; None: there is none.

        Whether it is the last is None where that shows only later.

        Raises:
            Exception: The user's.
        """
        ...

    def close(self) -> None:
        """End what the user's code has begun, here instead of in a finaliser."""
        ...


class Collate(Protocol):
    """Does what torch's ``default_collate`` does, in memory that a worker chooses."""

    def __call__(self, batch: Any) -> Any:
        """Return the microbatch of a list of samples."""
        ...

    def stack(self, shape: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for a microbatch that is one tensor."""
        ...


class Opening(NamedTuple):
    """What a worker opens a factory's product with.

    Attributes:
        rng: The shard's random numbers.
        collate: Used instead of ``default_collate`` where that is possible; None: nothing is.
        is_shared: Whether several workers make the shard. One alone may make what follows on one another faster.
        is_threaded: Whether threads make microbatches, which leave the global random generators alone.
        take_leftover_rows: Waits for what the task before has left; None: nothing is left between tasks, as for the next.
        give_leftover_rows: Gets what is left for the task behind.
    """

    rng: ShardRng
    collate: Collate | None = None
    is_shared: bool = False
    is_threaded: bool = False
    take_leftover_rows: Callable[[], bytes] | None = None
    give_leftover_rows: Callable[[bytes], None] | None = None


@runtime_checkable
class ShardProduct(Protocol):
    """A factory's product that knows its source, as the library's own do; ``adopt`` finds that of any other."""

    def microbatch_source(self, opening: Opening) -> MicrobatchSource:
        """Return the source; no code of the user's begins to make microbatches yet."""
        ...


class MicrobatchSpec(NamedTuple):
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


class DrawSummary(NamedTuple):
    """A summary of the batches that a worker has drawn of a shard: others that make the shard with it draw the same.

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


class RandomAccessSource(MicrobatchSource, Protocol):
    """A source that makes any microbatch without those before it.

    Attributes:
        is_drawn: Whether random draws may decide on the indices.
        draws_alike: Whether it has the same batches in each process.
    """

    is_drawn: bool
    draws_alike: bool

    @property
    def prefetches(self) -> bool:
        """Whether a microbatch can be begun to be read."""
        ...

    def prefetch(self, index: int) -> int:
        """Begin to read a microbatch, if the shard has it; return how many items it has."""
        ...

    def has(self, index: int) -> bool:
        """Return whether the shard has this microbatch; one whose draw raises counts.

        Raises:
            ValueError: The index is below one that was asked for before.
        """
        ...

    def draw_summary(self, index: int) -> DrawSummary:
        """Return what is known of the shard's batches once they are drawn up to ``index``."""
        ...

    def spec(self, index: int) -> MicrobatchSpec | None:
        """Return how a microbatch is made; None: there is none.

        Raises:
            Exception: The sampler's.
        """
        ...


class IndexedSource:
    """Microbatches that are known by their numbers alone.

    Args:
        make: Makes a microbatch, from its index.
        count: Microbatches of the shard.
        rng: The shard's random numbers; None: nothing is drawn.
        batch: Returns what ``make`` is called with instead of the index; None: nothing does.
        prefetch: Begins to read what ``make`` will be called with, and returns how many items it has; None: it does not.
    """

    is_drawn: bool = False
    draws_alike: bool = True

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

    def draw_summary(self, index: int) -> DrawSummary:
        """Return what is known of the shard's batches."""
        return DrawSummary(0, self.count, is_whole=True)

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

    def spec(self, index: int) -> MicrobatchSpec | None:
        """Return how a microbatch is made; None: there is none."""
        if index >= self.count:
            return None
        seed = None if self._rng is None else self._rng.seed_of(index)
        argument = index if self._batch is None else self._batch(index)
        return MicrobatchSpec(self._make, argument, index == self.count - 1, seed, self._prefetch)

    def close(self) -> None:
        """Do nothing: no indices are drawn."""


class SamplerSource:
    """Microbatches of batches of indices that are drawn in order.

    Args:
        make: Makes a microbatch, from what a draw says of it.
        draws: Yields what there is to make, in order.
        rng: The shard's random numbers.
        prefetch: Begins to read what ``make`` will be called with, and returns how many items it has; None: it does not.
        draws_alike: Whether the same is drawn in each process.
    """

    is_drawn: bool = True

    def __init__(
        self,
        make: Callable[[Any], Any],
        draws: Generator[IndexBatch],
        rng: ShardRng,
        prefetch: Callable[[Any], int] | None = None,
        *,
        draws_alike: bool,
    ) -> None:
        self.draws_alike: bool = draws_alike
        self.count: int | None = None
        """Microbatches of the shard are not known."""
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

    def draw_summary(self, index: int) -> DrawSummary:
        """Return what is known of the shard's batches once they are drawn up to ``index``."""
        is_whole = not self.has(index)
        return DrawSummary(self._first, self._drawn[-1].microbatch_index + 1 if self._drawn else 0, is_whole=is_whole)

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
        self._draws.close()

    def make(self, index: int) -> tuple[Any, bool] | None:
        """Return a microbatch, made under its own random stream, and whether it is the last; None: there is none.

        Raises:
            Exception: The user's.
        """
        spec = self.spec(index)
        if spec is None:
            return None
        if spec.seed is not None:
            seed_generators(spec.seed)
        return self._make(spec.argument), spec.is_last

    def spec(self, index: int) -> MicrobatchSpec | None:
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
        return MicrobatchSpec(self._make, drawn[0].indices, drawn[0].is_last, seed, self._prefetch)


def _digest(batch: Any) -> int:
    """Return a number that differs where batches do; 0 for one that is no plain value."""
    try:
        return zlib.crc32(marshal.dumps(batch, 2)) or 1
    except genuine(ValueError):
        return 0


class BulkSource(IndexedSource):
    """Microbatches of which neighbours are read together, by one thread at a time.

    Args:
        make: As of a ``IndexedSource``, like the next two.
        count: Microbatches of the shard.
        rng: The shard's random numbers; None: nothing is drawn.
        iterate: Yields the microbatches from a number on, read together; where one fails, those before it come first.
    """

    def __init__(
        self, make: Callable[[int], Any], count: int, rng: ShardRng | None, iterate: Callable[[int], Iterator[Any]]
    ) -> None:
        super().__init__(make, count, rng)
        self.iterate: Callable[[int], Iterator[Any]] = iterate
        """Yields the microbatches from a number on."""


class SequentialSource:
    """Microbatches that follow on one another.

    Args:
        begin: Called with the first microbatch that is wanted; returns the number of the first that it yields, at most
            that one, and the iterator.
        rng: The shard's random numbers.
        count: Microbatches of the shard, where that is known beforehand.
        rng_index_of: Returns the index of a microbatch's random numbers in ``ShardRng``; None: its own number.
    """

    def __init__(
        self,
        begin: Callable[[int], tuple[int, Iterator[Any]]],
        rng: ShardRng,
        count: int | None = None,
        rng_index_of: Callable[[int], int] | None = None,
    ) -> None:
        self._begin = begin
        self._rng = rng
        self.count: int | None = count
        """Microbatches of the shard; None: that is not known beforehand."""
        self._rng_index_of = rng_index_of
        self._microbatches: Iterator[Any] = iter(())

    def iterate(self, first: int) -> int:
        """Begin to iterate, as near to a microbatch as possible without making data; return the number of the first.

        Raises:
            Exception: The user's.
        """
        begun, self._microbatches = self._begin(first)
        return begun

    def make(self, index: int) -> tuple[Any, bool | None] | None:
        """Return the next microbatch, which has this number."""
        self._rng.seed_microbatch(index if self._rng_index_of is None else self._rng_index_of(index))
        try:
            microbatch = next(self._microbatches)
        except genuine(StopIteration):
            return None
        if type(microbatch) is ShardTrailer:
            return microbatch, True
        return microbatch, None if self.count is None else index + 1 == self.count

    def close(self) -> None:
        """Do nothing: the iterator ends with its last reference."""
