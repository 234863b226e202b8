"""A map-style DataLoader's batches of indices, drawn in order, each known to be the last or not."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fkat_data.interruption import genuine, is_interruption
from fkat_data.seeding import ShardStreams

_LARGEST_CHUNK = 64


class IndexBatch(NamedTuple):
    """One batch of indices.

    Attributes:
        microbatch_index: Its microbatch's place in the shard.
        indices: What the sampler gave: a batch, or a single index.
        is_last: Whether the sampler gives no other.
    """

    microbatch_index: int
    indices: Any
    is_last: bool


class NumberedBatches(ABC):
    """Batches of indices, any of which is known without those before it: a sampler, or a batch sampler."""

    is_plain: bool = False
    """Whether its microbatches are made without a random draw, in memory that no other code has."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches."""

    @abstractmethod
    def batch(self, index: int) -> Any:
        """Return the batch at ``index``, or the single index where nothing is batched."""

    def __iter__(self) -> Iterator[Any]:
        """Yield every batch."""
        return map(self.batch, range(len(self)))


def is_plain(shard: object) -> bool:
    """Return whether no code of a user's makes a shard, from its opening on."""
    return isinstance(shard, NumberedBatches) and shard.is_plain


def draw_batches(sampler: Iterable[Any], streams: ShardStreams) -> Iterator[IndexBatch]:
    """Yield a sampler's batches.

    They are drawn in chunks, each under a random stream of its own, so that a sampler which draws from the global
    generators gives the same batches whether or not data was made between them.

    Args:
        sampler: A batch sampler, or a sampler of single indices.
        streams: The shard's random streams.

    Raises:
        Exception: The sampler's, after the batches before it.
    """
    # One batch is kept back: when a batch is handed out, it is known whether it is the last.
    kept: list[Any] = []
    index = 0
    try:
        for indices in _draw(sampler, streams):
            if kept:
                # half of what the class itself takes, whose function is one of Python's
                yield tuple.__new__(IndexBatch, (index - 1, kept.pop(), False))
            kept.append(indices)
            index += 1
    except Exception as error:
        if kept and not is_interruption(error):
            yield IndexBatch(index - 1, kept.pop(), is_last=False)
        raise
    if kept:
        yield IndexBatch(index - 1, kept.pop(), is_last=True)


def _draw(sampler: Iterable[Any], streams: ShardStreams) -> Iterator[Any]:
    size, chunk_index = 1, 0
    streams.seed_batch_order(0)
    iterator = iter(sampler)
    while True:
        if chunk_index:
            streams.seed_batch_order(chunk_index)
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
