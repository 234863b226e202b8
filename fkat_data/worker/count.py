"""Count the microbatches of what a factory returned, without making one."""

from collections.abc import Sized
from typing import Any, NamedTuple, cast

from torch.utils.data import DataLoader, IterableDataset

from fkat_data import arguments
from fkat_data.seeding import ShardStreams, generator_states, has_made_generators
from fkat_data.worker.batches import is_random_access


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


class OpeningDraws:
    """Notices random draws while a shard is opened and its batches are counted.

    Args:
        streams: The shard's; the global generators are those of its opening from now on.
    """

    def __init__(self, streams: ShardStreams) -> None:
        self._streams = streams
        self._is_drawn = False
        streams.seed_opening()
        self._states = generator_states()

    def begin_batches(self) -> None:
        """Seed the generators as for the first of the shard's batches of indices."""
        self._notice()
        self._streams.seed_batch_order(0)
        self._states = generator_states()

    def end(self) -> bool:
        """Return whether there were any."""
        self._notice()
        return self._is_drawn

    def _notice(self) -> None:
        self._is_drawn = self._is_drawn or has_made_generators() or generator_states() != self._states


def count_microbatches(product: Any, draws: OpeningDraws) -> ShardCount:
    """Return the number of microbatches that a product says it has.

    Args:
        product: What the factory returned: its word, or that of its sampler or its dataset, is taken.
        draws: Has watched the shard being opened.

    Raises:
        Exception: Whatever the user's ``__len__`` raises, except for TypeError and NotImplementedError.
    """
    draws.begin_batches()
    num_microbatches, reason = None, ""
    try:
        num_microbatches = _count(product)
    except (TypeError, NotImplementedError) as error:
        reason = str(error) or type(error).__name__
    return ShardCount(num_microbatches, draws.end(), reason)


def _count(product: Any) -> int:
    if is_random_access(product):
        return arguments.integer("num_microbatches of the factory's product", product.num_microbatches, minimum=0)
    if isinstance(product, DataLoader):
        loader = cast("DataLoader[Any]", product)
        if isinstance(loader.dataset, IterableDataset) and loader.num_workers > 1:
            raise TypeError(f"each of the DataLoader's {loader.num_workers} workers makes batches of its own part")
    return len(cast("Sized", product))
