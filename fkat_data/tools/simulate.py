"""The shards and bytes that the nodes of a run will fetch: computed from a dataset's order and index, without its data."""

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.streaming.audit import global_batches
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.streaming.epoch import ResumePoint
from fkat_data.streaming.reader import reader_of

_Integers = npt.NDArray[np.int64]


@dataclass
class NodeFetches:
    """The shards and bytes that a node fetches in an epoch.

    Attributes:
        num_shards: Different shards that its ranks read.
        shard_bytes: What these take on its disk, ready to read.
        num_fetches: Fetches: each of a shard that its cache did not have.
        num_fetched_again: Of these, fetches of a shard that it had fetched before in the same epoch.
        fetched_bytes: Bytes of all fetches.
    """

    num_shards: int = 0
    shard_bytes: int = 0
    num_fetches: int = 0
    num_fetched_again: int = 0
    fetched_bytes: int = 0


@dataclass(frozen=True)
class Simulation:
    """The shards and bytes that the nodes of a run fetch, epoch by epoch.

    Attributes:
        cache_limit_bytes: The limit of a node's cache; None: unlimited.
        num_steps: The steps of each epoch.
        epochs: Of each epoch, what each node fetches.
    """

    cache_limit_bytes: int | None
    num_steps: tuple[int, ...]
    epochs: tuple[tuple[NodeFetches, ...], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        epochs = zip(self.num_steps, self.epochs, strict=True)
        return {
            "cache_limit_bytes": self.cache_limit_bytes,
            "epochs": [{"num_steps": steps, "nodes": [asdict(node) for node in nodes]} for steps, nodes in epochs],
        }


def simulate_dataset(
    dataset: StreamingDataset,
    *,
    num_nodes: int = 1,
    ranks_per_node: int = 1,
    num_epochs: int = 1,
    cache_limit_bytes: float | None = None,
) -> Simulation:
    """Return what the nodes of a training run fetch. It reads only the dataset's index.

    Each node begins with an empty cache, reads the shards of one step after the other, and evicts the least recently
    used first.

    Args:
        dataset: The dataset, with the ``world`` of the run.
        num_nodes: The number of nodes.
        ranks_per_node: The number of ranks on each node.
        num_epochs: The number of epochs.
        cache_limit_bytes: The limit of a node's cache, ``math.inf`` for none; None: the dataset's ``cache_limit``.

    Raises:
        ConfigurationError: A number is invalid, the dataset has no ``batch_size``, or its ``world`` has a different
            number of ranks; an epoch is empty; or a shard does not fit into the cache.
    """
    arguments.integer("num_epochs", num_epochs, minimum=1)
    arguments.integer("num_nodes", num_nodes, minimum=1)
    arguments.integer("ranks_per_node", ranks_per_node, minimum=1)
    epochs = reader_of(dataset).epochs
    world_size = epochs.grid().num_ranks * (epochs.replication or 1)
    if num_nodes * ranks_per_node != world_size:
        expected = f"nodes with {world_size} ranks in total, the world size of the dataset"
        raise ConfigurationError("num_nodes", num_nodes, expected)
    limit_bytes = dataset.cache_limit if cache_limit_bytes is None else cache_limit_bytes
    limit_bytes = None if limit_bytes is None or limit_bytes == math.inf else int(limit_bytes)
    sizes = _sizes_of(dataset)
    largest = max(size.fetching_bytes for size in sizes)
    if limit_bytes is not None and limit_bytes < largest:
        expected = f"at least {largest} bytes, the size of the largest shard"
        raise ConfigurationError("cache_limit", limit_bytes, expected)
    nodes = [_Node(sizes, limit_bytes) for _ in range(num_nodes)]
    found = [_epoch_of(dataset, number, nodes, ranks_per_node) for number in range(num_epochs)]
    return Simulation(limit_bytes, tuple(steps for steps, _ in found), tuple(totals for _, totals in found))


def _epoch_of(
    dataset: StreamingDataset, number: int, nodes: "Sequence[_Node]", ranks_per_node: int
) -> tuple[int, tuple[NodeFetches, ...]]:
    """Return an epoch's steps, and what each node fetches in it."""
    # Replicated ranks have consecutive numbers, and count as one in the order.
    replication, num_steps = dataset.replication or 1, 0
    spanner, num_shards = dataset.spanner, dataset.num_shards
    for ids in _delivered(dataset, number):
        num_steps += len(ids)
        for index, node in enumerate(nodes):
            first = index * ranks_per_node // replication
            own = ids[:, first : (index * ranks_per_node + ranks_per_node - 1) // replication + 1]
            is_read = own >= 0
            steps = np.broadcast_to(np.arange(len(own))[:, None, None], own.shape)[is_read]
            visits = np.unique(steps * num_shards + spanner.shards(own[is_read])) % num_shards
            node.read(visits.tolist())
    if not num_steps:
        raise ConfigurationError("batch_size", dataset.batch_size, "an epoch with at least one global batch")
    return num_steps, tuple(node.end_epoch() for node in nodes)


def _delivered(dataset: StreamingDataset, number: int) -> Iterator[_Integers]:
    """Yield the sample ids of an epoch's steps, many steps at a time: by step, rank and position in the batch, and -1 for none."""
    reader, point = reader_of(dataset), ResumePoint(number)
    epochs, skips = reader.epochs, reader.skips
    plan = epochs.plan(point)
    for batches, planned in global_batches(plan, epochs.batching(point).num_even_batches):
        ids = skips.without(plan, point, batches, planned)
        # Where skips leave a rank no sample of a batch, no rank gets it.
        is_whole = (ids >= 0).sum(axis=2).min(axis=1, initial=1) > 0
        yield ids[is_whole & ~skips.is_skipped(number, batches)]


class _ShardSize(NamedTuple):
    """The bytes that a shard takes.

    Attributes:
        fetched_bytes: Bytes to fetch.
        fetching_bytes: Bytes on disk during the fetch and the decompression.
        kept_bytes: Bytes on disk afterwards.
    """

    fetched_bytes: int
    fetching_bytes: int
    kept_bytes: int


def _sizes_of(dataset: StreamingDataset) -> list[_ShardSize]:
    streams: list[int] = dataset.stream_per_shard.tolist()
    sizes: list[_ShardSize] = []
    for entry, stream in zip(dataset.shards, streams, strict=True):
        both = entry.raw_bytes if entry.compression is None else entry.raw_bytes + entry.stored_bytes
        kept = both if dataset.streams[stream].keep_zip else entry.raw_bytes
        sizes.append(_ShardSize(entry.stored_bytes, both, kept))
    return sizes


class _Node:
    """A node with a cache, which evicts the least recently used shards first.

    Args:
        sizes: What each shard takes.
        limit_bytes: The limit of the cache; None: unlimited.
    """

    def __init__(self, sizes: Sequence[_ShardSize], limit_bytes: int | None) -> None:
        self._sizes = sizes
        self._limit_bytes = math.inf if limit_bytes is None else limit_bytes
        self._cache: OrderedDict[int, int] = OrderedDict()
        self._cached_bytes = 0
        self._read: set[int] = set()
        self._fetched: set[int] = set()
        self._totals = NodeFetches()

    def read(self, shards: Sequence[int]) -> None:
        """Read shards, one after the other."""
        self._read.update(shards)
        for shard in shards:
            if shard in self._cache:
                self._cache.move_to_end(shard)
            else:
                self._fetch(shard)

    def end_epoch(self) -> NodeFetches:
        """Return what was fetched in the epoch that ends; the cache stays."""
        totals, self._totals = self._totals, NodeFetches()
        totals.num_shards = len(self._read)
        totals.shard_bytes = sum(self._sizes[shard].kept_bytes for shard in self._read)
        self._read.clear()
        self._fetched.clear()
        return totals

    def _fetch(self, shard: int) -> None:
        size, totals = self._sizes[shard], self._totals
        while self._cache and self._cached_bytes + size.fetching_bytes > self._limit_bytes:
            self._cached_bytes -= self._cache.popitem(last=False)[1]
        self._cache[shard] = size.kept_bytes
        self._cached_bytes += size.kept_bytes
        totals.num_fetches += 1
        totals.fetched_bytes += size.fetched_bytes
        totals.num_fetched_again += shard in self._fetched
        self._fetched.add(shard)
