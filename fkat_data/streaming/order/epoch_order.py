"""An epoch's plan: from what a user configured to the sample that each rank reads in each step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.order.batching import (
    Batching,
    DevicePerStreamBatching,
    PerStreamBatching,
    RandomBatching,
    StratifiedBatching,
)
from fkat_data.streaming.order.block import BlockShuffle
from fkat_data.streaming.order.keyed_selection import KeyedSelection
from fkat_data.streaming.order.partition import EvenPartition, Grid, Partition, partitioned
from fkat_data.streaming.order.plan import Plan
from fkat_data.streaming.order.sampling import Selection, StreamSamples, selected
from fkat_data.streaming.order.shuffle import REFERENCE_SHUFFLES, ReferenceShuffle, check_shuffle
from fkat_data.streaming.order.weights import StreamShares

__all__ = ["SHUFFLES", "EpochPlace", "EpochPlan", "OrderSettings", "batching_of", "check_order", "plan_epoch"]

SHUFFLES = ("block", *REFERENCE_SHUFFLES)

_Integers = npt.NDArray[np.int64]
_CHUNK = 1 << 18


@dataclass(frozen=True)
class OrderSettings:
    """What decides on the order of every epoch, besides the place where one is resumed.

    Attributes:
        shard_sizes: For each stream, the samples of its shards.
        shuffle: Whether samples are shuffled.
        shuffle_algo: One of ``SHUFFLES``.
        shuffle_block_size: Over how many places a shard is spread; None: by the number of canonical nodes.
        sampling_method: ``balanced``: each epoch takes other samples; ``fixed``: all take the same.
        sampling_granularity: Samples that are taken side by side.
        partition_algo: ``orig`` or ``relaxed``.
        batching_method: One of ``BATCHING_METHODS``.
    """

    shard_sizes: tuple[_Integers, ...]
    shuffle: bool = False
    shuffle_algo: str = "py1e"
    shuffle_block_size: int | None = None
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    partition_algo: str = "relaxed"
    batching_method: str = "random"

    @property
    def is_keyed(self) -> bool:
        """Whether the order is computed where it is needed: ours."""
        return self.shuffle and self.shuffle_algo == "block"

    def block_size(self, num_canonical_nodes: int) -> int:
        """Return over how many places a shard is spread."""
        if self.shuffle_block_size is None:
            return max(4_000_000 // num_canonical_nodes, 262_144)
        return self.shuffle_block_size

    def canonical_nodes(self, num_nodes: int) -> int:
        """Return how many canonical nodes an order has where the user does not say."""
        return 64 * num_nodes if self.shuffle_algo in ("py1s", "py2s") else num_nodes


@dataclass(frozen=True)
class EpochPlace:
    """Where in training an order begins.

    Attributes:
        epoch: The epoch.
        sample_in_epoch: Samples that have been read of it, over all ranks.
        seed: The shuffle's seed.
        num_canonical_nodes: Parts that the order is made of.
        initial_physical_nodes: Nodes of the run that began the epoch, where it is known.
    """

    epoch: int
    sample_in_epoch: int
    seed: int
    num_canonical_nodes: int
    initial_physical_nodes: int | None = None


class EpochPlan(Plan):
    """The rest of an epoch that has one mixture, from a place on.

    Args:
        batching: Which stream and place each slot reads.
        selections: For each stream, or for all as one, the samples that the epoch shows.
        shuffles: Their orders; None where the samples stay as they are.
        grid: Who reads.
        is_cheap: Whether a few slots cost little; else all that are wanted should be asked for at once.
    """

    def __init__(
        self,
        batching: Batching,
        selections: Sequence[Selection | KeyedSelection],
        shuffles: Sequence[ReferenceShuffle | BlockShuffle | None],
        grid: Grid,
        *,
        is_cheap: bool,
    ) -> None:
        super().__init__(batching, grid, is_cheap=is_cheap)
        self._locate = batching.locate
        self._selections = selections
        self._shuffles = shuffles

    def sample_ids(self, slots: _Integers) -> _Integers:
        """Return the sample that is read in each slot; -1 where none is."""
        streams, places = self._located(slots)
        found = np.full(len(slots), -1, np.int64)
        for stream, (selection, shuffle) in enumerate(zip(self._selections, self._shuffles, strict=True)):
            where = np.flatnonzero((streams == stream) & (places >= 0))
            if len(where):
                own = places[where] if shuffle is None else shuffle.samples_at(places[where])
                found[where] = selection.sample_ids(own)
        return found

    def _located(self, slots: _Integers) -> tuple[npt.NDArray[np.int32], _Integers]:
        """Return the stream and the place of each slot; in parts, as each takes some memory for a moment."""
        streams, places = np.empty(len(slots), np.int32), np.empty(len(slots), np.int64)
        for start in range(0, len(slots), _CHUNK):
            part = slice(start, start + _CHUNK)
            streams[part], places[part] = self._locate(slots[part])
        return streams, places


def plan_epoch(settings: OrderSettings, shares: StreamShares, place: EpochPlace, grid: Grid) -> EpochPlan:
    """Return the rest of an epoch from a place on.

    Args:
        settings: What decides on the order.
        shares: What each stream gives.
        place: Where the epoch begins or goes on.
        grid: Who reads.

    Raises:
        ConfigurationError: The numbers do not go together, as the docstrings of partitions and batchings say.
    """
    streams = _streams(settings, shares)
    block_size = settings.block_size(place.num_canonical_nodes)
    if settings.batching_method == "random":
        selections = [_selection(settings, streams, place)]
        block_sizes = [block_size]
    else:
        selections = [_selection(settings, [stream], place) for stream in streams]
        block_sizes = [int(block_size * proportion) for proportion in shares.proportion]
    shuffles = [
        _shuffle(settings, selection, place, size) if settings.shuffle and selection.size else None
        for selection, size in zip(selections, block_sizes, strict=True)
    ]
    batching = batching_of(settings, shares, place, grid)
    return EpochPlan(batching, selections, shuffles, grid, is_cheap=settings.is_keyed or not settings.shuffle)


def check_order(settings: OrderSettings, shares: StreamShares, num_canonical_nodes: int) -> None:
    """Return if the shuffle works with what the streams give; looks at no sample.

    Raises:
        ConfigurationError: It does not.
    """
    if not settings.shuffle or settings.is_keyed:
        return
    block_size = settings.block_size(num_canonical_nodes)
    if settings.batching_method == "random":
        check_shuffle(settings.shuffle_algo, shares.epoch_size, num_canonical_nodes, block_size)
        return
    for size, proportion in zip(shares.choose, shares.proportion, strict=True):
        if size:
            check_shuffle(settings.shuffle_algo, size, num_canonical_nodes, int(block_size * proportion))


def batching_of(settings: OrderSettings, shares: StreamShares, place: EpochPlace, grid: Grid) -> Batching:
    """Return the global batches of the rest of an epoch, without their samples: this is quick for any order.

    Raises:
        ConfigurationError: The numbers do not go together, as the docstrings of partitions and batchings say.
    """
    nodes, sample_in_epoch = place.num_canonical_nodes, place.sample_in_epoch
    if settings.batching_method == "random":
        return RandomBatching(_partition(settings, shares.epoch_size, place, grid, sample_in_epoch))
    is_drawn_anew = settings.shuffle and settings.sampling_method == "balanced"
    seed = place.seed + place.epoch if is_drawn_anew else place.seed
    if settings.batching_method in ("stratified", "device_stratified"):
        one_node = replace(grid, num_nodes=1, batch_size=1)
        partitions = [_partition(settings, size, place, one_node) for size in shares.choose]
        is_spread = settings.batching_method == "device_stratified"
        return StratifiedBatching(partitions, shares.proportion, grid, sample_in_epoch, is_spread=is_spread)
    if settings.batching_method == "per_stream":
        partitions = [_partition(settings, size, place, grid) for size in shares.choose]
        return PerStreamBatching(partitions, shares.choose, grid, sample_in_epoch, seed)
    canonical = replace(grid, num_nodes=nodes, batch_size=1)
    partitions = [_partition(settings, size, place, canonical) for size in shares.choose]
    return DevicePerStreamBatching(partitions, shares.choose, grid, nodes, sample_in_epoch, seed)


def _streams(settings: OrderSettings, shares: StreamShares) -> list[StreamSamples]:
    streams: list[StreamSamples] = []
    first = 0
    for sizes, choose in zip(settings.shard_sizes, shares.choose, strict=True):
        streams.append(StreamSamples(sizes, first, choose))
        first += int(sizes.sum())
    return streams


def _selection(
    settings: OrderSettings, streams: Sequence[StreamSamples], place: EpochPlace
) -> Selection | KeyedSelection:
    is_balanced = settings.sampling_method == "balanced"
    if settings.is_keyed:
        epoch = place.epoch if is_balanced else 0
        return KeyedSelection(streams, seed=place.seed, epoch=epoch, granularity=settings.sampling_granularity)
    return selected(
        streams,
        seed=place.seed,
        epoch=place.epoch,
        granularity=settings.sampling_granularity,
        is_balanced=is_balanced,
        is_shuffled=settings.shuffle,
    )


def _shuffle(
    settings: OrderSettings, selection: Selection | KeyedSelection, place: EpochPlace, block_size: int
) -> ReferenceShuffle | BlockShuffle:
    sizes, nodes = selection.unit_sizes, place.num_canonical_nodes
    if settings.is_keyed:
        return BlockShuffle(sizes, nodes, place.seed, place.epoch, block_size)
    return ReferenceShuffle(settings.shuffle_algo, sizes, nodes, place.seed, place.epoch, block_size)


def _partition(settings: OrderSettings, size: int, place: EpochPlace, grid: Grid, drop_first: int = 0) -> Partition:
    if settings.is_keyed:
        return EvenPartition(size, place.num_canonical_nodes, grid, drop_first)
    return partitioned(
        settings.partition_algo,
        size,
        place.num_canonical_nodes,
        grid,
        drop_first,
        place.initial_physical_nodes,
        in_filling=True,
    )
