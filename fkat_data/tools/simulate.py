"""Simulate a run from a dataset's order and index."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.streaming.epoch import Epochs, ResumePoint, SampleSkips, batches_in_chunk
from fkat_data.streaming.loader_plan import batches_together
from fkat_data.streaming.order import Plan, Spanner
from fkat_data.streaming.reading import PART_TOGETHER
from fkat_data.tools.play import Part, Setup, ShardCosts, Simulation, play

_Integers = npt.NDArray[np.int64]

#: Samples to plan at once.
_CHUNK = 1 << 19


def simulate_dataset(dataset: StreamingDataset, *, workers_per_rank: int = 0, **numbers: Any) -> Simulation:
    """Return what training on a dataset would wait for, fetch and cache. It reads only the dataset's index.

    Args:
        dataset: The dataset, with the ``world`` of the run.
        workers_per_rank: The number of workers of each rank's ``StreamingDataLoader``.
        **numbers: Arguments of ``Setup``. The dataset provides the defaults of ``predownload`` and
            ``cache_limit_bytes``, and the batch arguments. Default of ``num_epochs`` without ``num_steps``: 1.

    Raises:
        ConfigurationError: A number is invalid, the dataset has no ``batch_size``, or its ``world`` has a different
            number of ranks; an epoch is empty; or a shard does not fit into the cache.
    """
    if numbers.get("num_steps") is None and numbers.get("num_epochs") is None:
        numbers["num_epochs"] = 1
    setup, epochs, catalog = _setup_of(dataset, workers_per_rank, numbers), dataset.epochs, dataset.catalog
    num_ranks = epochs.grid().num_ranks
    world_size = num_ranks * (epochs.replication or 1)
    if setup.num_nodes * setup.ranks_per_node != world_size:
        expected = f"nodes with {world_size} ranks in total, the world size of the dataset"
        raise ConfigurationError("num_nodes", setup.num_nodes, expected)
    streams: list[int] = catalog.stream_per_shard.tolist()
    keeps_zip = [bool(dataset.streams[stream].keep_zip) for stream in streams]
    costs = [
        ShardCosts(entry.stored_bytes, entry.raw_bytes, entry.compression is not None, keep, len(entry.files))
        for entry, keep in zip(catalog.entries, keeps_zip, strict=True)
    ]
    largest = max(cost.making_bytes for cost in costs)
    if setup.cache_limit_bytes is not None and setup.cache_limit_bytes < largest:
        expected = f"at least {largest} bytes, the size of the largest shard"
        raise ConfigurationError("cache_limit", setup.cache_limit_bytes, expected)
    needs = Needs(epochs, catalog.spanner, dataset.skips, setup.batches_together, setup.batches_per_chunk)
    found = play(needs.by_epoch(setup.num_steps, setup.num_epochs), costs, setup, num_ranks)
    if not found.num_steps:
        raise ConfigurationError("batch_size", epochs.batch_size, "an epoch with at least one global batch")
    return found


def _setup_of(dataset: StreamingDataset, workers_per_rank: int, numbers: dict[str, Any]) -> Setup:
    batch_size = dataset.batch_size
    if batch_size is None:
        raise ConfigurationError("batch_size", None, "a number of samples: the order depends on it")
    known: dict[str, Any] = {
        "predownload": dataset.num_ahead,
        "cache_limit_bytes": dataset.cache_limit,
        "batches_per_chunk": batches_in_chunk(batch_size),
    }
    setup = Setup(workers_per_rank=workers_per_rank, **known | numbers)
    if "batches_together" in numbers or workers_per_rank:
        return setup
    together = batches_together(dataset, batch_size)
    if setup.cache_limit_bytes is not None:
        # As ``OpenShards`` does: what is read together needs at most the last part of a rank's share in new shards.
        bytes_per_sample = sum(entry.raw_bytes for entry in dataset.catalog.entries) / dataset.num_samples
        new_bytes = setup.cache_limit_bytes // (PART_TOGETHER * setup.ranks_per_node)
        together = max(1, min(together, int(new_bytes / bytes_per_sample) // batch_size))
    return replace(setup, batches_together=together)


class Needs:
    """The shards that the ranks of a run need, epoch by epoch. Replicated ranks count as one.

    Args:
        epochs: The configuration of the order.
        spanner: Where the shards begin.
        skips: The samples and batches that are not delivered.
        batches_together: The number of batches that a rank reads at once, at most: an epoch begins with one, then two,
            then four, ...
        batches_per_chunk: Batches of different chunks are never read at once.
    """

    def __init__(
        self,
        epochs: Epochs,
        spanner: Spanner,
        skips: SampleSkips,
        batches_together: int,
        batches_per_chunk: int,
    ) -> None:
        self._epochs = epochs
        self._spanner = spanner
        self._skips = skips
        self._most = batches_together
        self._chunk = batches_per_chunk

    def by_epoch(self, num_steps: int | None, num_epochs: int | None) -> Iterator[list[Part]]:
        """Yield the parts of each epoch from a position on, for a number of steps or epochs.

        Raises:
            ConfigurationError: An epoch cannot be planned.
        """
        num_left, number = num_steps, 0
        while num_left != 0 and number != num_epochs:
            point = self._epochs.with_defaults(ResumePoint(number))
            parts = list(self._parts(self._epochs.plan(point), point.epoch, num_left))
            if not parts:
                return
            yield parts
            number += 1
            num_left = None if num_left is None else num_left - sum(part.num_steps for part in parts)

    def _parts(self, plan: Plan, epoch: int, num_wanted: int | None) -> Iterator[Part]:
        together, num_batches = 1, plan.batching.num_even_batches
        for start in range(0, num_batches, self._chunk):
            batches = np.arange(start, min(start + self._chunk, num_batches))
            batches = self._delivered(plan, epoch, batches)[:num_wanted]
            num_wanted = None if num_wanted is None else num_wanted - len(batches)
            lengths: list[int] = []
            while sum(lengths) < len(batches):
                lengths.append(min(together, len(batches) - sum(lengths)))
                together = min(2 * together, self._most)
            # Planning many samples together is faster, and planning all of them takes too much memory.
            size = max(1, _CHUNK // (plan.grid.global_batch_size * self._most))
            for first in range(0, len(lengths), size):
                some = lengths[first : first + size]
                yield from self._read(plan, batches[: sum(some)], some)
                batches = batches[sum(some) :]
            if num_wanted == 0:
                return

    def _delivered(self, plan: Plan, epoch: int, batches: _Integers) -> _Integers:
        batches = batches[~self._skips.is_skipped(epoch, batches)]
        if not self._skips.has_samples:
            return batches
        ids = self._skips.without(plan.global_batches(batches))
        # Where skips leave a rank no sample of a batch, no rank gets it.
        return batches[(ids >= 0).sum(axis=2).min(axis=1, initial=1) > 0]

    def _read(self, plan: Plan, batches: _Integers, lengths: list[int]) -> Iterator[Part]:
        num_ranks, num_shards = plan.grid.num_ranks, len(self._spanner.starts)
        ids = self._skips.without(plan.global_batches(batches))
        is_read = ids >= 0
        readers = np.repeat(np.arange(len(lengths)), lengths)[:, None] * num_ranks + np.arange(num_ranks)
        readers = np.broadcast_to(readers[:, :, None], ids.shape)[is_read]
        visits = np.unique(readers * num_shards + self._spanner.shards(ids[is_read]))
        edges = np.searchsorted(visits, np.arange(len(lengths) * num_ranks + 1) * num_shards)
        most_samples = np.add.reduceat(is_read.sum(axis=2).max(axis=1), np.cumsum([0, *lengths[:-1]]))
        for part, num_samples in enumerate(most_samples.tolist()):
            own = edges[part * num_ranks : (part + 1) * num_ranks + 1]
            yield Part(lengths[part], num_samples, visits[own[0] : own[-1]] % num_shards, own - own[0])
