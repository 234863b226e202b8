"""The adoption of what a user's factory returns: here alone it is asked what it can do.

A map-style ``DataLoader``, or a product with ``microbatch(index)``, makes any microbatch without those before it. Anything
else is replayed, or steps forward by a ``skip(count)`` of its own.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, NamedTuple, cast

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fkat_data.errors import arguments
from fkat_data.errors.sample_errors import early_end
from fkat_data.runtime.interruption import genuine
from fkat_data.seeding import ShardRng, generator_states, has_made_generators
from fkat_data.types import RandomAccess
from fkat_data.worker.batches import BatchSequence, SeededBatches, draw_batches
from fkat_data.worker.fetch import direct_fetch, direct_iteration, gives_items_together, prefetch_of
from fkat_data.worker.microbatch_source import (
    IndexedSource,
    MicrobatchSource,
    Opening,
    SamplerSource,
    SequentialSource,
    ShardProduct,
)

# Their draws are from the global generators, or from one of their own.
_TORCHS_SAMPLERS = {SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler}


def is_product(made: object) -> bool:
    """Return whether what a factory has returned has microbatches."""
    return isinstance(made, (Iterable, ShardProduct)) or _is_random_access(made)


def source_of(product: Any, opening: Opening) -> MicrobatchSource:
    """Return the source of a factory's product; no code of the user's begins to make microbatches yet.

    Args:
        product: What the factory returned.
        opening: What it is opened with.

    Raises:
        ConfigurationError: ``num_microbatches`` of the product is no number of microbatches.
    """
    return product.microbatch_source(opening) if isinstance(product, ShardProduct) else adopt(product, opening)


def adopt(product: Any, opening: Opening) -> MicrobatchSource:
    """Return the source of a user's object: of a ``DataLoader``, of a ``RandomAccess``, or of any iterable.

    Args:
        product: The object; stays as it is.
        opening: What it is opened with.

    Raises:
        ConfigurationError: ``num_microbatches`` of the product is no number of microbatches.
    """
    rng, can_skip = opening.rng, _can_skip(product)
    is_indexed = _is_random_access(product)
    # One that is both steps from the first microbatch on: its own iteration may be a loader's.
    if is_indexed and (opening.is_shared or not can_skip):
        return IndexedSource(product.microbatch, _num_microbatches(product), rng)
    if not is_indexed and _is_map_style(product):
        return _of_map_style(product, opening)

    def begin(first: int) -> tuple[int, Iterator[Any]]:
        if (first or is_indexed) and can_skip:
            return first, iter(product.skip(first))
        if isinstance(product, DataLoader):
            return 0, direct_iteration(cast("DataLoader[Any]", product), opening.collate)
        return 0, iter(product)

    # How many are left is not what a ``skip`` says.
    is_counted = isinstance(product, (list, tuple)) and not can_skip
    return SequentialSource(begin, rng, len(cast("Sized", product)) if is_counted else None)


def _is_random_access(product: object) -> bool:
    return callable(getattr(product, "microbatch", None)) and hasattr(product, "num_microbatches")


def _can_skip(product: object) -> bool:
    # One that cannot, of a class that can, has None there.
    return callable(getattr(product, "skip", None)) and hasattr(product, "__iter__")


def _is_map_style(product: object) -> bool:
    """Return whether the product is a torch DataLoader, iterated as torch does, over a dataset with indices."""
    if not isinstance(product, DataLoader):
        return False
    loader = cast("DataLoader[Any]", product)
    return type(loader).__iter__ is DataLoader.__iter__ and not isinstance(loader.dataset, IterableDataset)


def _num_microbatches(product: RandomAccess) -> int:
    return arguments.integer("num_microbatches of the factory's product", product.num_microbatches, minimum=0)


def _of_map_style(loader: "DataLoader[Any]", opening: Opening) -> MicrobatchSource:
    sampler = cast("Any", loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    fetch, rng = direct_fetch(loader, opening.collate), opening.rng
    if fetch is None:
        return OwnIterationSource(loader, sampler, rng)
    if isinstance(sampler, BatchSequence):
        return IndexedSource(fetch, len(sampler), rng, sampler.batch, prefetch_of(loader))
    # A user's sampler may draw from a clock.
    indices = sampler.sampler if type(sampler) is BatchSampler else sampler
    draws_alike = isinstance(indices, BatchSequence) or type(indices) in _TORCHS_SAMPLERS
    return SamplerSource(fetch, draw_batches(sampler, rng), rng, prefetch_of(loader), draws_alike=draws_alike)


class OwnIterationSource(SequentialSource):
    """The microbatches of a map-style DataLoader that is more than torch's own, and has to iterate.

    Args:
        loader: The DataLoader.
        sampler: Its batch sampler, or its sampler where nothing is batched.
        rng: The shard's random numbers.
    """

    def __init__(self, loader: "DataLoader[Any]", sampler: Iterable[Any], rng: ShardRng) -> None:
        # The factory may return its product again: change a copy.
        loader = copy.copy(loader)
        is_item_scoped = loader.batch_sampler is not None and not gives_items_together(loader.dataset)
        batches = SeededBatches(sampler, rng, is_nested=loader.num_workers > 0, is_item_scoped=is_item_scoped)
        # DataLoader guards these attributes against changes that contradict its other ones; this one does not, and no
        # constructor gives a copy of a user's own class with another sampler.
        object.__setattr__(loader, "sampler" if loader.batch_sampler is None else "batch_sampler", batches)

        def begin(first: int) -> tuple[int, Iterator[Any]]:
            batches.step_over(first)
            return first, iter(loader)

        super().__init__(begin, rng)
        self._batches = batches

    def make(self, index: int) -> tuple[Any, bool | None] | None:
        """Return the next microbatch, which has this number: the batches seed.

        Raises:
            Exception: The user's.
            WorkerError: The iteration has ended before the batches have.
        """
        try:
            microbatch = next(self._microbatches)
        except genuine(StopIteration) as error:
            if self._batches.num_batches is None or index < self._batches.num_batches:
                raise early_end("the dataset") from error
            return None
        return microbatch, self._batches.num_batches == index + 1


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
    if _is_random_access(product):
        return _num_microbatches(product)
    if isinstance(product, DataLoader):
        loader = cast("DataLoader[Any]", product)
        if isinstance(loader.dataset, IterableDataset) and loader.num_workers > 1:
            raise TypeError(f"each of the DataLoader's {loader.num_workers} workers makes batches of its own part")
    return len(cast("Sized", product))
