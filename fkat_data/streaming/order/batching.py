"""Which stream, and which place of its order, each slot of an epoch reads: the ways to make batches of streams.

Slots are those of ``partition``: slot ``t`` is the sample ``t % G`` of the global batch ``t // G``.
"""

from collections.abc import Sequence
from logging import getLogger
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.order.partition import Grid, Partition

__all__ = [
    "BATCHING_METHODS",
    "BatchCounts",
    "Batching",
    "DevicePerStreamBatching",
    "PerStreamBatching",
    "RandomBatching",
    "StratifiedBatching",
]

BATCHING_METHODS = ("random", "stratified", "device_stratified", "per_stream", "device_per_stream")

_Integers = npt.NDArray[np.int64]
_logger = getLogger(__name__)


class BatchCounts(Protocol):
    """How many global batches there are.

    Attributes:
        num_batches: How many there are from where the epoch is resumed.
        num_even_batches: How many of these every rank has: the last one may be short, but no rank is without.
    """

    num_batches: int
    num_even_batches: int

    def num_rank_samples(self, num_batches: int) -> int:
        """Return the samples that each rank has read after so many of the batches."""
        ...


class Batching(BatchCounts, Protocol):
    """An epoch's global batches.

    Attributes:
        first_batch: How many were stepped over by whole batches; in ``random`` the partition does that by samples.
    """

    first_batch: int

    def locate(self, slots: _Integers) -> tuple[_Integers, _Integers]:
        """Return the stream of each slot, and the place in that stream's order: -1 where nothing is read."""
        ...


class RandomBatching:
    """All streams in one order."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.num_batches = -(-partition.num_rank_samples // partition.grid.batch_size)
        self.num_even_batches = self.num_batches
        self.first_batch = 0

    def locate(self, slots: _Integers) -> tuple[_Integers, _Integers]:
        """Return the stream of each slot, which is always 0, and the place in the order; -1 where nothing is read."""
        return np.zeros(len(slots), np.int64), self._partition.places(slots)

    def num_rank_samples(self, num_batches: int) -> int:
        """Return the samples that each rank has read after so many of the batches."""
        return min(num_batches * self._partition.grid.batch_size, self._partition.num_rank_samples)


class _WholeBatching:
    """What the other ways have in common: global batches that are full, of which a resume steps over whole ones."""

    def __init__(self, grid: Grid, num_batches: int, sample_in_epoch: int) -> None:
        self._grid = grid
        self.first_batch = sample_in_epoch // grid.global_batch_size
        self.num_batches = self.num_even_batches = max(0, num_batches - self.first_batch)
        if sample_in_epoch % grid.global_batch_size:
            _logger.warning(
                "sample_in_epoch = %d is no multiple of the global batch of %d: resumes %d samples earlier",
                sample_in_epoch,
                grid.global_batch_size,
                sample_in_epoch % grid.global_batch_size,
            )

    def num_rank_samples(self, num_batches: int) -> int:
        """Return the samples that each rank has read after so many of the batches."""
        return num_batches * self._grid.batch_size

    def _split(self, slots: _Integers) -> tuple[_Integers, _Integers]:
        batches, within = np.divmod(slots, self._grid.global_batch_size)
        return batches + self.first_batch, within


class StratifiedBatching(_WholeBatching):
    """Every global batch has each stream's share, the streams side by side or, with the same samples, spread evenly.

    Args:
        partitions: One a stream, each for one node and batches of one sample.
        proportions: One a stream.
        grid: Who reads.
        sample_in_epoch: Samples that have been read already.
        is_spread: Whether the streams are spread, so that every rank's batch has about each stream's share.

    Raises:
        ConfigurationError: A stream's share of a global batch is no sample.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        proportions: Sequence[float],
        grid: Grid,
        sample_in_epoch: int,
        *,
        is_spread: bool = False,
    ) -> None:
        self._partitions = partitions
        self._shares = _shares(np.array(proportions), grid.global_batch_size)
        self._starts = np.cumsum(self._shares) - self._shares
        self._spread = _spread(self._shares) if is_spread else None
        sizes = [partition.num_samples for partition in partitions]
        num_batches = min(
            size // share for size, share, part in zip(sizes, self._shares.tolist(), proportions, strict=True) if part
        )
        super().__init__(grid, num_batches, sample_in_epoch)

    def locate(self, slots: _Integers) -> tuple[_Integers, _Integers]:
        """Return the stream of each slot, and the place in that stream's order: -1 where nothing is read."""
        batches, within = self._split(slots)
        if self._spread is not None:
            within = self._spread[within]
        streams = np.searchsorted(self._starts, within, side="right") - 1
        rows = batches * self._shares[streams] + within - self._starts[streams]
        return streams, _places(self._partitions, streams, rows, np.ones(len(slots), bool))


class PerStreamBatching(_WholeBatching):
    """Every global batch is of one stream.

    Args:
        partitions: One a stream.
        chosen: Samples that each stream gives.
        grid: Who reads.
        sample_in_epoch: Samples that have been read already.
        seed: Decides on the order of the streams' batches.

    Raises:
        ConfigurationError: A stream that gives something does not fill a global batch.
    """

    def __init__(
        self, partitions: Sequence[Partition], chosen: Sequence[int], grid: Grid, sample_in_epoch: int, seed: int
    ) -> None:
        self._partitions = partitions
        counts = [partition.num_samples // grid.global_batch_size for partition in partitions]
        _check_filled(counts, chosen, "a global batch", grid.global_batch_size)
        self._streams = np.repeat(np.arange(len(counts)), counts)
        np.random.default_rng(seed).shuffle(self._streams)
        self._batches = _occurrences(self._streams)
        super().__init__(grid, len(self._streams), sample_in_epoch)

    def locate(self, slots: _Integers) -> tuple[_Integers, _Integers]:
        """Return the stream of each slot, and the place in that stream's order: -1 where nothing is read."""
        batches, within = self._split(slots)
        is_read = batches < len(self._streams)
        batches = np.where(is_read, batches, 0)
        rows = self._batches[batches] * self._grid.global_batch_size + within
        streams = self._streams[batches]
        return streams, _places(self._partitions, streams, rows, is_read)


class DevicePerStreamBatching(_WholeBatching):
    """Every rank's batch is of one stream.

    Args:
        partitions: One a stream, with a node for each canonical node, and batches of one sample.
        chosen: Samples that each stream gives.
        grid: Who reads.
        num_canonical_nodes: Of the order; a multiple of the nodes.
        sample_in_epoch: Samples that have been read already.
        seed: Decides on the order of the streams' batches.

    Raises:
        ConfigurationError: A stream that gives something does not fill a batch, or the nodes do not divide.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        chosen: Sequence[int],
        grid: Grid,
        num_canonical_nodes: int,
        sample_in_epoch: int,
        seed: int,
    ) -> None:
        if num_canonical_nodes % grid.num_nodes:
            raise ConfigurationError(
                "num_canonical_nodes", num_canonical_nodes, f"a multiple of the {grid.num_nodes} nodes"
            )
        self._partitions = partitions
        # Side by side in a stream's partition: all canonical nodes' ranks, of which a node has its own.
        self._width = num_canonical_nodes * grid.ranks_per_node
        self._node_width = self._width // grid.num_nodes
        counts = [self._node_width * part.num_rank_samples // grid.batch_size for part in partitions]
        _check_filled(counts, chosen, "a rank's batch", grid.batch_size)
        streams = np.repeat(np.arange(len(counts)), counts)
        generator = np.random.default_rng(seed)
        self._streams: list[_Integers] = []
        for _ in range(grid.num_nodes):
            shuffled = streams.copy()
            generator.shuffle(shuffled)
            self._streams.append(shuffled)
        self._batches = [_occurrences(order) for order in self._streams]
        ranks = grid.num_ranks
        rows = len(streams) + ranks - len(streams) % ranks
        super().__init__(grid, rows * grid.num_nodes // ranks, sample_in_epoch)
        # The reference fills up with batches that some ranks have and others have not.
        self.num_even_batches = max(0, len(streams) * grid.num_nodes // ranks - self.first_batch)

    def locate(self, slots: _Integers) -> tuple[_Integers, _Integers]:
        """Return the stream of each slot, and the place in that stream's order: -1 where nothing is read."""
        grid = self._grid
        batches, within = self._split(slots)
        ranks, samples = np.divmod(within, grid.batch_size)
        rows, nodes = np.divmod(batches * grid.num_ranks + ranks, grid.num_nodes)
        streams = np.zeros(len(slots), np.int64)
        found = np.full(len(slots), -1, np.int64)
        for node in range(grid.num_nodes):
            where = np.flatnonzero((nodes == node) & (rows < len(self._streams[node])))
            own = rows[where]
            streams[where] = self._streams[node][own]
            entries = self._batches[node][own] * grid.batch_size + samples[where]
            steps, places = np.divmod(entries, self._node_width)
            rows_of_stream = steps * self._width + node * self._node_width + places
            found[where] = _places(self._partitions, streams[where], rows_of_stream, np.ones(len(where), bool))
        return streams, found


def _shares(proportions: npt.NDArray[np.float64], global_batch_size: int) -> _Integers:
    exact = global_batch_size * proportions
    shares = exact.astype(np.int64)
    # Stable: the order must not depend on the vector unit that the machine has.
    by_leftover = np.argsort(exact - shares, kind="stable")[::-1]
    shares[by_leftover[: global_batch_size - int(shares.sum())]] += 1
    too_small = (shares <= 0) & (proportions > 0)
    if too_small.any():
        stream = int(np.flatnonzero(too_small)[0])
        raise ConfigurationError(
            "batch_size",
            global_batch_size,
            f"a global batch with a sample of every stream, for batching_method='stratified': stream {stream} has a "
            f"proportion of {proportions[stream]:.3g}",
        )
    return shares


def _spread(shares: _Integers) -> _Integers:
    """Return the places of streams that stand side by side, in an order in which each is spread evenly."""
    parts: list[npt.NDArray[np.float64]] = [(np.arange(share) + 0.5) / share for share in shares.tolist() if share]
    return np.argsort(np.concatenate(parts), kind="stable")


def _check_filled(counts: Sequence[int], chosen: Sequence[int], what: str, size: int) -> None:
    for stream, (count, choose) in enumerate(zip(counts, chosen, strict=True)):
        if choose and not count:
            raise ConfigurationError(
                "batch_size", size, f"{what} that stream {stream} fills; it gives {choose} samples to an epoch"
            )


def _occurrences(streams: _Integers) -> _Integers:
    """Return for each entry how many like it stand before it."""
    order = np.argsort(streams, kind="stable")
    ordered = streams[order]
    found = np.empty(len(streams), np.int64)
    found[order] = np.arange(len(streams)) - np.searchsorted(ordered, ordered, side="left")
    return found


def _places(
    partitions: Sequence[Partition], streams: _Integers, slots: _Integers, is_read: npt.NDArray[np.bool_]
) -> _Integers:
    found = np.full(len(slots), -1, np.int64)
    for stream, partition in enumerate(partitions):
        where = np.flatnonzero((streams == stream) & is_read)
        if len(where):
            found[where] = partition.places(slots[where])
    return found
