"""Which place of an epoch's order each rank reads at each step.

Places are told by *slots*: slot ``t`` is the sample ``t % G`` of the global batch ``t // G``, of ``G`` samples; and
within a global batch, the ranks' batches stand one after the other. No place is laid out: each is computed from its
slot, for as many slots as one likes.
"""

from dataclasses import dataclass, replace
from logging import getLogger
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.order.spans import canonical_bounds

__all__ = ["PARTITIONS", "EvenPartition", "Grid", "Partition", "ReferencePartition", "partitioned"]

PARTITIONS = ("orig", "relaxed")

_Integers = npt.NDArray[np.int64]
_logger = getLogger(__name__)


@dataclass(frozen=True)
class Grid:
    """Who reads side by side.

    Attributes:
        num_nodes: Number of nodes.
        ranks_per_node: Ranks of each.
        batch_size: Samples that a rank reads in a step.
    """

    num_nodes: int
    ranks_per_node: int
    batch_size: int

    @property
    def num_ranks(self) -> int:
        """Number of ranks over all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def global_batch_size(self) -> int:
        """Samples that all ranks read in a step."""
        return self.num_ranks * self.batch_size


class Partition(Protocol):
    """An epoch's places dealt out to ranks.

    Attributes:
        num_rank_samples: Samples that each rank reads.
        num_samples: Samples that all ranks read: in ours, without those that are read again to fill up the end.
        grid: Who reads.
    """

    num_rank_samples: int
    num_samples: int
    grid: Grid

    def places(self, slots: _Integers) -> _Integers:
        """Return the place that is read in each slot; -1 where none is."""
        ...


def partitioned(
    algorithm: str,
    size: int,
    num_canonical_nodes: int,
    grid: Grid,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
    *,
    in_filling: bool = False,
) -> Partition:
    """Return a reference partition of ``size`` places.

    Args:
        algorithm: ``orig``, or ``relaxed``, in which a run goes on where canonical and physical nodes do not divide.
        size: Number of places.
        num_canonical_nodes: Parts that the order is made of.
        grid: Who reads.
        drop_first: Samples that have been read already, over all ranks.
        initial_physical_nodes: Nodes of the run that began the epoch, where it is known.
        in_filling: Whether a run may go on among the places that are repeated to fill up canonical nodes. The
            reference stops there, and refuses to go on.

    Raises:
        ConfigurationError: The numbers do not divide, or there are fewer places than ``drop_first``.
    """
    num_ranks = grid.num_ranks
    limit = size + num_ranks - size % num_ranks
    if in_filling:
        filled_up = -(-size // num_canonical_nodes) * num_canonical_nodes
        limit = max(limit, -(-filled_up // num_ranks) * num_ranks)
    if drop_first > limit:
        raise ConfigurationError("sample_in_epoch", drop_first, f"at most the epoch's size: {size}")
    nodes = num_canonical_nodes, grid.num_nodes
    if algorithm == "orig" or initial_physical_nodes is None or max(nodes) % min(nodes) == 0:
        return ReferencePartition(size, num_canonical_nodes, grid, drop_first)
    ranks = initial_physical_nodes * grid.ranks_per_node
    if grid.global_batch_size % ranks:
        raise ConfigurationError(
            "batch_size",
            grid.batch_size,
            f"a global batch ({grid.global_batch_size}) that divides by the {ranks} ranks of the run that is resumed",
        )
    first = replace(grid, num_nodes=initial_physical_nodes, batch_size=grid.global_batch_size // ranks)
    return ReferencePartition(size, num_canonical_nodes, first, drop_first)


class ReferencePartition:
    """The reference's partition ``orig``: canonical nodes' parts side by side, read column by column.

    Args:
        size: Number of places.
        num_canonical_nodes: Parts that the order is made of.
        grid: Who reads.
        drop_first: Samples that have been read already, over all ranks.

    Raises:
        ConfigurationError: Neither of the numbers of nodes divides the other, or there are too few samples.
    """

    def __init__(self, size: int, num_canonical_nodes: int, grid: Grid, drop_first: int = 0) -> None:
        rows, nodes = num_canonical_nodes, grid.num_nodes
        if max(rows, nodes) % min(rows, nodes):
            raise ConfigurationError("num_canonical_nodes", rows, f"a multiple or a divisor of the {nodes} nodes")
        self.grid = grid
        self._size = size
        self._rows = rows
        self._drop = drop_first - drop_first % nodes
        if self._drop != drop_first:
            _logger.warning("%d samples of %d nodes: resumes %d samples earlier", drop_first, nodes, drop_first % nodes)
        self._columns = -(-size // rows)
        self._nodes_per_row = max(1, nodes // rows)
        self._padding = -self._columns % self._nodes_per_row
        self._is_cyclic = not (size > rows or (size == rows and rows >= nodes))
        # Where padding copies columns from, counted back from the width.
        self._copied_from = self._columns - self._padding - self._nodes_per_row + 1
        if self._padding and not self._is_cyclic and self._copied_from < 0:
            raise ConfigurationError(
                "num_canonical_nodes", rows, f"at least {nodes}, the number of nodes, where there are {size} samples"
            )
        width = self._columns + self._padding
        self._per_node = (rows * width - self._drop) // nodes
        self._short = -self._per_node % grid.ranks_per_node
        self.num_rank_samples = (self._per_node + self._short) // grid.ranks_per_node
        self.num_samples = self.num_rank_samples * grid.num_ranks

    def places(self, slots: _Integers) -> _Integers:
        """Return the place that is read in each slot; -1 where none is."""
        grid = self.grid
        batches, within = np.divmod(slots, grid.global_batch_size)
        ranks, samples = np.divmod(within, grid.batch_size)
        nodes, ranks_of_node = np.divmod(ranks, grid.ranks_per_node)
        entries = batches * grid.batch_size + samples
        is_read = entries < self.num_rank_samples
        entries = np.where(is_read, entries, 0)
        return np.where(is_read, self._place(nodes, entries * grid.ranks_per_node + ranks_of_node), -1)

    def _place(self, nodes: _Integers, entries: _Integers) -> _Integers:
        ranks = self.grid.ranks_per_node
        beyond = entries - self._per_node
        if self._per_node == 0:
            return np.full(entries.shape, -1, np.int64)
        if ranks + self._short - 1 <= self._per_node:
            repeated = self._per_node - ranks - self._short + 1 + beyond
        else:
            repeated = beyond % self._per_node
        entries = np.where(beyond < 0, entries, repeated)
        columns, rows = np.divmod(self._drop + nodes + self.grid.num_nodes * entries, self._rows)
        if self._is_cyclic:
            return (rows * (self._columns + self._padding) + columns) % max(self._size, 1)
        columns = np.where(columns >= self._columns, self._copied_from + columns - self._columns, columns)
        starts, stops = rows * self._size // self._rows, (rows + 1) * self._size // self._rows
        is_missing = (columns == self._columns - 1) & (stops - starts < self._columns)
        return starts + columns - is_missing


class EvenPartition:
    """Our partition: the canonical nodes' parts read column by column, with no place twice in their order.

    Any number of nodes will do. Only where the ranks do not divide what is left of an epoch, a rank reads a sample
    of its own again, so that all ranks read equally many.

    Args:
        size: Number of places.
        num_canonical_nodes: Parts that the order is made of.
        grid: Who reads.
        drop_first: Samples that have been read already, over all ranks.

    Raises:
        ConfigurationError: There are fewer places than ``drop_first``.
    """

    def __init__(self, size: int, num_canonical_nodes: int, grid: Grid, drop_first: int = 0) -> None:
        ranks = grid.num_ranks
        if drop_first > -(-size // ranks) * ranks:
            raise ConfigurationError("sample_in_epoch", drop_first, f"at most the epoch's size: {size}")
        self.grid = grid
        self._size = size
        self._drop = min(drop_first, size)
        self._rows = num_canonical_nodes
        self.num_samples = size - self._drop
        self.num_rank_samples = -(-self.num_samples // ranks)
        bounds = canonical_bounds(size, num_canonical_nodes)
        self._starts = bounds[:-1]
        # All rows have the same columns, but for one more that some of them have.
        self._columns = size // num_canonical_nodes
        self._longer_rows = np.flatnonzero(np.diff(bounds) > self._columns)

    def places(self, slots: _Integers) -> _Integers:
        """Return the place that is read in each slot; -1 where none is."""
        grid, ranks = self.grid, self.grid.num_ranks
        batches, within = np.divmod(slots, grid.global_batch_size)
        rank, samples = np.divmod(within, grid.batch_size)
        entries = batches * grid.batch_size + samples
        is_read = entries < self.num_rank_samples
        nodes, ranks_of_node = np.divmod(rank, grid.ranks_per_node)
        found = self._drop + entries * ranks + nodes + grid.num_nodes * ranks_of_node
        found = np.where(found >= self._size, (found - ranks) % max(self._size, 1), found)
        found = np.where(is_read, found, 0)
        columns, rows = np.divmod(found, self._rows)
        if len(self._longer_rows):
            rows = np.where(columns == self._columns, self._longer_rows[rows % len(self._longer_rows)], rows)
        return np.where(is_read, self._starts[rows] + columns, -1)
