"""Length bucketing: items of similar length side by side, in an order that is computed, so that no buffer is saved."""

import io
import math
import operator
import pickle
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn, Protocol, Self, TypeVar, cast

import numpy as np
from torch.utils.data import Dataset

from fkat_data.datasets.item_index import EpochOrder, counted_from_start, is_map_style, items_at
from fkat_data.datasets.resumable import base_state, is_foreign, load_base_state
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.errors.arguments import checked_state, integer, saved_integer
from fkat_data.errors.wording import Described
from fkat_data.permutation import drawn_seed, draws, permutation
from fkat_data.runtime.interruption import genuine


class DrawnOrder:
    """The order of the buffers that follow a saved one, in a dataset that visits one buffer after another.

    After the last buffer come those before the saved one, so that each has one order. Any buffer can be asked for at
    any time; the generator draws those between again.

    Args:
        random_state: What ``random.Random.getstate`` returned after the saved buffer's order was drawn.
        buffer: Index of the saved buffer; -1: none was drawn yet.
        offsets: The saved buffer's order, as indices in the buffer.
        epoch: The epoch that this order belongs to; None: the one that the next ``set_epoch`` names.

    Raises:
        StateMismatchError: ``random_state`` is not one.
    """

    def __init__(
        self, random_state: tuple[Any, ...], buffer: int, offsets: Sequence[int], epoch: int | None = None
    ) -> None:
        try:
            random.Random().setstate(random_state)  # noqa: S311 - for an order, not for secrets
        except genuine(TypeError, ValueError, OverflowError, IndexError) as error:
            raise StateMismatchError("seed", "<no generator's state>", "<random.Random().getstate()>") from error
        self.epoch = epoch
        self.buffer = buffer
        self.offsets: list[int] = list(offsets)
        self._begun = random_state
        # Where the generator stands, and after how many buffers: one value, which threads read and replace as a whole.
        self._reached = random_state, 0

    @classmethod
    def of_d9d(cls, state: Mapping[str, Any], buffer_size: int) -> Self:
        """Return the order of a state that d9d saved.

        Args:
            state: Has the fields ``seed``, ``buffer_idx`` and ``buffer_indices``.
            buffer_size: Number of items in a buffer.

        Raises:
            StateMismatchError: A field is missing or invalid.
        """
        for field in ("seed", "buffer_indices"):
            if field not in state:
                raise StateMismatchError(field, "<missing>", "<a value>", "this is not a state of d9d")
        buffer = saved_integer("buffer_idx", state["buffer_idx"], minimum=-1)
        indices = state["buffer_indices"]
        if not _are_integers(indices):
            raise StateMismatchError("buffer_indices", indices, "<a list of indices>")
        return cls(_unpickled(state["seed"]), buffer, [index - max(0, buffer) * buffer_size for index in indices])

    @classmethod
    def of_state(cls, state: object) -> Self:
        """Return the order of a value that ``state_dict`` returned.

        Raises:
            StateMismatchError: It is not one.
        """
        try:
            fields = cast("dict[str, Any]", state)
            version, internal, gauss = fields["random_state"]
            buffer, offsets, epoch = fields["buffer"], fields["offsets"], fields["epoch"]
            is_valid = _are_integers(offsets) and _are_integers([buffer]) and (epoch is None or _are_integers([epoch]))
            random_state = (version, tuple(internal), gauss)
        except genuine(TypeError, KeyError, ValueError, IndexError):
            is_valid, buffer, offsets, epoch, random_state = False, -1, (), None, ()
        if not is_valid:
            raise StateMismatchError("drawn_order", state, "<what state_dict() returned>")
        return cls(random_state, buffer, offsets, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the order as plain values."""
        version, internal, gauss = self._begun
        random_state = [version, list(internal), gauss]
        return {"random_state": random_state, "buffer": self.buffer, "offsets": self.offsets, "epoch": self.epoch}

    def check(self, length: int, buffer_size: int) -> None:
        """Check that the saved buffer is one of a dataset.

        Raises:
            StateMismatchError: The dataset's buffer has other items.
        """
        count = 0 if self.buffer < 0 else max(0, min(buffer_size, length - self.buffer * buffer_size))
        if sorted(self.offsets) != list(range(count)) or (count == 0) != (self.buffer < 0):
            saved = f"<{len(self.offsets)} items of buffer {self.buffer}>"
            hint = "buffer_size or the base dataset differs from when the state was saved"
            raise StateMismatchError("buffer_indices", saved, f"<all {count} items of that buffer>", hint)

    def up_to(
        self, buffer: int, length: int, buffer_size: int, pack_size: int, ranked: Callable[[int, list[int]], list[int]]
    ) -> Iterator[tuple[int, list[int]]]:
        """Draw and yield buffers and their orders, as indices in the buffer; the last one is ``buffer``.

        Args:
            buffer: The buffer that is wanted.
            length: Number of items in the dataset.
            buffer_size: Number of items in a buffer.
            pack_size: Number of items in a pack.
            ranked: Called with a buffer and an order of its indices; returns them sorted by key, equal ones in that
                order.
        """
        if buffer == self.buffer:
            yield buffer, self.offsets
            return
        num_buffers = -(-length // buffer_size)
        turn = (buffer - self.buffer - 1) % num_buffers
        random_state, num_drawn = self._reached
        if turn < num_drawn:
            random_state, num_drawn = self._begun, 0
        while num_drawn <= turn:
            drawn = (self.buffer + 1 + num_drawn) % num_buffers
            generator = random.Random()  # noqa: S311 - for an order, not for secrets
            generator.setstate(random_state)
            ties = [generator.random() for _ in range(min(buffer_size, length - drawn * buffer_size))]
            items = ranked(drawn, sorted(range(len(ties)), key=ties.__getitem__))
            packs = [items[start : start + pack_size] for start in range(0, len(items), pack_size)]
            generator.shuffle(packs)
            for pack in packs:
                generator.shuffle(pack)
            # Only now: an exception of the base dataset's moves nothing.
            self._reached = random_state, num_drawn = generator.getstate(), num_drawn + 1
            yield drawn, list(chain.from_iterable(packs))


def _are_integers(values: object) -> bool:
    if not isinstance(values, (list, tuple)):
        return False
    return all(type(value) is int for value in cast("Sequence[object]", values))


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers and tuples; a pickle that names a class or a function could run any code."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} in a generator's state")


def _unpickled(pickled: object) -> tuple[Any, ...]:
    try:
        return _PlainUnpickler(io.BytesIO(cast("bytes", pickled))).load()
    except genuine(Exception) as error:
        raise StateMismatchError("seed", pickled, "<a pickled random.Random().getstate()>", str(error)) from error


_Item_co = TypeVar("_Item_co", covariant=True)
_STATE_VERSION = 1
# Orders take 128 MiB for buffers of up to 65,536 items, and 256 MiB for larger ones.
_MAX_ITEMS_KEPT = 1 << 26


class DatasetImplementingSortKeyProtocol(Protocol[_Item_co]):
    """A map-style dataset that knows an item's sort key, such as its length, without loading the item."""

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    def sort_key(self, index: int) -> Any:
        """Return an item's sort key, which must compare with those of the other items."""
        ...

    def __getitem__(self, item: int, /) -> _Item_co: ...


class BufferSortedDataset(EpochOrder, Described, Dataset[_Item_co]):
    """A dataset's items in an order that puts similar sort keys side by side, so that microbatches need little padding.

    Each buffer of ``buffer_size`` consecutive items is sorted by sort key, with equal keys in random order, and cut
    into packs of ``pack_size``. The packs of a buffer are shuffled, and so are the items of each pack. The remaining
    items of a buffer form a smaller pack at its end. So if ``buffer_size`` is a multiple of ``pack_size``, packs begin
    at multiples of ``pack_size``, and a microbatch of ``pack_size`` items is one pack.

    The item at an index is a function of (seed, epoch, index) and the sort keys: the same in every process, and in any
    order of visits. Without a seed, one is drawn from torch's global CPU generator. In a ``DataLoaderFactory``, that
    gives each shard a different order each epoch, and the same one after a resume.

    ``load_state_dict`` also takes a state of d9d's ``BufferSortedDataset``. The rest of the epoch then has d9d's order,
    if d9d visited the buffers in turn. The first ``set_epoch`` after it names that epoch, and the next epoch has an
    order of this class. d9d saves neither ``pack_size`` nor ``buffer_size``: pass those that it had.

    The first visit to a buffer in an epoch calls ``sort_key`` for all its items. With more than 67 million items, a
    later visit may call it again. The orders take 2 bytes per item, or 4 if ``buffer_size`` exceeds 65,536, and are
    not pickled.

    Args:
        base_dataset: The dataset. Its length and sort keys must not change within an epoch. If it has ``set_epoch``, that is
            called, too.
        buffer_size: Number of items to sort together, at least 1. Larger buffers need less padding but are less random.
        pack_size: Number of items in a pack, at least 1. Use the batch size, or the batch size times the number of
            ranks if they take items in turn, as in a ``ShardedDataset`` over this one.
        init_seed: Any integer; None: draw one and keep it in the state. Ranks that take views of one order need the
            same seed.

    Raises:
        ConfigurationError: An argument is invalid.
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
        self._orders: dict[int, array[int]] = {}  # buffer -> indices in the buffer, in the order they are served
        self._drawn: DrawnOrder | None = None  # instead of the order of seed and epoch

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("epoch", self._epoch),
            ("buffer_size", self._buffer_size),
            ("pack_size", self._pack_size),
            ("base_dataset", self._base),
        ]

    @property
    def seed(self) -> int:
        """Seed of every epoch's order, given or drawn."""
        return self._seed

    @property
    def is_seed_drawn(self) -> bool:
        """Whether ``seed`` was drawn: a state has to say which."""
        return not self._is_seed_given

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> _Item_co:
        return self._base[self._base_index(index)]

    def __getitems__(self, indices: Sequence[int]) -> list[_Item_co]:
        """Return the items at ``indices``, in one call of the base dataset if it has ``__getitems__``.

        Raises:
            IndexError: An index is out of range.
        """
        return items_at(self._base, [self._base_index(index) for index in indices])

    def _set_epoch(self, epoch: int) -> None:
        set_base_epoch = getattr(self._base, "set_epoch", None)
        if callable(set_base_epoch):
            set_base_epoch(epoch)
        if self._drawn is not None and self._drawn.epoch is None:
            self._epoch = self._drawn.epoch = epoch
        if epoch != self._epoch:
            self._go_to(self._seed, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return seed, epoch and settings as plain values, and the base dataset's state if it has one.

        In an epoch that continues one of d9d, the state also has ``drawn_order``, from which that order is drawn.
        """
        return {
            "version": _STATE_VERSION,
            "seed": self._seed,
            "epoch": self._epoch,
            "buffer_size": self._buffer_size,
            "pack_size": self._pack_size,
            "length": self._length,
            **({} if self._drawn is None else {"drawn_order": self._drawn.state_dict()}),
            **base_state(self._base),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Switch to the order that ``state_dict`` describes.

        Raises:
            StateMismatchError: The state has another length, other sizes, or another seed than ``init_seed``.
        """
        present = self.state_dict()
        present.pop("drawn_order", None)
        if is_foreign(state_dict, "buffer_idx"):
            self._load_d9d(checked_state(state_dict, base_state(self._base)))
            return
        state = checked_state(state_dict, present, "seed", "epoch", "length")
        drawn = DrawnOrder.of_state(state["drawn_order"]) if "drawn_order" in state else None
        seed = saved_integer("seed", state["seed"])
        epoch = saved_integer("epoch", state["epoch"], minimum=0)
        if self._is_seed_given and seed != self._seed:
            raise StateMismatchError("seed", seed, self._seed, "pass init_seed=None to use the saved seed")
        # Loaded before the check: a base dataset may get its length from its state.
        load_base_state(self._base, state)
        if state["length"] != len(self._base):
            raise StateMismatchError("length", state["length"], len(self._base), "the base dataset has changed")
        if drawn is not None:
            drawn.check(len(self._base), self._buffer_size)
        self._go_to(seed, epoch, drawn)

    def _load_d9d(self, state: Mapping[str, Any]) -> None:
        drawn = DrawnOrder.of_d9d(state, self._buffer_size)
        load_base_state(self._base, state)
        drawn.check(len(self._base), self._buffer_size)
        self._go_to(self._seed, self._epoch, drawn)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_orders": {}}

    def _go_to(self, seed: int, epoch: int, drawn: DrawnOrder | None = None) -> None:
        self._seed, self._epoch, self._drawn = seed, epoch, drawn
        self._length = len(self._base)
        self._orders = {}  # last of all: what other threads still make of the epoch before goes into the old one

    def _base_index(self, index: int) -> int:
        index = operator.index(index)  # a NumPy or torch number would not be found in _orders
        if not 0 <= index < self._length:
            index = counted_from_start(index, self._length)
        buffer, offset = divmod(index, self._buffer_size)
        orders = self._orders
        order = orders.get(buffer)
        return buffer * self._buffer_size + (self._order_of(buffer, orders) if order is None else order)[offset]

    def _order_of(self, buffer: int, orders: "dict[int, array[int]]") -> "array[int]":
        if self._drawn is None:
            return self._keep(buffer, self._sorted(buffer), orders)
        made = self._drawn.up_to(buffer, self._length, self._buffer_size, self._pack_size, self._ranked)
        return [self._keep(drawn, order, orders) for drawn, order in made][-1]

    def _keep(self, buffer: int, order: Sequence[int], orders: "dict[int, array[int]]") -> "array[int]":
        while orders and len(orders) * self._buffer_size >= _MAX_ITEMS_KEPT:
            for oldest in list(orders)[:1]:
                orders.pop(oldest, None)  # another thread may have done so
        code = "H" if self._buffer_size <= 1 << 16 else "I" if self._buffer_size <= 1 << 32 else "Q"
        orders[buffer] = kept = array(code, np.asarray(order).astype(code).tobytes())
        return kept

    def _ranked(self, buffer: int, ties: Sequence[int]) -> list[int]:
        """Return a buffer's indices by sort key; equal keys keep their order in ``ties``."""
        start = buffer * self._buffer_size
        sort_key = self._base.sort_key
        keys = [sort_key(index) for index in range(start, start + len(ties))]
        try:
            if any(isinstance(key, (float, np.floating)) and math.isnan(cast("float", key)) for key in keys):
                raise ValueError("one of them is NaN")
            return sorted(ties, key=keys.__getitem__)  # Python's sort is stable
        # Arrays raise a ValueError and tensors a RuntimeError if they hold several numbers.
        except genuine(TypeError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                "base_dataset",
                self._base,
                f"sort keys that can be compared; those of items {start} to {start + len(ties) - 1} cannot: {error}",
            ) from error

    def _sorted(self, buffer: int) -> Any:
        count = min(self._buffer_size, self._length - buffer * self._buffer_size)
        coordinates = (self._seed, self._epoch, buffer)
        ties: list[int] = permutation(count, b"fkat_data ties", *coordinates).tolist()
        ranked = np.array(self._ranked(buffer, ties), np.int64)
        num_packs = count // self._pack_size
        packs = ranked[: num_packs * self._pack_size].reshape(num_packs, self._pack_size)
        random = draws(count, b"fkat_data items", *coordinates)
        inside = np.argsort(random[: packs.size].reshape(packs.shape), axis=1, kind="stable")
        shuffled = np.take_along_axis(packs, inside, axis=1)[permutation(num_packs, b"fkat_data packs", *coordinates)]
        rest = ranked[packs.size :][np.argsort(random[packs.size :], kind="stable")]
        return np.concatenate([shuffled.ravel(), rest])
