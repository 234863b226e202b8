"""The orders that are arithmetic: the samples one after the other, and a shuffle that no list of numbers is made for."""

from collections.abc import Iterator, Sequence, Sized
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import RandomSampler

from fkat_data.drop_in.left_over import LeftOver, in_the_first
from fkat_data.drop_in.rank_share import RankShare
from fkat_data.permutation import keys_of, permutation, permuted
from fkat_data.worker.index_batches import NumberedBatches

_PURPOSE = b"fkat DataLoader"
# Up to here the order is drawn at once, in milliseconds, and every order is as likely as any other.
_DRAWN_AT_ONCE = 1 << 16
# A block of numbers costs little more than one of them.
_BLOCK_SIZE = 1 << 13


class SampleOrder(NumberedBatches):
    """One epoch's batches of samples, each computed when it is asked for.

    Args:
        num_samples: Samples of the dataset.
        batch_size: Samples of a batch; None: single indices, not batches.
        drop_last: Whether a last batch that is smaller is left out.
        shuffle: Seed and epoch that decide on the order; None: it is that of the dataset.
        share: What one of several ranks gets of the batches; None: there is one rank.
        rests: What other ranks before have left of the epoch, each of what was left before; this one is of the last.
        first: The number of the first batch.
        items: Indices to batch instead, in order; None: those of the samples.
    """

    in_words = "the dataset"

    def __init__(
        self,
        num_samples: int,
        batch_size: int | None,
        *,
        drop_last: bool,
        shuffle: tuple[int, int] | None,
        share: RankShare | None = None,
        rests: Sequence[LeftOver] = (),
        first: int = 0,
        items: Sequence[Any] | None = None,
    ) -> None:
        self._items = items
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._shuffle = shuffle
        self._share = share
        self._rests = tuple(rests)
        self.first = first
        """The number of the first batch: those before it were other ranks'."""
        self._num_left = len(rests[-1]) if rests else num_samples
        size = 1 if batch_size is None else batch_size
        # Of a batch, and of the batches of all ranks together.
        self._size = size if share is None else share.own_size(size)
        self._round_size = size if share is None else share.round_size(size)
        self._offset = 0 if share is None else share.rank * self._size
        self._block_index = -1
        self._block: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.first + self._num_own(self._offset)

    @property
    def is_over(self) -> bool:
        """Whether no rank has a batch."""
        return self._num_own(0) == 0

    def _num_own(self, offset: int) -> int:
        whole, rest = divmod(self._num_left, self._round_size)
        return whole + (rest > (0 if self._is_even else offset) and not self._drop_last)

    def __repr__(self) -> str:
        return f"<{self._num_samples} samples>"

    def __reduce__(self) -> tuple[Any, ...]:
        terms = self._num_samples, self._batch_size, self._drop_last, self._shuffle, self._share
        return _order, (*terms, self._rests, self.first, self._items)

    @property
    def _is_even(self) -> bool:
        return self._share is not None and self._share.even_batches

    @property
    def num_in_last_round(self) -> int:
        """Samples of the last round over all ranks, if it is smaller than the others; else 0."""
        return 0 if self._drop_last else self._num_left % self._round_size

    def batch(self, index: int) -> Any:
        """Return the indices of the batch at ``index``, or the single index there.

        Raises:
            IndexError: The epoch has no such batch.
        """
        if not self.first <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        begin = (index - self.first) * self._round_size + self._offset
        end = begin + self._size
        left = min(begin, self._num_left), min(end, self._num_left)
        found: list[Any] = []
        for run in in_the_first(self._rests, *left):
            found += self._indices(*run)
        if self._is_even:
            found += self._filling(max(begin, self._num_left) - self._num_left, end - self._num_left)
        return found if self._batch_size is not None else found[0]

    def _filling(self, begin: int, end: int) -> list[int]:
        """Return what comes past the last sample: the epoch's first ones, again and again."""
        found: list[int] = []
        while begin < end:
            place = begin % self._num_samples
            stop = min(place + end - begin, self._num_samples)
            found += self._indices(place, stop)
            begin += stop - place
        return found

    def _indices(self, first: int, end: int) -> list[Any]:
        if self._items is not None:
            return list(self._items[first:end])
        if self._shuffle is None:
            return list(range(first, end))
        found: list[int] = []
        while first < end:
            block_index, offset = divmod(first, _BLOCK_SIZE)
            stop = min(end - first + offset, _BLOCK_SIZE)
            found += self._shuffled_block(block_index, self._shuffle)[offset:stop].tolist()
            first += stop - offset
        return found

    def _shuffled_block(self, block_index: int, shuffle: tuple[int, int]) -> npt.NDArray[np.int64]:
        if self._num_samples <= _DRAWN_AT_ONCE:
            if self._block is None:
                self._block = permutation(self._num_samples, _PURPOSE, *shuffle)
            return self._block[block_index * _BLOCK_SIZE :]
        if self._block is None or block_index != self._block_index:
            first = block_index * _BLOCK_SIZE
            places = np.arange(first, min(first + _BLOCK_SIZE, self._num_samples))
            key = keys_of(np.zeros(1, dtype=np.int64), _PURPOSE, *shuffle)
            sizes = np.full(len(places), self._num_samples)
            self._block = permuted(places, sizes, np.repeat(key, len(places)))
            self._block_index = block_index
        return self._block


def _order(
    num_samples: int,
    batch_size: int | None,
    drop_last: bool,
    shuffle: tuple[int, int] | None,
    share: RankShare | None,
    rests: tuple[LeftOver, ...],
    first: int,
    items: Sequence[Any] | None = None,
) -> SampleOrder:
    return SampleOrder(
        *(num_samples, batch_size),
        drop_last=drop_last,
        shuffle=shuffle,
        share=share,
        rests=rests,
        first=first,
        items=items,
    )


class EpochShuffle(RandomSampler):
    """A dataset's samples in an order that is a function of a seed and an epoch.

    The loader computes its batches without it. A loader that a framework makes of this one's parts iterates it, and gets
    the order of another epoch each time. Where no seed is known, a new one is drawn, as torch's ``RandomSampler`` does.

    Args:
        data_source: The dataset.
        generator: What seeds are drawn from; None: torch's global one.
        seed: The loader's; None: it is not known yet.

    Raises:
        ValueError: The dataset is empty.
    """

    def __init__(self, data_source: Sized, generator: Any = None, seed: int | None = None) -> None:
        super().__init__(data_source, generator=generator)
        self.seed = seed
        """The loader's seed, once it is known."""
        self.epoch = 0
        """The epoch of the next iteration, and of the newest one of the loader."""

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration be of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        seed, epoch = self.seed, self.epoch
        if seed is None:
            generator = cast("torch.Generator | None", self.generator)
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        self.epoch = epoch + 1
        return iter(SampleOrder(len(self), None, drop_last=False, shuffle=(seed, epoch)))
