"""Length bucketing: items of like size side by side, in an order that needs no buffer to be saved."""

import math
import operator
from array import array
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from torch.utils.data import Dataset

from fkat_data.arguments import integer
from fkat_data.datasets.dataset_state import checked_state, load_state_below, saved_integer, state_below
from fkat_data.datasets.item_index import counted_from_start, is_map_style, items_at
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.permutation import drawn_seed, draws, permutation

__all__ = ["BufferSortedDataset", "DatasetImplementingSortKeyProtocol"]

_Item_co = TypeVar("_Item_co", covariant=True)
_STATE_VERSION = 1
# What orders may take: 128 MiB for buffers of up to 65,536 items, twice as much for larger ones.
_MOST_ITEMS_KEPT = 1 << 26


class DatasetImplementingSortKeyProtocol(Protocol[_Item_co]):
    """A map-style dataset that knows an item's sort key, its length for one, without loading the item."""

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    def sort_key(self, index: int) -> Any:
        """Return a value that compares with those of the other items."""
        ...

    def __getitem__(self, item: int, /) -> _Item_co: ...


class BufferSortedDataset(Dataset[_Item_co]):
    """A dataset's items, with those of like sort key side by side, so that a microbatch of them needs little padding.

    Buffers of ``buffer_size`` consecutive items are sorted by sort key, equal keys in random order, and cut into
    packs of ``pack_size``. The order of the packs in the buffer is shuffled, and so are the items in each pack. What
    is left over when a buffer is cut is a pack as well, and stands at the buffer's end: so packs begin at multiples
    of ``pack_size`` wherever ``buffer_size`` is one, and microbatches of ``pack_size`` are packs.

    Which item stands at an index is a function of (seed, epoch, index) and the sort keys: any order of visits, any
    worker and any process sees the same. No random generator is read or moved; but where no seed is given, one is
    drawn from torch's global CPU generator (in a ``DataLoaderFactory`` that gives each shard another order each
    epoch, and the same one after a resume).

    ``sort_key`` is asked for a buffer's items when the first of them is visited, once an epoch; of more than 67
    million items, a buffer that was visited long ago may be asked again. The orders take 2 bytes an item (4 for
    buffers of more than 65,536), and do not travel with a pickled copy.

    Args:
        base_dataset: The dataset; its length and sort keys may not change within an epoch.
        buffer_size: Items that are sorted together, at least 1. Larger ones need less padding and are less random.
        pack_size: Items of a pack, at least 1: the ``batch_size``, or its product with the number of ranks where
            these take turns, as in a ``ShardedDataset`` over this one.
        init_seed: Any integer; None: one is drawn, and kept in the state. Ranks that take views of one order have to
            be given the same.

    Raises:
        ConfigurationError: An argument is none of these.
    """

    def __init__(
        self,
        base_dataset: DatasetImplementingSortKeyProtocol[_Item_co],
        buffer_size: int,
        pack_size: int,
        init_seed: int | None = None,
    ) -> None:
        if not is_map_style(base_dataset) or not callable(getattr(base_dataset, "sort_key", None)):
            raise ConfigurationError(
                "base_dataset", base_dataset, "a dataset with __len__(), __getitem__(index) and sort_key(index)"
            )
        self._base = base_dataset
        self._buffer_size = integer("buffer_size", buffer_size, minimum=1)
        self._pack_size = integer("pack_size", pack_size, minimum=1)
        self._is_seed_given = init_seed is not None
        self._seed = drawn_seed() if init_seed is None else integer("init_seed", init_seed)
        self._epoch = 0
        self._length = len(base_dataset)
        self._orders: dict[int, array[int]] = {}  # of buffers: places in the buffer, as they are served

    @property
    def seed(self) -> int:
        """The seed of every epoch's order, given or drawn."""
        return self._seed

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> _Item_co:
        return self._base[self._base_index(index)]

    def __getitems__(self, indices: Sequence[int]) -> list[_Item_co]:
        """Return the items at ``indices``, in one call of the base dataset if it has ``__getitems__``.

        Raises:
            IndexError: There is no such item.
        """
        return items_at(self._base, [self._base_index(index) for index in indices])

    def set_epoch(self, epoch: int) -> None:
        """Serve the order of another epoch; a base dataset with ``set_epoch`` is told as well.

        Args:
            epoch: The epoch, from 0.

        Raises:
            ConfigurationError: ``epoch`` is no integer of at least 0.
        """
        epoch = integer("epoch", epoch, minimum=0)
        tell = getattr(self._base, "set_epoch", None)
        if callable(tell):
            tell(epoch)
        if epoch != self._epoch:
            self._go_to(self._seed, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return seed, epoch and settings as plain values, and the base dataset's state if it keeps one."""
        return {
            "version": _STATE_VERSION,
            "seed": self._seed,
            "epoch": self._epoch,
            "buffer_size": self._buffer_size,
            "pack_size": self._pack_size,
            "length": self._length,
            **state_below(self._base),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Serve the order that ``state_dict`` describes.

        Raises:
            StateMismatchError: The state is of another length, has other sizes, or another seed than the one that
                was given here.
        """
        present = self.state_dict()
        state = checked_state(state_dict, present, "seed", "epoch", "length")
        seed = saved_integer(state, "seed", self._seed)
        epoch = saved_integer(state, "epoch", self._epoch, minimum=0)
        if self._is_seed_given and seed != self._seed:
            raise StateMismatchError("seed", seed, self._seed, "give init_seed=None to take the saved one over")
        # Only now: a base dataset may get its length from its state.
        load_state_below(self._base, state)
        if state["length"] != len(self._base):
            raise StateMismatchError("length", state["length"], len(self._base), "the base dataset is another one")
        self._go_to(seed, epoch)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_orders": {}}

    def _go_to(self, seed: int, epoch: int) -> None:
        self._seed, self._epoch = seed, epoch
        self._length = len(self._base)
        self._orders = {}

    def _base_index(self, index: int) -> int:
        index = operator.index(index)  # a NumPy or torch number finds no order below
        if not 0 <= index < self._length:
            index = counted_from_start(index, self._length)
        buffer, place = divmod(index, self._buffer_size)
        order = self._orders.get(buffer)
        if order is None:
            order = self._sorted(buffer)
            while self._orders and len(self._orders) * self._buffer_size >= _MOST_ITEMS_KEPT:
                del self._orders[next(iter(self._orders))]
            self._orders[buffer] = order
        return buffer * self._buffer_size + order[place]

    def _sorted(self, buffer: int) -> "array[int]":
        start = buffer * self._buffer_size
        count = min(self._buffer_size, self._length - start)
        sort_key = self._base.sort_key
        keys = [sort_key(index) for index in range(start, start + count)]
        place = (self._seed, self._epoch, buffer)
        # A sort that keeps the order of equal keys makes it theirs.
        ties: list[int] = permutation(count, b"fkat_data ties", *place).tolist()
        try:
            if any(isinstance(key, float) and math.isnan(key) for key in keys):
                raise ValueError("one of them is not a number")
            ranked = np.array(sorted(ties, key=keys.__getitem__), np.int64)
        except (TypeError, ValueError, RuntimeError) as error:  # the last two: arrays and tensors of several numbers
            raise ConfigurationError(
                "base_dataset",
                self._base,
                f"sort keys that compare; those of items {start} to {start + count - 1} do not: {error}",
            ) from error

        num_packs = count // self._pack_size
        packs = ranked[: num_packs * self._pack_size].reshape(num_packs, self._pack_size)
        random = draws(count, b"fkat_data items", *place)
        inside = np.argsort(random[: packs.size].reshape(packs.shape), axis=1, kind="stable")
        shuffled = np.take_along_axis(packs, inside, axis=1)[permutation(num_packs, b"fkat_data packs", *place)]
        rest = ranked[packs.size :][np.argsort(random[packs.size :], kind="stable")]
        code = "H" if self._buffer_size <= 1 << 16 else "I" if self._buffer_size <= 1 << 32 else "Q"
        return array(code, np.concatenate([shuffled.ravel(), rest]).astype(code).tobytes())
