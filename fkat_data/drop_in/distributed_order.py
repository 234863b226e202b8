"""The rest of an epoch of torch's ``DistributedSampler`` for another number of ranks.

That sampler deals single samples out in turn, and has all that decides on the order of every rank.
"""

from collections.abc import Sequence
from itertools import chain, cycle, islice
from typing import Any, cast

from torch.utils.data import BatchSampler, DistributedSampler

from fkat_data.drop_in.layers_of_ranks import Layer, first_step, of_epoch
from fkat_data.drop_in.left_over import LeftOver, in_the_first


def distributed_sampler_of(order: object) -> "DistributedSampler[Any] | None":
    """Return the ``DistributedSampler`` that a sampler is, or that a batch sampler of torch's takes its indices from."""
    sampler: object = order.sampler if type(order) is BatchSampler else order
    return cast("DistributedSampler[Any]", sampler) if type(sampler) is DistributedSampler else None


def terms_of(sampler: "DistributedSampler[Any]") -> dict[str, Any]:
    """Return what a sampler's order depends on, and which rank's it is, as plain values."""
    return {
        "num_samples": len(cast("Any", sampler.dataset)),
        "shuffle": bool(sampler.shuffle),
        "seed": int(sampler.seed),
        "epoch": int(sampler.epoch),
        "drop_last": bool(sampler.drop_last),
        "num_replicas": int(sampler.num_replicas),
        "rank": int(sampler.rank),
    }


class DistributedRest:
    """What a rank gets of an epoch that other ranks have begun.

    Args:
        sampler: This rank's.
        layers: How far ranks had come when their number changed.
        epoch: The loader's epoch.
        batch_size: Samples of a batch; None: single indices, not batches.
        drop_last: Whether the rank's last batch is left out if it is smaller.
    """

    def __init__(
        self,
        sampler: "DistributedSampler[Any]",
        layers: Sequence[Layer],
        epoch: int,
        batch_size: int | None,
        *,
        drop_last: bool,
    ) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._first_step = first_step(layers, epoch)
        self._rests: list[LeftOver] = []
        length = len(cast("Any", sampler.dataset))
        for layer in of_epoch(layers, epoch):
            counts = layer.counts_in(epoch)
            whole = self._num_own(length, len(counts))
            whole -= whole % self._size if drop_last else 0
            had = [whole if count is None else count * self._size for count in counts]
            self._rests.append(LeftOver(length, 1, had))
            length = len(self._rests[-1])
        self._num_left = length

    @property
    def _size(self) -> int:
        return self._batch_size or 1

    def _num_own(self, length: int, num_ranks: int) -> int:
        return length // num_ranks if self._sampler.drop_last else -(-length // num_ranks)

    def __len__(self) -> int:
        """Return the rank's batches of the epoch, with those before."""
        whole, rest = divmod(self._num_own(self._num_left, self._sampler.num_replicas), self._size)
        return self._first_step + whole + (rest > 0 and not self._drop_last)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left; then nothing is for the other ranks either."""
        return len(self) == self._first_step

    def batches(self) -> list[Any]:
        """Return what the rank gets, in order."""
        sampler = self._sampler
        # One replica has every sample once.
        whole: DistributedSampler[Any] = DistributedSampler(
            cast("Any", sampler.dataset), 1, 0, shuffle=sampler.shuffle, seed=sampler.seed
        )
        whole.set_epoch(sampler.epoch)
        indices: list[int] = list(whole)
        left = [*chain.from_iterable(indices[slice(*run)] for run in in_the_first(self._rests, 0, self._num_left))]
        num_ranks = sampler.num_replicas
        total = self._num_own(self._num_left, num_ranks) * num_ranks
        own = list(islice(chain(left, cycle(indices)), sampler.rank, total, num_ranks))
        if self._batch_size is None:
            return own
        firsts = range(0, len(own), self._batch_size)
        batches = [own[first : first + self._batch_size] for first in firsts]
        return batches[: len(self) - self._first_step]
