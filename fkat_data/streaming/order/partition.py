"""The position in an epoch's order that each rank reads at each step.

A *slot* numbers what ranks read: slot ``t`` is sample ``t % G`` of global batch ``t // G``, where ``G`` is the global
batch size. Within a global batch, the ranks' batches follow one another. A partition computes the positions of any slots
without an array of the whole epoch.
"""

from dataclasses import dataclass, replace
from logging import getLogger
from typing import Literal, Protocol, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.order.spans import canonical_bounds

PartitionName: TypeAlias = Literal["orig", "relaxed"]
PARTITIONS: tuple[PartitionName, ...] = get_args(PartitionName)

_Integers = npt.NDArray[np.int64]
_logger = getLogger(__name__)


@dataclass(frozen=True)
class Grid:
    """The ranks that read in parallel, and their batch size.

    Attributes:
        num_nodes: Number of nodes.
        ranks_per_node: Ranks on each node.
        batch_size: Samples that a rank reads in a step.
    """

    num_nodes: int
    ranks_per_node: int
    batch_size: int

    @property
    def num_ranks(self) -> int:
        """Number of ranks on all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def global_batch_size(self) -> int:
        """Samples that all ranks read in a step."""
        return self.num_ranks * self.batch_size


class Partition(Protocol):
    """The positions of an epoch, divided among ranks.

    Attributes:
        num_rank_samples: Samples that each rank reads.
        num_samples: Samples that all ranks together read. ``EvenPartition`` does not count repeated ones.
        grid: Ranks and batch size.
    """

    num_rank_samples: int
    num_samples: int
    grid: Grid

    def positions(self, slots: _Integers) -> _Integers:
        """Return each slot's position, -1 if it reads none: same shape, int64."""
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
    is_exact: bool = False,
) -> Partition:
    """Return a reference partition of ``size`` positions.

    Args:
        algorithm: ``orig``; or ``relaxed``, which can resume on a number of nodes that neither divides the canonical
            nodes nor is a multiple of them.
        size: Number of positions.
        num_canonical_nodes: Parts of the order.
        grid: Ranks and batch size.
        drop_first: Samples of the epoch that all ranks together have read.
        initial_physical_nodes: Nodes of the run that began the epoch; None if unknown.
        in_filling: Whether a run may resume among the positions that are repeated to fill up canonical nodes. The
            reference refuses that.
        is_exact: Whether a run resumes exactly where ``drop_first`` is not a multiple of the nodes. The reference
            resumes earlier.

    Raises:
        ConfigurationError: The numbers do not divide, or ``drop_first`` exceeds the epoch.
    """
    num_ranks = grid.num_ranks
    limit = size + num_ranks - size % num_ranks
    filled_up = -(-size // num_canonical_nodes) * num_canonical_nodes
    if in_filling:
        limit = max(limit, -(-filled_up // num_ranks) * num_ranks)
    # Another grid, of any number of ranks, may have filled up its last round; `Epochs` checks the state.
    if drop_first > limit and not is_exact:
        raise ConfigurationError("sample_in_epoch", drop_first, f"at most the epoch's size: {size}")
    nodes = num_canonical_nodes, grid.num_nodes
    is_plain = algorithm == "orig" or initial_physical_nodes is None or max(nodes) % min(nodes) == 0
    first_nodes = grid.num_nodes if is_plain else cast("int", initial_physical_nodes)
    ranks = first_nodes * grid.ranks_per_node
    if is_exact and (drop_first % first_nodes or (not is_plain and grid.global_batch_size % ranks)):
        # No division among nodes fits, so all ranks read side by side as if on one node.
        return ReferencePartition(size, num_canonical_nodes, _on_one_node(grid), drop_first)
    if is_plain:
        return ReferencePartition(size, num_canonical_nodes, grid, drop_first)
    if grid.global_batch_size % ranks:
        raise ConfigurationError(
            "batch_size",
            grid.batch_size,
            f"a global batch size (now {grid.global_batch_size}) that is a multiple of the {ranks} ranks of the run "
            "to resume",
        )
    first = replace(grid, num_nodes=first_nodes, batch_size=grid.global_batch_size // ranks)
    if is_exact:
        return _EvenEnd(size, num_canonical_nodes, first, grid, drop_first)
    return ReferencePartition(size, num_canonical_nodes, first, drop_first)


def _on_one_node(grid: Grid) -> Grid:
    return replace(grid, num_nodes=1, ranks_per_node=grid.num_ranks)


class ReferencePartition:
    """The reference's partition ``orig``: each canonical node's part is a row, and ranks read column by column.

    Args:
        size: Number of positions.
        num_canonical_nodes: Parts of the order.
        grid: Ranks and batch size.
        drop_first: Samples of the epoch that all ranks together have read.

    Raises:
        ConfigurationError: Neither number of nodes divides the other, or there are too few samples.
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
            _logger.warning(
                "sample_in_epoch = %d is not a multiple of the %d nodes: resuming %d samples earlier",
                drop_first,
                nodes,
                drop_first % nodes,
            )
        self._columns = -(-size // rows)
        self._nodes_per_row = max(1, nodes // rows)
        self._padding = -self._columns % self._nodes_per_row
        self._is_cyclic = not (size > rows or (size == rows and rows >= nodes))
        # The column from which padding copies, counted back from the width.
        self._copied_from = self._columns - self._padding - self._nodes_per_row + 1
        if self._padding and not self._is_cyclic and self._copied_from < 0:
            raise ConfigurationError(
                "num_canonical_nodes", rows, f"at least {nodes}, the number of nodes, for an epoch of {size} samples"
            )
        width = self._columns + self._padding
        self._per_node = max(0, (rows * width - self._drop) // nodes)
        self._short = -self._per_node % grid.ranks_per_node
        self.num_rank_samples: int = (self._per_node + self._short) // grid.ranks_per_node
        self.num_samples: int = self.num_rank_samples * grid.num_ranks

    def positions(self, slots: _Integers) -> _Integers:
        """Return each slot's position, -1 if it reads none: same shape, int64."""
        nodes, ranks_of_node, entries, is_read = _entries(slots, self.grid, self.num_rank_samples)
        return np.where(is_read, self._position(nodes, entries * self.grid.ranks_per_node + ranks_of_node), -1)

    def _position(self, nodes: _Integers, entries: _Integers) -> _Integers:
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


class _EvenEnd:
    """The reference's partition for the grid of an earlier run, with an end that gives each present rank a sample.

    Args:
        size: Number of positions.
        num_canonical_nodes: Parts of the order.
        first: The grid whose global batches the ranks read.
        grid: The present ranks and batch size.
        drop_first: Samples of the epoch that all ranks together have read.
    """

    def __init__(self, size: int, num_canonical_nodes: int, first: Grid, grid: Grid, drop_first: int) -> None:
        self.grid = grid
        self._body = ReferencePartition(size, num_canonical_nodes, first, drop_first)
        num_left = -(-size // num_canonical_nodes) * num_canonical_nodes - drop_first
        num_batches = max(0, num_left // grid.global_batch_size)
        self._num_slots = num_batches * grid.global_batch_size
        self._end = ReferencePartition(size, num_canonical_nodes, _on_one_node(grid), drop_first + self._num_slots)
        self.num_rank_samples = num_batches * grid.batch_size + self._end.num_rank_samples
        self.num_samples = self.num_rank_samples * grid.num_ranks

    def positions(self, slots: _Integers) -> _Integers:
        """Return each slot's position, -1 if it reads none: same shape, int64."""
        is_end = slots >= self._num_slots
        ends = self._end.positions(np.where(is_end, slots - self._num_slots, 0))
        return np.where(is_end, ends, self._body.positions(slots))


class EvenPartition:
    """The partition of every shuffle but the reference's: ranks read the canonical nodes' parts column by column, each position once.

    It works for any number of nodes. If the ranks do not divide the rest of an epoch, a rank repeats one of its own
    samples at the end, so that all ranks read equally many.

    Args:
        size: Number of positions.
        num_canonical_nodes: Parts of the order.
        grid: Ranks and batch size.
        drop_first: Samples of the epoch that all ranks together have read; more than the epoch has, where others filled up
            a round.
    """

    def __init__(self, size: int, num_canonical_nodes: int, grid: Grid, drop_first: int = 0) -> None:
        ranks = grid.num_ranks
        self.grid = grid
        self._size = size
        self._drop = min(drop_first, size)
        self._rows = num_canonical_nodes
        self.num_samples: int = size - self._drop
        self.num_rank_samples: int = -(-self.num_samples // ranks)
        bounds = canonical_bounds(size, num_canonical_nodes)
        self._starts = bounds[:-1]
        # All rows have the same number of columns, except that some have one more.
        self._columns = size // num_canonical_nodes
        self._longer_rows = np.flatnonzero(np.diff(bounds) > self._columns)

    def positions(self, slots: _Integers) -> _Integers:
        """Return each slot's position, -1 if it reads none: same shape, int64."""
        ranks = self.grid.num_ranks
        nodes, ranks_of_node, entries, is_read = _entries(slots, self.grid, self.num_rank_samples)
        found = self._drop + entries * ranks + nodes + self.grid.num_nodes * ranks_of_node
        found = np.where(found >= self._size, (found - ranks) % max(self._size, 1), found)
        found = np.where(is_read, found, 0)
        columns, rows = np.divmod(found, self._rows)
        if len(self._longer_rows):
            rows = np.where(columns == self._columns, self._longer_rows[rows % len(self._longer_rows)], rows)
        return np.where(is_read, self._starts[rows] + columns, -1)


def _entries(
    slots: _Integers, grid: Grid, num_rank_samples: int
) -> tuple[_Integers, _Integers, _Integers, npt.NDArray[np.bool_]]:
    """Return each slot's node, rank on it, number among that rank's samples, and whether the slot reads one."""
    batches, within = np.divmod(slots, grid.global_batch_size)
    ranks, samples = np.divmod(within, grid.batch_size)
    nodes, ranks_of_node = np.divmod(ranks, grid.ranks_per_node)
    entries = batches * grid.batch_size + samples
    is_read = entries < num_rank_samples
    return nodes, ranks_of_node, np.where(is_read, entries, 0), is_read
