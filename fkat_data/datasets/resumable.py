"""A sequential sampler that goes on where it stopped."""

from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from fkat_data.arguments import integer
from fkat_data.datasets.dataset_state import checked_state, saved_integer
from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError

__all__ = ["ResumableSequentialSampler"]

_STATE_VERSION = 1


class ResumableSequentialSampler(Sampler[int]):
    """The indices of a dataset in their order, from a place on.

    The first loop begins at ``start_index``. A loop that was left is gone on with by the next one; after one that
    came to the end, the next has every index. Of several iterators only the newest one lives.

    The place is that of what was yielded: a DataLoader with workers of its own asks for more than it has delivered.

    Args:
        data_source: Anything with a length, which may not change.
        start_index: The first index to yield, from 0 to the length; at the length, the first loop is the whole next
            epoch, as no epoch is empty.

    Raises:
        ConfigurationError: An argument is none of these.
    """

    def __init__(self, data_source: Sized, start_index: int = 0) -> None:
        if not isinstance(data_source, Sized):
            raise ConfigurationError("data_source", data_source, "something with a length")
        self._length = len(data_source)
        index = integer("start_index", start_index, minimum=0, maximum=self._length)
        self._index = index if index < self._length else 0
        self._iterator: object = None

    def __len__(self) -> int:
        """Return the length of a whole epoch, as trainers ask once and take it for each."""
        return self._length

    def __iter__(self) -> Iterator[int]:
        self._iterator = iterator = object()
        return self._walk(iterator, self._index)

    def _walk(self, iterator: object, start: int) -> Iterator[int]:
        for index in range(start, self._length):
            if self._iterator is not iterator:
                raise StaleIteratorError("this iterator was replaced by a newer one, or by load_state_dict()")
            # Before the yield: a state that is saved while the caller has this index in hand counts it as yielded.
            self._index = index + 1 if index + 1 < self._length else 0
            yield index

    def state_dict(self) -> dict[str, Any]:
        """Return the place as plain values: ``version``, ``length`` and ``index``, the next index to yield."""
        return {"version": _STATE_VERSION, "length": self._length, "index": self._index}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next loop yield what an unstopped one would have yielded next.

        Raises:
            StateMismatchError: The state is of another length, or its index is none of this sampler's.
        """
        state = checked_state(state_dict, self.state_dict(), "index")
        index = saved_integer(state, "index", self._index, minimum=0)
        if index > self._length:
            raise StateMismatchError("index", index, self._length, "there are fewer indices")
        self._index = index if index < self._length else 0
        self._iterator = None
