"""What a worker makes of an epoch: a torch DataLoader of its own over the dataset, which is iterated directly."""

import copy
import hashlib
from collections.abc import Callable
from typing import Any, cast

from torch.utils import data as torch_data
from torch.utils.data import DataLoader as TorchDataLoader

from fkat_data.drop_in.own_generators import OwnGenerators
from fkat_data.drop_in.strand_product import DatasetMemory, Strand, StrandProduct
from fkat_data.types import BatchStream
from fkat_data.worker.index_batches import NumberedBatches
from fkat_data.worker.settings import current_worker

_WORKER: Any = getattr(getattr(torch_data, "_utils", None), "worker", None)


class EpochFactory:
    """Makes the microbatches of an epoch, or of a part of one; lives in the worker.

    Args:
        dataset: The user's.
        collate_fn: The user's, or torch's.
        worker_init_fn: Called once with a worker's number, where the dataset is; None: nothing is called.
        num_workers: Workers, as ``get_worker_info`` tells the dataset; 0: the dataset is in no worker.
        batch_size: Samples of a microbatch, for an iterable dataset; None: its items are microbatches.
        drop_last: Whether an iterable dataset's smaller last microbatch is left out.
        is_batched: Whether indices come in batches.
        keeps_dataset: Whether an iterable dataset stays from epoch to epoch; False: each begins with a copy of what the
            caller has.
        snapshot_every_n_steps: Microbatches between two states of an iterable dataset that has one.
        seed: The loader's.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        worker_init_fn: Callable[[int], None] | None,
        *,
        num_workers: int,
        batch_size: int | None,
        drop_last: bool,
        is_batched: bool,
        keeps_dataset: bool,
        snapshot_every_n_steps: int,
        seed: int,
    ) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.worker_init_fn = worker_init_fn
        self._num_workers = num_workers
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._is_batched = is_batched
        self._keeps_dataset = keeps_dataset
        self._snapshot_every_n_steps = snapshot_every_n_steps
        self._seed = seed
        self._is_stream = isinstance(dataset, BatchStream)
        self._is_entered = False
        self._memory = DatasetMemory()

    def __call__(self, shard: Any) -> Any:
        """Return the microbatches of an epoch: those of a ``NumberedBatches``, or of a ``Strand``.

        Raises:
            Exception: What ``worker_init_fn`` raises.
        """
        if isinstance(shard, Strand):
            return (
                self._dataset_for(shard).loader_product(shard, self.collate_fn)
                if self._is_stream
                else self._strand(shard)
            )
        batches = cast("NumberedBatches", shard)
        self._enter(current_worker(), self._num_workers)
        if self._is_stream:
            return self.dataset.loader_product(batches, self.collate_fn)
        if self._is_batched:
            return TorchDataLoader(
                self.dataset, batch_sampler=cast("Any", batches), collate_fn=cast("Any", self.collate_fn)
            )
        return TorchDataLoader(self.dataset, batch_size=None, sampler=batches, collate_fn=cast("Any", self.collate_fn))

    def _strand(self, strand: Strand) -> StrandProduct:
        def make() -> tuple[Any, DatasetMemory | None]:
            return self._dataset_for(strand), self._memory if self._keeps_dataset else None

        return StrandProduct(
            strand,
            make,
            self.collate_fn,
            self._batch_size,
            drop_last=self._drop_last,
            snapshot_every_n_steps=self._snapshot_every_n_steps,
        )

    def _dataset_for(self, strand: Strand) -> Any:
        """Return the dataset that a strand's epoch is made of: a copy for it alone, unless the dataset stays."""
        pristine = self.dataset
        if not self._keeps_dataset:
            self.dataset, self._is_entered = copy.deepcopy(pristine), False
        try:
            self._enter(strand.number, strand.num_strands)
            return self.dataset
        finally:
            self.dataset = pristine

    def _enter(self, index: int | None, num_workers: int) -> None:
        """Let ``get_worker_info`` know of this worker, and call the user's ``worker_init_fn``, once for each dataset."""
        if self._is_entered or index is None or not num_workers or current_worker() is None:
            return
        self._is_entered = True
        name = f"{self._seed}/{index}".encode()
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=8, person=b"fkat_data worker").digest(), "little")
        info = _WORKER.WorkerInfo(id=index, num_workers=num_workers, seed=seed, dataset=self.dataset)
        _WORKER._worker_info = info  # noqa: SLF001 - where torch.utils.data.get_worker_info looks
        if self.worker_init_fn is not None:
            OwnGenerators(seed).call(self.worker_init_fn, index)
