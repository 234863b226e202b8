"""An order that one random generator draws, buffer after buffer, as in the states of d9d's BufferSortedDataset."""

import io
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn, Self, cast

from fkat_data.arguments import saved_integer
from fkat_data.errors import StateMismatchError
from fkat_data.interruption import genuine


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
        self._begun = self._random_state = random_state
        self._num_drawn = 0

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
        if turn < self._num_drawn:
            self._random_state, self._num_drawn = self._begun, 0
        while self._num_drawn <= turn:
            drawn = (self.buffer + 1 + self._num_drawn) % num_buffers
            generator = random.Random()  # noqa: S311 - for an order, not for secrets
            generator.setstate(self._random_state)
            ties = [generator.random() for _ in range(min(buffer_size, length - drawn * buffer_size))]
            items = ranked(drawn, sorted(range(len(ties)), key=ties.__getitem__))
            packs = [items[start : start + pack_size] for start in range(0, len(items), pack_size)]
            generator.shuffle(packs)
            for pack in packs:
                generator.shuffle(pack)
            # Only now: an exception of the base dataset's moves nothing.
            self._random_state, self._num_drawn = generator.getstate(), self._num_drawn + 1
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
