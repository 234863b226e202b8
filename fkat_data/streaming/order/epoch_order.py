"""The plan of an epoch: the sample that each rank reads in each step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.order.batching import (
    BatchCounts,
    Batching,
    BatchingMethod,
    DevicePerStreamBatching,
    PerStreamBatching,
    RandomBatching,
    StratifiedBatching,
)
from fkat_data.streaming.order.block import BlockShuffle
from fkat_data.streaming.order.own_shuffle import OwnShuffle, OwnShuffleName, Shuffle, own_shuffle_names
from fkat_data.streaming.order.partition import EvenPartition, Grid, Partition, PartitionName, partitioned
from fkat_data.streaming.order.sampling import KeyedSelection, Selection, StreamSamples, selected
from fkat_data.streaming.order.shuffle import (
    REFERENCE_SHUFFLES,
    OrderCache,
    ReferenceShuffle,
    ReferenceShuffleName,
    check_shuffle,
    in_memory,
)
from fkat_data.streaming.order.weights import POSITION_BITS, StreamShares

_Integers = npt.NDArray[np.int64]


class EpochPlan(ABC):
    """The samples of the rest of an epoch: which of them each rank reads in each step.

    Args:
        batching: Number of batches.
        grid: Ranks and batch size.
    """

    def __init__(self, batching: BatchCounts, grid: Grid) -> None:
        self.batching = batching
        self.grid = grid

    @property
    def num_batches(self) -> int:
        """Number of global batches. The last one may be short."""
        return self.batching.num_batches

    @abstractmethod
    def sample_ids(self, slots: _Integers) -> _Integers:
        """Return the id of each slot's sample, -1 if it reads none: shape (len(slots),), int64."""

    @abstractmethod
    def positions(self, slots: _Integers) -> _Integers:
        """Return each slot's position in the epoch's order, -1 if it reads none: shape (len(slots),), int64.

        A position is the same number in every world. Where samples are repeated to fill up an epoch, their positions are.
        """

    def rank_positions(self, rank: int, batches: _Integers) -> _Integers:
        """Return the positions of a rank's batches: shape (len(batches), batch_size), int64, -1 if short."""
        return self.positions(self._rank_slots(rank, batches)).reshape(len(batches), self.grid.batch_size)

    def rank_batches(self, rank: int, batches: _Integers) -> _Integers:
        """Return the sample ids of a rank's batches: shape (len(batches), batch_size), int64, -1 if short."""
        return self.sample_ids(self._rank_slots(rank, batches)).reshape(len(batches), self.grid.batch_size)

    def global_batches(self, batches: _Integers) -> _Integers:
        """Return the sample ids of global batches: shape (len(batches), num_ranks, batch_size), int64, -1 if short."""
        slots = batches[:, None] * self.grid.global_batch_size + np.arange(self.grid.global_batch_size)
        found = self.sample_ids(slots.reshape(-1))
        return found.reshape(len(batches), self.grid.num_ranks, self.grid.batch_size)

    def _rank_slots(self, rank: int, batches: _Integers) -> _Integers:
        size = self.grid.batch_size
        return (batches[:, None] * self.grid.global_batch_size + rank * size + np.arange(size)).reshape(-1)


_PHASE_BITS = 24
#: The last epoch: the bits above its number are those of the phase.
LAST_EPOCH = (1 << _PHASE_BITS) - 1


def epoch_of_phase(epoch: int, phase: int) -> int:
    """Return the epoch number that seeds a phase. Each phase of each epoch has a different one."""
    return epoch + (phase << _PHASE_BITS)


def phase_of(epoch: int) -> int:
    """Return the phase of an epoch number that ``epoch_of_phase`` returned."""
    return epoch >> _PHASE_BITS


class JoinedBatches:
    """The global batches of consecutive phases. Only the last phase may end with a short one.

    Args:
        phases: The batches of each phase, of at least one.
    """

    def __init__(self, phases: Sequence[BatchCounts]) -> None:
        self._phases = phases
        counts = [phase.num_even_batches for phase in phases]
        self.firsts: npt.NDArray[np.int64] = np.cumsum([0, *counts[:-1]])
        self.num_even_batches: int = sum(counts)
        self.num_batches: int = sum(counts[:-1]) + phases[-1].num_batches

    def num_rank_samples(self, num_batches: int) -> int:
        """Return how many samples each rank has read after ``num_batches`` global batches."""
        last = int(np.searchsorted(self.firsts, num_batches, side="right")) - 1
        before = sum(phase.num_rank_samples(phase.num_even_batches) for phase in self._phases[:last])
        return before + self._phases[last].num_rank_samples(num_batches - int(self.firsts[last]))


class JoinedPlan(EpochPlan):
    """The plan of an epoch of several phases, one after the other.

    Args:
        plans: The plan of each phase, of at least one, all for the same grid.
    """

    def __init__(self, plans: Sequence[EpochPlan]) -> None:
        batches = JoinedBatches([plan.batching for plan in plans])
        super().__init__(batches, plans[0].grid)
        self._plans = plans
        self._first_slots = batches.firsts * plans[0].grid.global_batch_size

    def sample_ids(self, slots: _Integers) -> _Integers:
        """Return the id of each slot's sample, -1 if it reads none: shape (len(slots),), int64."""
        return self._found(slots, [plan.sample_ids for plan in self._plans])

    def positions(self, slots: _Integers) -> _Integers:
        """Return each slot's position in the epoch's order, -1 if it reads none: shape (len(slots),), int64."""
        return self._found(slots, [plan.positions for plan in self._plans])

    def _found(self, slots: _Integers, of_phases: Sequence[Callable[[_Integers], _Integers]]) -> _Integers:
        phases = np.searchsorted(self._first_slots, slots, side="right") - 1
        found = np.empty(len(slots), np.int64)
        for phase in np.unique(phases).tolist():
            where = phases == phase
            found[where] = of_phases[phase](slots[where] - self._first_slots[phase])
        return found


ShuffleName: TypeAlias = Literal["block"] | ReferenceShuffleName | OwnShuffleName
SHUFFLES: tuple[ShuffleName, ...] = ("block", *REFERENCE_SHUFFLES)
SamplingMethod: TypeAlias = Literal["balanced", "fixed"]
SAMPLING_METHODS: tuple[SamplingMethod, ...] = get_args(SamplingMethod)

_CHUNK = 1 << 18


@dataclass(frozen=True)
class OrderSettings:
    """The settings that determine the order of every epoch; ``EpochStart`` adds seed and resume point.

    Attributes:
        shard_sizes: For each stream, the number of samples in each shard: int64.
        shuffle: Whether to shuffle samples.
        shuffle_algo: One of ``shuffle_names()``.
        shuffle_block_size: Number of positions over which a shard is spread; None to derive it from the number of
            canonical nodes.
        sampling_method: ``balanced`` to take different samples in each epoch, or ``fixed`` for the same ones.
        sampling_granularity: Number of consecutive samples to take at a time.
        partition_algo: ``orig`` or ``relaxed``.
        batching_method: One of ``BATCHING_METHODS``.
    """

    shard_sizes: tuple[_Integers, ...]
    shuffle: bool = False
    shuffle_algo: ShuffleName = "py1e"
    shuffle_block_size: int | None = None
    sampling_method: SamplingMethod = "balanced"
    sampling_granularity: int = 1
    partition_algo: PartitionName = "relaxed"
    batching_method: BatchingMethod = "random"

    @property
    def depends_on_grid(self) -> bool:
        """Whether the global batches of an epoch depend on the grid that it begins in, besides their size."""
        if self.batching_method == "random":
            return False
        return self.batching_method == "device_per_stream" or not self.is_even

    @property
    def is_keyed(self) -> bool:
        """Whether the order is ``block``, which computes any position alone with keyed permutations."""
        return self.shuffle and self.shuffle_algo == "block"

    @property
    def is_even(self) -> bool:
        """Whether ranks divide the order evenly, in any world: ``block``, and shuffles that users register."""
        return self.shuffle and self.shuffle_algo not in REFERENCE_SHUFFLES

    def block_size(self, num_canonical_nodes: int) -> int:
        """Return the number of positions over which a shard is spread."""
        if self.shuffle_block_size is None:
            return max(4_000_000 // num_canonical_nodes, 262_144)
        return self.shuffle_block_size

    def canonical_nodes(self, num_nodes: int) -> int:
        """Return the default number of canonical nodes."""
        return 64 * num_nodes if self.shuffle_algo in ("py1s", "py2s") else num_nodes


@dataclass(frozen=True)
class EpochStart:
    """The start of an epoch's plan: a sample, the seed and the canonical nodes.

    Attributes:
        epoch: Index of the epoch, from 0.
        sample_in_epoch: Samples of the epoch that all ranks together have read.
        seed: Seed of the shuffle.
        num_canonical_nodes: Parts of the order.
        initial_physical_nodes: Nodes of the run that began the epoch; None if unknown.
        initial_grid: Grid that the epoch began in; None for the present one. It has the same global batch size.
        is_exact: Whether ``random`` resumes exactly where ``sample_in_epoch`` is not a multiple of the nodes. The
            reference resumes earlier.
    """

    epoch: int
    sample_in_epoch: int
    seed: int
    num_canonical_nodes: int
    initial_physical_nodes: int | None = None
    initial_grid: Grid | None = None
    is_exact: bool = False


class PhasePlan(EpochPlan):
    """The plan of one phase of an epoch, in which the weights of the streams are constant.

    Args:
        batching: Stream and position of each slot.
        selections: The samples of the epoch: one selection for each stream, or one for all of them.
        shuffles: The order of each selection; None for samples in their own order.
        grid: Ranks and batch size.
        phase: Index of the epoch's phase that this plan is for.
    """

    def __init__(
        self,
        batching: Batching,
        selections: Sequence[Selection | KeyedSelection],
        shuffles: Sequence[Shuffle | None],
        grid: Grid,
        *,
        phase: int = 0,
    ) -> None:
        super().__init__(batching, grid)
        sizes = np.array([selection.size for selection in selections], np.int64)
        # Every phase and every stream numbers its positions from 0.
        self._first_positions = (phase << POSITION_BITS) + np.cumsum(sizes) - sizes
        self._locate = batching.locate
        self._selections = selections
        self._shuffles = shuffles

    def sample_ids(self, slots: _Integers) -> _Integers:
        """Return the id of each slot's sample, -1 if it reads none: shape (len(slots),), int64."""
        streams, positions = self._located(slots)
        found = np.full(len(slots), -1, np.int64)
        for stream, (selection, shuffle) in enumerate(zip(self._selections, self._shuffles, strict=True)):
            where = np.flatnonzero((streams == stream) & (positions >= 0))
            if len(where):
                own = positions[where] if shuffle is None else shuffle.samples_at(positions[where])
                found[where] = selection.sample_ids(own)
        return found

    def positions(self, slots: _Integers) -> _Integers:
        """Return each slot's position in the epoch's order, -1 if it reads none: shape (len(slots),), int64."""
        streams, positions = self._located(slots)
        return np.where(positions >= 0, self._first_positions[streams] + positions, -1)

    def _located(self, slots: _Integers) -> tuple[npt.NDArray[np.int32], _Integers]:
        """Return each slot's stream and position. Work in chunks to limit the memory of intermediate arrays."""
        streams, positions = np.empty(len(slots), np.int32), np.empty(len(slots), np.int64)
        for start in range(0, len(slots), _CHUNK):
            part = slice(start, start + _CHUNK)
            streams[part], positions[part] = self._locate(slots[part])
        return streams, positions


class OrderedSamples:
    """The samples of an epoch whose weights are constant, in the order of ``random`` batching, each position once.

    Args:
        selection: The samples of the epoch.
        shuffle: Their order; None: they stay in their own.
    """

    def __init__(self, selection: Selection | KeyedSelection, shuffle: Shuffle | None) -> None:
        self._selection = selection
        self._shuffle = shuffle

    def sample_ids(self, first: int, stop: int) -> _Integers:
        """Return the ids of the samples at the positions from ``first`` to ``stop - 1``: int64."""
        positions = np.arange(first, stop, dtype=np.int64)
        return self._selection.sample_ids(positions if self._shuffle is None else self._shuffle.samples_at(positions))


def ordered_samples(
    settings: OrderSettings, shares: StreamShares, start: EpochStart, order_cache: OrderCache = in_memory
) -> OrderedSamples:
    """Return the order of an epoch's samples, without ranks and batches.

    Args:
        settings: The settings that determine the order.
        shares: Each stream's share of the epoch.
        start: The epoch, its seed and its canonical nodes.
        order_cache: Where the computed orders of the reference's shuffles are held.

    Raises:
        ConfigurationError: The shuffle does not work with these numbers.
    """
    selection = _selection(settings, _streams(settings, shares), start)
    block_size = settings.block_size(start.num_canonical_nodes)
    is_shuffled = settings.shuffle and selection.size > 0
    return OrderedSamples(
        selection, _shuffle(settings, selection, start, block_size, order_cache) if is_shuffled else None
    )


def selected_samples(
    settings: OrderSettings, shares: StreamShares, start: EpochStart, stream: int | None = None
) -> tuple[_Integers, _Integers]:
    """Return the samples that an epoch takes, before they are shuffled.

    Args:
        settings: The settings that determine the order.
        shares: Each stream's share of the epoch.
        start: The epoch and its seed.
        stream: The stream whose samples are selected alone, as batching methods other than ``random`` do; None: all.

    Returns:
        The sizes of the shuffle units, and the samples' numbers unit by unit, ascending in each.
    """
    streams = _streams(settings, shares)
    selection = _selection(settings, streams if stream is None else [streams[stream]], start)
    sample_ids = selection.sample_ids(np.arange(selection.size, dtype=np.int64))
    if settings.is_keyed:
        units = np.repeat(np.arange(len(selection.unit_sizes)), selection.unit_sizes)
        sample_ids = sample_ids[np.lexsort((sample_ids, units))]
    return selection.unit_sizes, sample_ids


def shuffle_names() -> tuple[ShuffleName, ...]:
    """Return what ``shuffle_algo`` may be: ``SHUFFLES``, and the names that are registered."""
    return (*SHUFFLES, *own_shuffle_names())


def plan_epoch(
    settings: OrderSettings, shares: StreamShares, start: EpochStart, grid: Grid, order_cache: OrderCache = in_memory
) -> PhasePlan:
    """Return the plan of the rest of an epoch.

    Args:
        settings: The settings that determine the order.
        shares: Each stream's share of the epoch.
        start: Where the epoch starts or resumes.
        grid: Ranks and batch size.
        order_cache: Where the computed orders of the reference's shuffles are held.

    Raises:
        ConfigurationError: The partition, the batching or the shuffle does not work with these numbers.
    """
    streams = _streams(settings, shares)
    block_size = settings.block_size(start.num_canonical_nodes)
    if settings.batching_method == "random":
        selections = [_selection(settings, streams, start)]
        block_sizes = [block_size]
    else:
        selections = [_selection(settings, [stream], start) for stream in streams]
        block_sizes = [int(block_size * proportion) for proportion in shares.proportion]
    shuffles = [
        _shuffle(settings, selection, start, size, order_cache) if settings.shuffle and selection.size else None
        for selection, size in zip(selections, block_sizes, strict=True)
    ]
    batching = batching_of(settings, shares, start, grid)
    return PhasePlan(batching, selections, shuffles, grid, phase=phase_of(start.epoch))


def check_order(settings: OrderSettings, shares: StreamShares, num_canonical_nodes: int) -> None:
    """Check that the shuffle works with the streams' shares, without shuffling.

    Raises:
        ConfigurationError: The shuffle does not work with these numbers.
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


def batching_of(settings: OrderSettings, shares: StreamShares, start: EpochStart, grid: Grid) -> Batching:
    """Return the global batches of the rest of an epoch, without their samples: this is fast for any order.

    Raises:
        ConfigurationError: The partition or the batching does not work with these numbers.
    """
    nodes, sample_in_epoch = start.num_canonical_nodes, start.sample_in_epoch
    if settings.batching_method == "random":
        return RandomBatching(_partition(settings, shares.epoch_size, start, grid, sample_in_epoch, start.is_exact))
    is_reseeded = settings.shuffle and settings.sampling_method == "balanced"
    seed = start.seed + start.epoch if is_reseeded else start.seed
    # Each present rank reads its part of the global batches that the first ranks would have read.
    first = start.initial_grid or grid
    if settings.batching_method in ("stratified", "device_stratified"):
        one_node = replace(first, num_nodes=1, batch_size=1)
        partitions = [_partition(settings, size, start, one_node) for size in shares.choose]
        is_spread = settings.batching_method == "device_stratified"
        return StratifiedBatching(partitions, shares.proportion, grid, sample_in_epoch, is_spread=is_spread)
    if settings.batching_method == "per_stream":
        partitions = [_partition(settings, size, start, first) for size in shares.choose]
        return PerStreamBatching(partitions, shares.choose, grid, sample_in_epoch, seed)
    canonical = replace(first, num_nodes=nodes, batch_size=1)
    partitions = [_partition(settings, size, start, canonical) for size in shares.choose]
    return DevicePerStreamBatching(partitions, shares.choose, grid, first, nodes, sample_in_epoch, seed)


def _streams(settings: OrderSettings, shares: StreamShares) -> list[StreamSamples]:
    streams: list[StreamSamples] = []
    first = 0
    for sizes, choose in zip(settings.shard_sizes, shares.choose, strict=True):
        streams.append(StreamSamples(sizes, first, choose))
        first += int(sizes.sum())
    return streams


def _selection(
    settings: OrderSettings, streams: Sequence[StreamSamples], start: EpochStart
) -> Selection | KeyedSelection:
    is_balanced = settings.sampling_method == "balanced"
    if settings.is_keyed:
        epoch = start.epoch if is_balanced else 0
        return KeyedSelection(streams, seed=start.seed, epoch=epoch, granularity=settings.sampling_granularity)
    return selected(
        streams,
        seed=start.seed,
        epoch=start.epoch,
        granularity=settings.sampling_granularity,
        is_balanced=is_balanced,
        is_shuffled=settings.shuffle,
    )


def _shuffle(
    settings: OrderSettings,
    selection: Selection | KeyedSelection,
    start: EpochStart,
    block_size: int,
    order_cache: OrderCache,
) -> Shuffle:
    numbers = (selection.unit_sizes, start.num_canonical_nodes, start.seed, start.epoch, block_size)
    if settings.is_keyed:
        return BlockShuffle(*numbers)
    if settings.shuffle_algo in REFERENCE_SHUFFLES:
        return ReferenceShuffle(settings.shuffle_algo, *numbers, order_cache)
    return OwnShuffle(settings.shuffle_algo, *numbers)


def _partition(
    settings: OrderSettings,
    size: int,
    start: EpochStart,
    grid: Grid,
    drop_first: int = 0,
    is_exact: bool = False,
) -> Partition:
    if settings.is_even:
        return EvenPartition(size, start.num_canonical_nodes, grid, drop_first)
    return partitioned(
        settings.partition_algo,
        size,
        start.num_canonical_nodes,
        grid,
        drop_first,
        start.initial_physical_nodes,
        in_filling=True,
        is_exact=is_exact,
    )
