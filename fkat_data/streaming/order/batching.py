"""The batching methods: from each slot of an epoch to a stream and a position in the stream's order.

As in ``partition``, slot ``t`` is sample ``t % G`` of global batch ``t // G``, where ``G`` is the global batch size.
"""

from collections.abc import Sequence
from logging import getLogger
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.order.partition import Grid, Partition

BatchingMethod: TypeAlias = Literal["random", "stratified", "device_stratified", "per_stream", "device_per_stream"]
BATCHING_METHODS: tuple[BatchingMethod, ...] = get_args(BatchingMethod)

_Integers = npt.NDArray[np.int64]
_logger = getLogger(__name__)


class BatchCounts(Protocol):
    """The number of global batches in the rest of an epoch.

    Attributes:
        num_batches: Global batches from the resume point on.
        num_even_batches: How many of these have a sample for every rank. The last one may be short.
    """

    num_batches: int
    num_even_batches: int

    def num_rank_samples(self, num_batches: int) -> int:
        """Return how many samples each rank has read after ``num_batches`` global batches."""
        ...


class Batching(BatchCounts, Protocol):
    """The global batches of an epoch, with a stream and a position for each of their slots.

    Attributes:
        first_batch: Whole global batches before the resume point; 0 for ``random``, whose partition drops samples
            instead.
    """

    first_batch: int

    def locate(self, slots: _Integers) -> tuple[_Integers, _Integers]:
        """Return each slot's stream and position in its order, -1 if it reads none: two int64 arrays like ``slots``."""
        ...


class RandomBatching:
    """Batching ``random``: all streams share one order."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.num_batches: int = -(-partition.num_rank_samples // partition.grid.batch_size)
        self.num_even_batches: int = self.num_batches
        self.first_batch = 0

    def locate(self, slots: _Integers) -> tuple[_Integers, _Integers]:
        """Return stream 0 and each slot's position, -1 if it reads none: two int64 arrays like ``slots``."""
        return np.zeros(len(slots), np.int64), self._partition.positions(slots)

    def num_rank_samples(self, num_batches: int) -> int:
        """Return how many samples each rank has read after ``num_batches`` global batches."""
        return min(num_batches * self._partition.grid.batch_size, self._partition.num_rank_samples)


class _WholeBatching:
    """Base of the other methods: every global batch is full, and a resume drops whole ones."""

    def __init__(self, grid: Grid, num_batches: int, sample_in_epoch: int) -> None:
        self._grid = grid
        self.first_batch: int = sample_in_epoch // grid.global_batch_size
        self.num_batches: int = max(0, num_batches - self.first_batch)
        self.num_even_batches: int = self.num_batches
        if sample_in_epoch % grid.global_batch_size:
            _logger.warning(
                "sample_in_epoch = %d is not a multiple of the global batch size %d: resuming %d samples earlier",
                sample_in_epoch,
                grid.global_batch_size,
                sample_in_epoch % grid.global_batch_size,
            )

    def num_rank_samples(self, num_batches: int) -> int:
        """Return how many samples each rank has read after ``num_batches`` global batches."""
        return num_batches * self._grid.batch_size

    def _split(self, slots: _Integers) -> tuple[_Integers, _Integers]:
        batches, within = np.divmod(slots, self._grid.global_batch_size)
        return batches + self.first_batch, within


class StratifiedBatching(_WholeBatching):
    """Batching ``stratified`` and ``device_stratified``: every global batch has each stream's share.

    Args:
        partitions: One for each stream, for one node and batches of one sample.
        proportions: One for each stream, from 0 to 1.
        grid: Ranks and batch size.
        sample_in_epoch: Samples of the epoch that all ranks together have read.
        is_spread: Spread each stream evenly over the global batch, so that every rank's batch has about its share.
            Otherwise the streams follow one another. Both have the same samples.

    Raises:
        ConfigurationError: A stream's share of a global batch is less than one sample.
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
        """Return each slot's stream and position in its order, -1 if it reads none: two int64 arrays like ``slots``."""
        batches, within = self._split(slots)
        if self._spread is not None:
            within = self._spread[within]
        streams = np.searchsorted(self._starts, within, side="right") - 1
        rows = batches * self._shares[streams] + within - self._starts[streams]
        return streams, _positions(self._partitions, streams, rows, np.ones(len(slots), bool))


class PerStreamBatching(_WholeBatching):
    """Batching ``per_stream``: all samples of a global batch come from one stream.

    Args:
        partitions: One for each stream.
        chosen: Samples that the epoch takes from each stream.
        grid: Ranks and batch size.
        sample_in_epoch: Samples of the epoch that all ranks together have read.
        seed: Seed for the order of the streams' batches.

    Raises:
        ConfigurationError: The epoch takes samples from a stream, but too few for a global batch.
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
        """Return each slot's stream and position in its order, -1 if it reads none: two int64 arrays like ``slots``."""
        batches, within = self._split(slots)
        is_read = batches < len(self._streams)
        batches = np.where(is_read, batches, 0)
        rows = self._batches[batches] * self._grid.global_batch_size + within
        streams = self._streams[batches]
        return streams, _positions(self._partitions, streams, rows, is_read)


class DevicePerStreamBatching(_WholeBatching):
    """Batching ``device_per_stream``: all samples of a rank's batch come from one stream.

    Args:
        partitions: One for each stream, with a node for each canonical node, and batches of one sample.
        chosen: Samples that the epoch takes from each stream.
        grid: Ranks and batch size.
        first: The same when the epoch began.
        num_canonical_nodes: Parts of the order; a multiple of the number of nodes.
        sample_in_epoch: Samples of the epoch that all ranks together have read.
        seed: Seed for the order of the streams' batches.

    Raises:
        ConfigurationError: The epoch takes samples from a stream, but too few for a rank's batch, or
            ``num_canonical_nodes`` is not a multiple of the number of nodes.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        chosen: Sequence[int],
        grid: Grid,
        first: Grid,
        num_canonical_nodes: int,
        sample_in_epoch: int,
        seed: int,
    ) -> None:
        if num_canonical_nodes % first.num_nodes:
            raise ConfigurationError(
                "num_canonical_nodes", num_canonical_nodes, f"a multiple of the {first.num_nodes} nodes"
            )
        self._partitions = partitions
        self._first = first
        # A stream's partition has the ranks of all canonical nodes side by side. A node reads its own part.
        self._width = num_canonical_nodes * first.ranks_per_node
        self._node_width = self._width // first.num_nodes
        counts = [self._node_width * part.num_rank_samples // first.batch_size for part in partitions]
        _check_filled(counts, chosen, "a rank's batch", first.batch_size)
        streams = np.repeat(np.arange(len(counts)), counts)
        generator = np.random.default_rng(seed)
        self._streams: list[_Integers] = []
        for _ in range(first.num_nodes):
            shuffled = streams.copy()
            generator.shuffle(shuffled)
            self._streams.append(shuffled)
        self._batches = [_occurrences(order) for order in self._streams]
        ranks = first.num_ranks
        rows = len(streams) + ranks - len(streams) % ranks
        super().__init__(grid, rows * first.num_nodes // ranks, sample_in_epoch)
        # The reference ends with global batches that only some ranks have.
        self.num_even_batches: int = max(0, len(streams) * first.num_nodes // ranks - self.first_batch)

    def locate(self, slots: _Integers) -> tuple[_Integers, _Integers]:
        """Return each slot's stream and position in its order, -1 if it reads none: two int64 arrays like ``slots``."""
        grid = self._first
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
            steps, positions = np.divmod(entries, self._node_width)
            rows_of_stream = steps * self._width + node * self._node_width + positions
            found[where] = _positions(self._partitions, streams[where], rows_of_stream, np.ones(len(where), bool))
        return streams, found


def _shares(proportions: npt.NDArray[np.float64], global_batch_size: int) -> _Integers:
    exact = global_batch_size * proportions
    shares = exact.astype(np.int64)
    # A stable sort gives the same order on every CPU; an unstable one depends on its vector instructions.
    by_leftover = np.argsort(exact - shares, kind="stable")[::-1]
    shares[by_leftover[: global_batch_size - int(shares.sum())]] += 1
    too_small = (shares <= 0) & (proportions > 0)
    if too_small.any():
        stream = int(np.flatnonzero(too_small)[0])
        raise ConfigurationError(
            "batch_size",
            global_batch_size,
            "a global batch large enough for a sample of every stream (batching_method='stratified'): stream "
            f"{stream} has a proportion of {proportions[stream]:.3g}",
        )
    return shares


def _spread(shares: _Integers) -> _Integers:
    """Return an order of the positions of consecutive streams that spreads each stream evenly."""
    parts: list[npt.NDArray[np.float64]] = [(np.arange(share) + 0.5) / share for share in shares.tolist() if share]
    return np.argsort(np.concatenate(parts), kind="stable")


def _check_filled(counts: Sequence[int], chosen: Sequence[int], what: str, size: int) -> None:
    for stream, (count, choose) in enumerate(zip(counts, chosen, strict=True)):
        if choose and not count:
            raise ConfigurationError(
                "batch_size", size, f"{what} that stream {stream} can fill; an epoch takes {choose} samples of it"
            )


def _occurrences(streams: _Integers) -> _Integers:
    """Return for each entry how many equal entries precede it."""
    order = np.argsort(streams, kind="stable")
    ordered = streams[order]
    found = np.empty(len(streams), np.int64)
    found[order] = np.arange(len(streams)) - np.searchsorted(ordered, ordered, side="left")
    return found


def _positions(
    partitions: Sequence[Partition], streams: _Integers, slots: _Integers, is_read: npt.NDArray[np.bool_]
) -> _Integers:
    found = np.full(len(slots), -1, np.int64)
    for stream, partition in enumerate(partitions):
        where = np.flatnonzero((streams == stream) & is_read)
        if len(where):
            found[where] = partition.positions(slots[where])
    return found
