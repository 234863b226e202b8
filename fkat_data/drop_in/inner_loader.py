"""The ``ShardedDataLoader`` that makes a DataLoader's microbatches, or a strand of them."""

import os
from typing import Any, cast

from fkat_data.drop_in.drawn_plan import DrawnPlan
from fkat_data.drop_in.numbered_plan import NumberedPlan
from fkat_data.drop_in.own_terms import DataLoaderStatistics
from fkat_data.drop_in.worker_side import EpochFactory
from fkat_data.errors import ConfigurationError
from fkat_data.iteration import EpochIterator
from fkat_data.loader.sharded import ShardedDataLoader
from fkat_data.plan.shard_plan import ShardPlan
from fkat_data.torch_iterator import TorchIterator
from fkat_data.transport.memory_limit import default_limit_bytes
from fkat_data.worker.settings import StartMethod

__all__ = ["DataLoaderIterator", "inner_loader", "settable_of"]

_SETTABLE = ("collate_fn", "worker_init_fn", "num_workers", "prefetch_factor", "timeout")


def settable_of(loader: Any) -> list[Any]:
    """Return what a program may set on a DataLoader between two epochs, as with torch's."""
    return [getattr(loader, name) for name in _SETTABLE]


class DataLoaderIterator(EpochIterator, TorchIterator):
    """One epoch of a DataLoader over a map-style dataset."""

    __reduce__ = TorchIterator.__reduce__


class _InnerLoader(ShardedDataLoader):
    _statistics_type = DataLoaderStatistics
    _iterator_type = DataLoaderIterator

    def __len__(self) -> int:
        """Return the microbatches of an epoch: what ``len`` of an iterator asks for."""
        return cast("NumberedPlan | DrawnPlan", self._plan).num_batches(self.epoch)


def inner_loader(
    loader: Any,
    plan: ShardPlan,
    num_told: int,
    num_workers: int,
    *,
    seed: int,
    dp_rank: int,
    keeps_dataset: bool,
    trace: str | os.PathLike[str] | None,
    num_inner: int = 1,
    num_shard_prefetches: int = 0,
) -> ShardedDataLoader:
    """Return the loader of a plan's shards.

    Args:
        loader: The DataLoader, whose arguments decide on the rest.
        plan: The order.
        num_told: Workers, as ``get_worker_info`` tells the dataset.
        num_workers: Workers of this loader; 0: it works in this process.
        seed: The DataLoader's.
        dp_rank: The DataLoader's.
        keeps_dataset: Whether an iterable dataset stays from epoch to epoch.
        trace: A file for the timeline; None: there is none.
        num_inner: Loaders that share the memory limit.
        num_shard_prefetches: Parts of an epoch that are made ahead.

    Raises:
        ConfigurationError: An argument is invalid, under the DataLoader's name for it.
    """
    factory = EpochFactory(
        loader.dataset,
        loader.collate_fn,
        loader.worker_init_fn,
        num_workers=num_told,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        is_batched=loader.batch_sampler is not None,
        keeps_dataset=keeps_dataset,
        snapshot_every_n_steps=loader.snapshot_every_n_steps,
        seed=seed,
    )
    limit_bytes = loader.memory_limit_bytes
    if num_inner > 1:
        limit_bytes = max(1 << 20, (limit_bytes or default_limit_bytes()) // num_inner)
    try:
        return _InnerLoader(
            seed,
            plan,  # pyright: ignore[reportArgumentType] - a plan is what the loader makes of a sampler
            factory,
            num_shard_prefetches,
            -1 if loader.prefetch_factor is None else loader.prefetch_factor * max(1, num_workers),
            dp_rank,
            loader.profiler,
            loader.device,
            num_workers > 0,
            num_workers_per_shard=max(1, num_workers),
            memory_limit_bytes=limit_bytes,
            zero_copy=loader.zero_copy,
            max_worker_restarts=loader.max_worker_restarts,
            stall_warning_s=loader.stall_warning_s,
            stall_timeout_s=loader.timeout or None,
            start_method=_start_method(loader),
            trace=trace,
            replay=loader.replay,
            num_threads_per_worker=loader.num_threads_per_worker,
        )
    except ConfigurationError as error:
        name = error.argument.removeprefix("dataloader_factory.")
        expected = error.expected.replace("multiprocessing=False", "num_workers=0")
        raise ConfigurationError(name, error.value, expected) from error.__cause__


def _start_method(loader: Any) -> StartMethod | None:
    context = loader.multiprocessing_context
    if loader.start_method is None and context is not None and context.get_start_method() == "spawn":
        return "spawn"
    return loader.start_method
